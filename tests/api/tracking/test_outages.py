"""A tracking server that is away, slow or refusing: training goes on, and nothing is lost."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from serverless_gpu.tracking import inbox, spool
from serverless_gpu.tracking.replay import replay

from .rest_server import RestServer
from .support import LIMIT_S, Notebook, info_of, wait_until
from .test_ends import OtherNotebook


def runs(server: RestServer) -> list[Any]:
    experiments = [one.experiment_id for one in server.client.search_experiments()]
    return list(server.client.search_runs(experiments))


def kept_in(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "xdg_state_home" / "serverless-gpu").glob("*.jsonl"))


def train(marker: str) -> str:
    """Logs all kinds of things, half of it after the file `marker` has appeared."""
    import mlflow

    with mlflow.start_run(run_name="mine"):
        mlflow.log_metric("before", 1.0)
        mlflow.get_run(mlflow.active_run().info.run_id)
        open(marker + os.environ["RANK"], "w").close()
        while not os.path.exists(marker):
            time.sleep(0.001)
        for step in range(100):
            mlflow.log_metric("after", step, step=step)
        mlflow.log_params({"lr": 0.1, "rank": os.environ["RANK"]})
        mlflow.set_tag("t", "v")
        return mlflow.active_run().info.run_id


class Training:
    """A call on two ranks that wait in its middle."""

    def __init__(self, notebook: Notebook) -> None:
        self.run = notebook.begin()
        self._marker = os.path.join(os.getcwd(), "go")
        self._ranks = notebook.ranks(2)
        notebook.start(self.run, self._ranks, train, self._marker)
        first = [self._marker + str(rank) for rank in range(2)]
        wait_until(lambda: self.run.info() and all(map(os.path.exists, first)), "both ranks log")

    def go_on(self) -> list[str]:
        open(self._marker, "w").close()
        return [rank.result() for rank in self._ranks]


def check(run: Any, server: RestServer, status: str = "FINISHED") -> None:
    """Nothing of train() is missing on the server."""
    assert (run.info.run_name, run.info.status) == ("mine", status)
    assert run.data.params["lr"] == "0.1"
    assert {key: run.data.params[key] for key in run.data.params if "rank" in key}
    assert run.data.tags["t"] == "v"
    assert len(server.client.get_metric_history(run.info.run_id, "before")) == 2
    assert len(server.client.get_metric_history(run.info.run_id, "after")) == 200


def test_a_server_that_is_up_gets_everything(notebook: Notebook, server: RestServer) -> None:
    training = Training(notebook)
    training.go_on()
    training.run.end("FINISHED", timeout=LIMIT_S)
    assert training.run.error is None
    [run] = runs(server)
    check(run, server)


def test_a_server_that_fails_for_a_while_gets_everything_when_it_is_back(
    notebook: Notebook, server: RestServer, tmp_path: Path
) -> None:
    training = Training(notebook)
    server.refuse = 500
    assert set(training.go_on()) == {info_of(training.run).run_id}
    text = wait_until(lambda: training.run.info() and training.run.error, "the trouble is told")
    [path] = kept_in(tmp_path)
    assert str(path) in text
    assert f"{server.uri}: " in text
    server.refuse = None
    wait_until(lambda: training.run.info() and training.run.error is None, "it is back")
    training.run.end("FINISHED", timeout=LIMIT_S)
    [run] = runs(server)
    check(run, server)
    assert kept_in(tmp_path) == []


def test_what_a_server_did_not_take_until_the_end_is_replayed_later(
    notebook: Notebook, server: RestServer, tmp_path: Path
) -> None:
    training = Training(notebook)
    server.refuse = 401  # a token that has expired
    training.go_on()
    training.run.end("FINISHED", timeout=LIMIT_S)
    [path] = kept_in(tmp_path)
    assert f"serverless-gpu mlflow-replay {path}" in str(training.run.error)
    for process in notebook.trackers:
        process.kill()
        process.wait()
    server.refuse = None
    assert [run.info.status for run in runs(server)] == ["RUNNING"]
    assert spool.uri_of(path) == server.uri
    for _ in range(2):  # the second time there is nothing to do
        assert replay(path, server.uri).complete
    [run] = runs(server)
    check(run, server)


def test_a_run_that_could_not_be_made_is_kept_whole_and_moves_when_the_server_is_there(
    notebook: Notebook, server: RestServer, tmp_path: Path
) -> None:
    server.refuse = 503
    training = Training(notebook)
    assert "kept until" in str(training.run.error)
    local = info_of(training.run)
    assert local.tracking_uri.startswith("sqlite:///")
    assert set(training.go_on()) == {local.run_id}
    server.refuse = None
    training.run.end("FINISHED", timeout=LIMIT_S)
    # If it has been asked just before the end, it gets the run with the next try.
    wait_until(lambda: training.run.info() and training.run.error is None, "the run is moved")
    [run] = runs(server)
    check(run, server)
    assert info_of(training.run).url == (
        f"{server.uri}/#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}"
    )
    assert list((tmp_path / "xdg_state_home" / "serverless-gpu").iterdir()) == []


def test_nested_runs_and_artifacts_of_a_kept_run_are_replayed_too(
    notebook: Notebook, server: RestServer, tmp_path: Path
) -> None:
    def train() -> None:
        import mlflow

        mlflow.log_text("hello", "notes/a.txt")
        with mlflow.start_run(nested=True, run_name="child"):
            mlflow.log_metric("inner", 1.0)

    server.refuse = 503
    run = notebook.begin("outer")
    notebook.run(run, notebook.ranks(1), train)
    run.end("FAILED", timeout=LIMIT_S)
    for process in notebook.trackers:
        process.kill()
        process.wait()
    server.refuse = None
    [path] = kept_in(tmp_path)
    assert replay(path, server.uri).complete
    outer, child = sorted(runs(server), key=lambda one: one.info.run_name, reverse=True)
    assert (outer.info.status, child.info.status) == ("FAILED", "FINISHED")
    assert child.data.tags["mlflow.parentRunId"] == outer.info.run_id
    assert child.data.metrics == {"inner": 1.0}
    assert (Path(outer.info.artifact_uri) / "notes" / "a.txt").read_text() == "hello"


def test_a_server_that_never_answers_holds_up_nobody(
    notebook: Notebook, server: RestServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    training = Training(notebook)
    server.silent.set()
    training.go_on()
    training.run.end("FINISHED", timeout=LIMIT_S)
    assert "timed out; kept" in str(training.run.error)
    [path] = kept_in(tmp_path)
    server.silent.clear()
    server.release.set()
    assert replay(path, server.uri).complete
    [run] = runs(server)
    check(run, server)


def log_points() -> None:
    import mlflow

    for step in range(500):
        mlflow.log_metric("m", step, step=step)


def test_the_notebooks_end_while_the_server_is_silent_loses_nothing(
    notebook: Notebook, server: RestServer, tmp_path: Path
) -> None:
    other = OtherNotebook(notebook, "alone")
    try:
        [rank] = notebook.ranks(1)
        rank.start(0, other.rank_config, _log_one_then_many, str(tmp_path / "go"))
        wait_until((tmp_path / "go0").exists, "the first metric is written")
        server.silent.set()
        while server.asked.acquire(blocking=False):
            pass
        (tmp_path / "go").touch()
        rank.result()
        assert server.asked.acquire(timeout=LIMIT_S)  # the tracker now waits for the server
        other.process.kill()
        began = time.monotonic()
        other.tracker.wait()
        assert time.monotonic() - began < 10 * inbox.LEAVE_S
    finally:
        other.end()
    server.silent.clear()
    server.release.set()
    [path] = kept_in(tmp_path)
    assert replay(path, server.uri).complete
    [run] = runs(server)
    assert run.info.status == "KILLED"
    assert len(server.client.get_metric_history(run.info.run_id, "m")) == 500


def _log_one_then_many(marker: str) -> None:
    import mlflow

    mlflow.log_metric("first", 1.0)
    mlflow.get_run(mlflow.active_run().info.run_id)
    open(marker + "0", "w").close()
    while not os.path.exists(marker):
        time.sleep(0.001)
    log_points()


def test_a_spool_that_was_cut_off_is_read_up_to_there(tmp_path: Path, empty_store: Path) -> None:
    uri = f"sqlite:///{shutil.copy(empty_store, tmp_path / 'mlflow.db')}"
    client = MlflowClient(tracking_uri=uri)
    run_id = client.create_run("0").info.run_id
    kept = spool.Spool(uri, tmp_path)
    kept.keep(log=[run_id, [["a", 1.0, 1, 0]], [["p", "1"]], []])
    kept.keep(log=["0" * 32, [["lost", 1.0, 1, 0]], [], []])
    kept.keep(log=[run_id, [["b", float("nan"), 1, 0]], [], []])
    assert kept.path is not None
    with kept.path.open("a") as out:
        out.write('{"log": ["' + run_id)
    done = replay(kept.path, uri)
    assert (done.complete, done.values) == (True, 3)
    assert [text.split(":")[0] for text in done.refused] == [f"run {'0' * 32}"]
    assert set(client.get_run(run_id).data.metrics) == {"a", "b"}
    assert replay(kept.path, uri).values == 0


def test_no_credential_is_in_what_is_kept_or_told(tmp_path: Path) -> None:
    from serverless_gpu.tracking.trouble import why

    uri = "http://ada:tok_fake@127.0.0.1:9"
    kept = spool.Spool(uri, tmp_path)
    kept.keep(end=["r", "FINISHED", 1])
    assert kept.path is not None
    text = kept.path.read_text() + why(uri, OSError(f"{uri}/api: [Errno 111] Connection refused"))
    assert "tok_fake" not in text
    assert text.endswith("http://127.0.0.1:9: Connection refused")
    assert json.loads(text.splitlines()[0])["uri"] == "http://127.0.0.1:9"
    assert kept.path.stat().st_mode & 0o777 == 0o600


def test_a_databricks_experiment_is_a_path_in_the_users_folder(
    notebook: Notebook, server: RestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "databricks")
    monkeypatch.setenv("DATABRICKS_HOST", server.uri)
    monkeypatch.setenv("DATABRICKS_TOKEN", "tok_fake_1234")

    def train() -> str:
        import mlflow

        with mlflow.start_run() as run:
            mlflow.log_metric("m", 1.0)
            return run.info.run_id

    run = notebook.begin()
    ids = notebook.run(run, notebook.ranks(2), train)
    run.end("FINISHED", timeout=LIMIT_S)
    [made] = runs(server)
    assert ids == [made.info.run_id] * 2
    experiment = server.client.get_experiment(made.info.experiment_id)
    assert experiment.name == "/Users/ada@example.org/project"
    page = f"/ml/experiments/{experiment.experiment_id}/runs/{made.info.run_id}"
    assert info_of(run).url == server.uri + page
