"""Lazy runs, stores that are away, ranks that serve one call after another."""

from __future__ import annotations

import os
import time
from pathlib import Path

import mlflow
import pytest
from mlflow import MlflowClient

from serverless_gpu import cli
from serverless_gpu.tracking.client import mode
from serverless_gpu.tracking.packets import Assembler, packets
from serverless_gpu.tracking.settings import tracking_environment
from serverless_gpu.tracking.url import absolute, run_url

from .support import LIMIT_S, Notebook, RankFailed, info_of, wait_until
from .test_semantics import all_runs


def test_a_lazy_call_that_logs_nothing_makes_no_run(notebook: Notebook) -> None:
    run = notebook.begin(mode="lazy")
    run.log_text("x = 1", "cell.py")
    notebook.run(run, notebook.ranks(2), lambda: None)
    run.end("FINISHED", timeout=LIMIT_S)
    assert (run.info(), run.error) == (None, None)
    assert all_runs() == []


def test_a_lazy_call_makes_its_run_at_the_first_use(notebook: Notebook) -> None:
    def train() -> None:
        import mlflow

        mlflow.log_metric("m", 1.0)

    run = notebook.begin(mode="lazy")
    run.log_text("x = 1", "cell.py")
    notebook.run(run, notebook.ranks(2), train)
    info = info_of(run)
    run.end("FINISHED", timeout=LIMIT_S)
    [made] = all_runs()
    assert (made.info.run_id, made.info.status) == (info.run_id, "FINISHED")
    client = MlflowClient(tracking_uri=info.tracking_uri)
    assert "cell.py" in [artifact.path for artifact in client.list_artifacts(info.run_id)]


def test_the_mode_comes_from_the_flag_then_the_environment() -> None:
    assert mode(None, {}) == "always"
    assert mode(None, {"SERVERLESS_GPU_MLFLOW": "Lazy"}) == "lazy"
    assert mode("off", {"SERVERLESS_GPU_MLFLOW": "lazy"}) == "off"
    with pytest.raises(ValueError, match=r"SERVERLESS_GPU_MLFLOW='no': must be one of always"):
        mode(None, {"SERVERLESS_GPU_MLFLOW": "no"})
    with pytest.raises(ValueError, match=r"mlflow='no'"):
        mode("no", {})


def log_one() -> None:
    import mlflow

    mlflow.log_metric("m", 1.0)


def test_a_store_that_refuses_is_one_line_and_the_call_goes_on(
    notebook: Notebook, tmp_path: Path
) -> None:
    client = MlflowClient(tracking_uri=f"sqlite:///{os.getcwd()}/mlflow.db")
    experiment = client.create_experiment("project")
    client.delete_experiment(experiment)
    run = notebook.begin()
    assert run.error is None  # begin has not waited
    notebook.run(run, notebook.ranks(1), log_one)
    text = wait_until(lambda: run.info() and run.error, "the failure is told")
    assert text.startswith(f"MLflow: {client.tracking_uri}: experiment 'project' is deleted: ")
    run.end("FINISHED", timeout=LIMIT_S)
    [path] = (tmp_path / "xdg_state_home" / "serverless-gpu").glob("*.jsonl")
    assert str(run.error).endswith(f"you run: serverless-gpu mlflow-replay {path}")
    client.restore_experiment(experiment)
    assert cli.main(["mlflow-replay", str(path)]) == 0
    assert [made.data.metrics for made in all_runs()] == [{"m": 1.0}]
    assert list(path.parent.iterdir()) == []


def test_a_folder_with_an_old_file_store_goes_on_using_it(notebook: Notebook) -> None:
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    os.makedirs("mlruns/0")
    with open("mlruns/0/meta.yaml", "w") as meta:
        meta.write(
            f"artifact_location: file://{os.getcwd()}/mlruns/0\nexperiment_id: '0'\n"
            "lifecycle_stage: active\nname: Default\n"
        )
    notebook.call(2, log_one)
    [experiment] = [name for name in os.listdir("mlruns") if name.isdigit() and name != "0"]
    assert len([name for name in os.listdir(f"mlruns/{experiment}") if len(name) == 32]) == 1
    assert all_runs() == []


def test_a_store_that_does_not_exist_yet_is_made_by_one_and_used_by_all(
    notebook: Notebook,
) -> None:
    """C-032; the second time, the user has removed the file to start anew."""
    for _ in range(2):
        os.remove("mlflow.db")
        notebook.call(8, log_in_an_experiment_of_our_own)
        points = [run.data.metrics for run in all_runs()]
        assert points == [{}, {"m": 49.0}] or points == [{"m": 49.0}, {}]


