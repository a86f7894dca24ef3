"""Files and questions of ranks while the tracking server that they are for is away."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from serverless_gpu.tracking.trouble import unreachable

from .rest_server import RestServer
from .support import LIMIT_S, Notebook, RankFailed, wait_until
from .test_outages import kept_in


@pytest.fixture
def files(server: RestServer, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """What the server has, by path, with the run's id in front."""
    server.takes_files = True
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    return server.files


def log_files(marker: str) -> None:
    """Logs a file, and more of them once the file `marker` has appeared."""
    import mlflow

    mlflow.log_text("early", "early.txt")
    open(marker + "0", "w").close()
    while not os.path.exists(marker):
        time.sleep(0.001)
    mlflow.log_text("late", "notes/late.txt")
    os.makedirs("folder/inner")
    Path("folder/a.txt").write_text("a")
    Path("folder/inner/b.txt").write_text("b")
    mlflow.log_artifact("folder", "whole")
    mlflow.log_artifacts("folder")
    mlflow.log_dict({"a": 1}, "a.json")
    Path("folder/a.txt").write_text("changed since")
    mlflow.log_metric("m", 1.0)


@pytest.mark.parametrize("status", [503, 401])
def test_files_are_kept_while_the_server_is_away_and_are_there_when_it_is_back(
    notebook: Notebook, server: RestServer, files: dict[str, bytes], tmp_path: Path, status: int
) -> None:
    run = notebook.begin()
    ranks = notebook.ranks(1)
    notebook.start(run, ranks, log_files, "go")
    info = wait_until(lambda: os.path.exists("go0") and run.info(), "the first file is there")
    server.refuse = status
    open("go", "w").close()
    ranks[0].result()
    assert set(files) >= {f"{info.run_id}/early.txt"}
    assert not any("late" in name for name in files)
    text = wait_until(lambda: run.info() and run.error, "the trouble is told")
    [path] = kept_in(tmp_path)
    assert str(path) in text
    server.refuse = None
    run.end("FINISHED", timeout=LIMIT_S)
    wait_until(lambda: run.info() and run.error is None, "it is back")
    mine = {name.removeprefix(info.run_id + "/"): text for name, text in files.items()}
    assert {name: mine[name] for name in mine if "serverless_gpu" not in name} == {
        "early.txt": b"early",
        "notes/late.txt": b"late",
        "whole/folder/a.txt": b"a",
        "whole/folder/inner/b.txt": b"b",
        "a.txt": b"a",
        "inner/b.txt": b"b",
        "a.json": mine["a.json"],
    }
    assert server.client.get_run(info.run_id).data.metrics == {"m": 1.0}
    assert list(path.parent.iterdir()) == []


def log_inputs(marker: str) -> str:
    """Logs a data set, and others once the file `marker` has appeared; gives what log_model said
    then."""
    import mlflow
    import numpy
    from mlflow.data import from_numpy

    def log(name: str, context: str) -> None:
        mlflow.log_input(from_numpy(numpy.ones(3), name=name), context)

    log("early", "training")
    open(marker + "0", "w").close()
    while not os.path.exists(marker):
        time.sleep(0.001)
    log("late", "training")
    log("late", "training")
    log("last", "eval")
    try:
        mlflow.pyfunc.log_model(name="m", python_model=mlflow.pyfunc.PythonModel())
    except (mlflow.MlflowException, TypeError) as error:
        return str(error)
    return ""


def test_data_sets_are_kept_while_the_server_is_away_and_a_model_says_what_would_be(
    notebook: Notebook, server: RestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    run = notebook.begin()
    ranks = notebook.ranks(1)
    notebook.start(run, ranks, log_inputs, "go")
    info = wait_until(lambda: os.path.exists("go0") and run.info(), "the first one is there")
    server.refuse = 503
    open("go", "w").close()
    said = ranks[0].result()
    server.refuse = None
    run.end("FINISHED", timeout=LIMIT_S)
    wait_until(lambda: run.info() and run.error is None, "it is back")
    found = server.client.get_run(info.run_id).inputs.dataset_inputs
    assert {(one.dataset.name, one.tags[0].value) for one in found} == {
        ("early", "training"),
        ("late", "training"),
        ("last", "eval"),
    }
    assert len(found) == 3
    if hasattr(server.client, "create_logged_model"):  # MLflow 2 keeps models among the files
        assert said.endswith(
            "files are kept: save_model(FOLDER), then mlflow.log_artifacts(FOLDER)"
        )


def ask_in_vain(marker: str) -> str:
    import mlflow

    mlflow.log_metric("m", 1.0)
    mlflow.get_run(mlflow.active_run().info.run_id)
    open(marker + "0", "w").close()
    while not os.path.exists(marker):
        time.sleep(0.001)
    try:
        mlflow.search_runs(search_all_experiments=True)
    except mlflow.MlflowException as error:
        mlflow.log_metric("m", 2.0, step=1)
        return f"{error.error_code}: {error}"
    return "answered"


def test_a_question_while_the_server_is_away_is_an_error_of_mlflows_in_one_line(
    notebook: Notebook, server: RestServer
) -> None:
    run = notebook.begin()
    ranks = notebook.ranks(1)
    notebook.start(run, ranks, ask_in_vain, "go")
    wait_until(lambda: os.path.exists("go0"), "the first metric is there")
    server.refuse = 503
    open("go", "w").close()
    text = ranks[0].result()
    server.refuse = None
    run.end("FINISHED", timeout=LIMIT_S)
    assert text.startswith(f"TEMPORARILY_UNAVAILABLE: {server.uri}: ")
    assert text.endswith(
        "search_experiments has to wait until it is back, while what is logged is kept"
    )
    assert "\n" not in text


def test_a_file_that_is_not_there_is_the_callers_error_as_ever(
    notebook: Notebook, server: RestServer, files: dict[str, bytes]
) -> None:
    def log_nothing() -> None:
        import mlflow

        mlflow.log_artifact("no such file")

    with pytest.raises(RankFailed, match="FileNotFoundError"):
        notebook.call(1, log_nothing)
    assert not any("no such" in name for name in files)


def test_what_counts_as_no_answer() -> None:
    from mlflow.exceptions import MlflowException, RestException

    url = "API request to http://h/api failed with "
    assert unreachable(MlflowException(url + "exception Max retries exceeded"))
    assert unreachable(MlflowException(url + "timeout exception x"))
    assert unreachable(
        MlflowException("API request to endpoint /a failed with error code 503 != 200")
    )
    assert unreachable(RestException({"error_code": "INTERNAL_ERROR", "message": "x"}))
    assert not unreachable(RestException({"error_code": "RESOURCE_DOES_NOT_EXIST"}))
    assert not unreachable(
        MlflowException("API request to endpoint /a failed with error code 403 != 200")
    )
    assert not unreachable(ValueError("x"))
