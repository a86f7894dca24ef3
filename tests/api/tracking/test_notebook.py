"""What the notebook has chosen holds in ranks, and what is the notebook's own stays its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlflow
import pytest
from mlflow import MlflowClient

from serverless_gpu.tracking import ui
from serverless_gpu.tracking.client import RunHandle, capture_context
from serverless_gpu.tracking.context import default_experiment

from .support import LIMIT_S, PYTHONPATH, Notebook, RankFailed, info_of
from .test_semantics import all_runs, by_name


def log_one() -> tuple[str, str]:
    import mlflow

    mlflow.log_metric("m", 1.0)
    return mlflow.get_tracking_uri(), mlflow.active_run().info.run_id


def test_the_notebooks_store_and_experiment_are_used_and_changes_followed(
    notebook: Notebook,
) -> None:
    for number in (1, 2):
        uri = f"sqlite:///{os.getcwd()}/store{number}.db"
        mlflow.set_tracking_uri(uri)
        mlflow.set_experiment(f"mine{number}")
        with mlflow.start_run() as own:
            answers = notebook.call(2, log_one)
        assert {answer[0] for answer in answers} == {uri}
        child = mlflow.get_run(answers[0][1])
        assert child.data.metrics == {"m": 1.0}
        assert child.data.tags["mlflow.parentRunId"] == own.info.run_id
        assert child.info.experiment_id == own.info.experiment_id
    assert all_runs() == []  # the default store


def test_an_experiment_of_another_store_is_replaced_and_that_is_said(notebook: Notebook) -> None:
    """MLflow keeps the experiment's id when the store is changed after ``set_experiment``."""
    for number in range(3):
        mlflow.set_experiment(f"experiment{number}")
    uri = f"sqlite:///{os.getcwd()}/other.db"
    mlflow.set_tracking_uri(uri)
    run = notebook.begin()
    [answer] = notebook.run(run, notebook.ranks(1), start_and_log)
    run.end("FINISHED", timeout=LIMIT_S)
    assert run.error == "MLflow: no experiment 3 in this store; using 'project'"
    [made] = all_runs(uri)
    assert (made.info.run_id, made.data.metrics) == (answer, {"m": 1.0})
    client = MlflowClient(tracking_uri=uri)
    assert client.get_experiment(made.info.experiment_id).name == "project"


def start_and_log() -> str:
    import mlflow

    with mlflow.start_run() as run:
        mlflow.log_metric("m", 1.0)
    return run.info.run_id