def log_in_an_experiment_of_our_own() -> None:
    import mlflow

    mlflow.set_experiment("race")
    with mlflow.start_run(nested=True):
        for step in range(50):
            mlflow.log_metric("m", step, step=step)


def test_ranks_of_a_session_serve_one_call_after_another(notebook: Notebook) -> None:
    def train(number: int) -> str:
        import mlflow

        mlflow.set_experiment(f"experiment{number}")
        mlflow.start_run()
        mlflow.log_metric("number", number)
        return mlflow.active_run().info.run_id

    def between_calls() -> tuple[object, ...]:
        import mlflow

        names = [name for name in os.environ if name.startswith("MLFLOW_")]
        return mlflow.active_run(), mlflow.tracking.fluent._active_experiment_id, names

    own = [name for name in os.environ if name.startswith("MLFLOW_")]
    session = notebook.ranks(2)
    ids = []
    for number in range(3):
        run = notebook.begin(f"call {number}")
        ids += notebook.run(run, session, train, number)
        run.end("FINISHED", timeout=LIMIT_S)
        for rank in session:
            rank.start(0, None, between_calls)
            assert rank.result() == (None, None, own)
    assert len(set(ids)) == 3
    numbers = {run.info.run_name: run.data.metrics["number"] for run in all_runs()}
    assert numbers == {"call 0": 0.0, "call 1": 1.0, "call 2": 2.0}


def test_what_one_rank_has_logged_another_can_read(notebook: Notebook) -> None:
    def train(marker: str) -> float | None:
        import mlflow

        run_id = mlflow.active_run().info.run_id
        if os.environ["RANK"] == "0":
            mlflow.log_metric("m", 7.0)
            open(marker, "w").close()
            return None
        while not os.path.exists(marker):
            time.sleep(0.001)
        return float(mlflow.get_run(run_id).data.metrics["m"])

    marker = os.path.join(os.getcwd(), "logged")
    assert notebook.call(2, train, marker) == [None, 7.0]


def test_asking_for_the_active_run_until_it_is_ended_ends(notebook: Notebook) -> None:
    def train() -> str:
        import mlflow

        while mlflow.active_run():
            mlflow.end_run()
        with mlflow.start_run() as run:
            return run.info.run_id

    assert notebook.call(2, train) == [run.info.run_id for run in all_runs()] * 2


def test_messages_survive_any_length_and_an_interrupted_sender() -> None:
    long = ("text", "x" * 1_000_000)
    assembler = Assembler()
    first, *_rest = packets(long)
    assert assembler.feed(first) is None  # its sender was interrupted here
    answers = [assembler.feed(packet) for packet in packets(long)]
    assert answers[-1] == long
    assert set(answers[:-1]) == {None}
    assert assembler.feed(packets("short")[0]) == "short"
    assert assembler.feed(packets(long)[-1]) is None  # an end without its beginning


def test_uris_are_made_absolute_and_links_made() -> None:
    assert absolute("sqlite:///a.db", "/w") == "sqlite:////w/a.db"
    assert absolute("sqlite:////x/a.db", "/w") == "sqlite:////x/a.db"
    assert absolute("./mlruns", "/w") == "/w/mlruns"
    assert absolute("file:./mlruns", "/w") == "file:///w/mlruns"
    assert absolute("http://h:5000", "/w") == "http://h:5000"
    assert absolute("databricks", "/w") == "databricks"
    assert run_url("http://h:5000/", "1", "r") == "http://h:5000/#/experiments/1/runs/r"
    databricks = run_url("databricks", "1", "r", host="https://w/")
    assert databricks == "https://w/ml/experiments/1/runs/r"
    assert run_url("sqlite:////x/a.db", "1", "r") is None


def test_credentials_go_to_the_tracker_and_nothing_else_does() -> None:
    environ = {"MLFLOW_TRACKING_TOKEN": "t", "AWS_PROFILE": "p", "HOME": "/h", "SECRET": "s"}
    assert tracking_environment(environ) == {"MLFLOW_TRACKING_TOKEN": "t", "AWS_PROFILE": "p"}


def test_the_notebooks_mlflow_is_not_changed_by_calls(notebook: Notebook) -> None:
    notebook.call(1, log_one)
    assert mlflow.active_run() is None
    assert not hasattr(mlflow.active_run, "_serverless_gpu")


def test_an_unknown_run_raises_in_the_rank(notebook: Notebook) -> None:
    def train() -> None:
        import mlflow

        mlflow.MlflowClient().log_metric("0" * 32, "m", 1.0)

    with pytest.raises(RankFailed, match=r"0{32}"):
        notebook.call(1, train)