def test_uri_and_experiment_come_from_the_environment_too(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///relative.db")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "from the environment")
    uri = f"sqlite:///{os.getcwd()}/relative.db"
    assert {answer[0] for answer in notebook.call(2, log_one)} == {uri}
    client = MlflowClient(tracking_uri=uri)
    assert client.get_experiment_by_name("from the environment") is not None
    assert len(all_runs(uri)) == 1


def test_the_experiment_is_named_after_the_notebook_else_the_folder() -> None:
    def name(environ: Mapping[str, str], namespace: Mapping[str, object]) -> str:
        return default_experiment(environ, namespace, "/home/ada/project")

    assert name({"JPY_SESSION_NAME": "/home/ada/nets/Res Net.ipynb"}, {}) == "Res Net"
    assert name({}, {"__vsc_ipynb_file__": "/x/y.ipynb"}) == "y"
    assert name({}, {}) == "project"
    assert default_experiment({}, {}, "/") == "Default"


def test_a_folder_that_is_gone_is_no_trouble_of_tracking(clean_environment: None) -> None:
    folder = os.getcwd()
    os.environ["PWD"] = folder
    os.rmdir(folder)
    context = capture_context(None)
    os.mkdir(folder)
    assert (context.cwd, context.experiment) == (folder, "project")


def test_capturing_the_context_and_running_a_call_do_not_import_mlflow() -> None:
    script = (
        "import sys; from serverless_gpu.tracking import client;"
        "context = client.capture_context('n');"
        "tracker = client.Tracker(lambda: '/nonexistent/socket');"
        "run = tracker.begin('c', context, tags={}, mode='always');"
        "run.info(); run.rank_config(); run.end('FINISHED', timeout=0.1); tracker.close();"
        "assert run.error; print('mlflow' in sys.modules)"
    )
    command = [sys.executable, "-c", script]
    environ = {**os.environ, "PYTHONPATH": PYTHONPATH}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.stdout == "False\n", done.stderr


def test_a_failed_call_leaves_nothing_open_for_the_next_one(notebook: Notebook) -> None:
    """C-052, in ranks that live on: the second call must not say that a run is already active."""

    def train(fail: bool) -> None:
        import mlflow

        if os.environ["RANK"] == "0":
            mlflow.start_run()
            mlflow.log_param("p", 1)
            if fail:
                raise RuntimeError("x")
            mlflow.end_run()

    session = notebook.ranks(2)
    first = notebook.begin("first")
    with pytest.raises(RankFailed, match="RuntimeError: x"):
        notebook.run(first, session, train, True)
    session[1].result()
    first.end("FAILED", timeout=LIMIT_S)
    second = notebook.begin("second")
    notebook.run(second, session, train, False)
    second.end("FINISHED", timeout=LIMIT_S)
    assert by_name()["first"].info.status == "FAILED"
    assert by_name()["second"].info.status == "FINISHED"


def test_every_rank_can_learn_the_run_and_add_artifacts(notebook: Notebook) -> None:
    def train() -> str:
        import mlflow

        run_id = mlflow.active_run().info.run_id
        mlflow.MlflowClient().log_text(run_id, "hello", f"rank{os.environ['RANK']}.txt")
        return run_id

    ids = notebook.call(3, train)
    assert len(set(ids)) == 1
    client = MlflowClient(tracking_uri=f"sqlite:///{os.getcwd()}/mlflow.db")
    paths = [artifact.path for artifact in client.list_artifacts(ids[0])]
    assert {"rank0.txt", "rank1.txt", "rank2.txt"} <= set(paths)


def test_nested_runs_of_ranks_leave_the_notebooks_run_as_it_is(notebook: Notebook) -> None:
    """C-061: two calls behave the same, and the notebook's environment is not touched."""

    def train() -> str:
        import mlflow

        with mlflow.start_run(nested=True, run_name="child" + os.environ["RANK"]) as run:
            mlflow.log_param("rank", os.environ["RANK"])
            return run.info.run_id

    before = dict(os.environ)
    session = notebook.ranks(2)
    made = []
    with mlflow.start_run(run_name="parent") as parent:
        for _ in range(2):
            run = notebook.begin()
            made += notebook.run(run, session, train)
            run.end("FINISHED", timeout=LIMIT_S)
        assert dict(os.environ) == before
    assert len(set(made)) == 4
    own = mlflow.get_run(parent.info.run_id)
    assert own.info.run_name == "parent"
    assert own.data.params == {}


def test_a_run_named_by_the_environment_is_resumed_and_the_variable_stays(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = MlflowClient(tracking_uri=f"sqlite:///{os.getcwd()}/mlflow.db")
    run_id = client.create_run("0", run_name="earlier").info.run_id
    client.set_terminated(run_id)
    monkeypatch.setenv("MLFLOW_RUN_ID", run_id)

    def train() -> tuple[str, str | None]:
        import mlflow

        with mlflow.start_run() as run:
            mlflow.log_metric("m", 1.0)
        return run.info.run_id, os.environ.get("MLFLOW_RUN_ID")

    for _ in range(2):
        assert notebook.call(2, train) == [(run_id, None)] * 2
    assert os.environ["MLFLOW_RUN_ID"] == run_id
    assert [run.info.run_name for run in all_runs()] == ["earlier"]


def test_a_run_that_is_not_there_is_replaced_and_that_is_said(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_RUN_ID", "0123abc")
    run = notebook.begin()
    [answer] = notebook.run(run, notebook.ranks(1), start_and_log)
    run.end("FINISHED", timeout=LIMIT_S)
    assert run.error == "MLflow: no run 0123abc in this store; this is a new one"
    monkeypatch.delenv("MLFLOW_RUN_ID")
    following = notebook.begin()
    notebook.run(following, notebook.ranks(1), start_and_log)
    following.end("FINISHED", timeout=LIMIT_S)
    assert following.error is None
    made = all_runs()
    assert answer in [one.info.run_id for one in made] and len(made) == 2


def test_a_resumed_call_may_log_the_params_of_its_ranks_again(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(lr: float, delay: int) -> None:
        import time

        import mlflow

        rank = int(os.environ["RANK"])
        while rank != delay and not os.path.exists(f"{delay}{lr}"):  # that rank is first
            time.sleep(0.001)
        mlflow.log_params({"rank": rank, "lr": lr})
        open(f"{delay}{lr}", "w").close()

    run_id = notebook_run(notebook, train, 0.1, 2)
    monkeypatch.setenv("MLFLOW_RUN_ID", run_id)
    before = mlflow.get_run(run_id).data.params
    assert before == {"rank": "2", "lr": "0.1", "rank0/rank": "0", "rank1/rank": "1"}
    for first in range(2):
        notebook.call(3, train, 0.1, first)
    assert mlflow.get_run(run_id).data.params == before
    with pytest.raises(RankFailed, match="Changing param values is not allowed"):
        notebook.call(3, train, 0.2, 0)


def notebook_run(notebook: Notebook, function: Any, *arguments: Any) -> str:
    """The id of the run of a call on three ranks."""
    notebook.call(3, function, *arguments)
    return str(all_runs()[0].info.run_id)


def test_ranks_that_tidy_up_or_die_leave_the_notebooks_run_running(notebook: Notebook) -> None:
    """C-062."""

    def train(bad: bool) -> None:
        import mlflow

        mlflow.end_run("FAILED")
        if bad and os.environ["RANK"] == "1":
            os._exit(1)

    own = mlflow.start_run()
    notebook.call(2, train, False)
    run = notebook.begin()
    ranks = notebook.ranks(2)
    notebook.start(run, ranks, train, True)
    ranks[0].result()
    ranks[1].wait()
    run.end("FAILED", timeout=LIMIT_S)
    assert mlflow.get_run(own.info.run_id).info.status == "RUNNING"
    mlflow.log_metric("after", 1.0)
    mlflow.end_run()
    ended = mlflow.get_run(own.info.run_id)
    assert (ended.info.status, ended.data.metrics) == ("FINISHED", {"after": 1.0})


def test_every_run_that_the_notebook_is_inside_of_is_protected(clean_environment: None) -> None:
    with mlflow.start_run() as outer, mlflow.start_run(nested=True) as inner:
        context = capture_context("name")
    assert context.protected == (outer.info.run_id, inner.info.run_id)
    assert context.parent_run_id == inner.info.run_id
    assert context.run_name == "name"


def test_artifacts_that_the_notebook_adds_arrive(notebook: Notebook, tmp_path: Path) -> None:
    log = tmp_path / "rank0.log"
    log.write_text("line\n")
    run = notebook.begin()
    run.log_text("x = 1", "cell.py")
    run.log_file(str(log), "logs")
    run.end("FINISHED", timeout=LIMIT_S)
    folder = Path(info_of_ended(run)).joinpath
    assert folder("cell.py").read_text() == "x = 1"
    assert folder("logs", "rank0.log").read_text() == "line\n"


def info_of_ended(run: RunHandle) -> str:
    return info_of(run).artifact_uri


def test_the_link_is_known_while_the_call_runs(notebook: Notebook, monkeypatch: Any) -> None:
    template = "http://proxy/ml/{experiment_id}/{run_id}"
    monkeypatch.setenv("SERVERLESS_GPU_MLFLOW_UI_URL", template)
    info = info_of(notebook.begin())
    assert info.url == f"http://proxy/ml/{info.experiment_id}/{info.run_id}"
    monkeypatch.setenv("SERVERLESS_GPU_MLFLOW_UI_URL", "/proxy/{port}/#/{run_id}")
    run = notebook.begin()
    proxied = info_of(run)
    if ui.available():
        assert re.fullmatch(rf"/proxy/\d+/#/{proxied.run_id}", str(proxied.url))
