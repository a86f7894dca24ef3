from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import mlflow
import pytest
from mlflow import MlflowClient

from serverless_gpu.tracking import fresh

from .rest_server import RestServer, serving
from .support import ForkServer, Notebook


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    server = ForkServer(tmp_path_factory.mktemp("fork"))
    yield server
    server.close()


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sqlite store without runs. Making one takes MLflow over a second, copying it nothing."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    fresh.ensure(f"sqlite:///{path}")  # what MLflow makes, only sooner
    MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def clean_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder "project" as working directory, and none of MLflow's state of other tests."""
    before = dict(os.environ)
    for name in list(os.environ):
        if name.startswith(("MLFLOW_", "SERVERLESS_GPU_", "JPY_SESSION_NAME")):
            del os.environ[name]
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    for name in ("XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
        (tmp_path / name.lower()).mkdir(mode=0o700)
    yield
    while mlflow.active_run():
        mlflow.end_run()
    mlflow.set_tracking_uri(None)  # type: ignore[arg-type]
    mlflow.tracking.fluent._active_experiment_id = None
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def notebook(
    fork_server: ForkServer, empty_store: Path, clean_environment: None, tmp_path: Path
) -> Iterator[Notebook]:
    """A notebook in a folder whose default store exists."""
    shutil.copy(empty_store, "mlflow.db")
    if mlflow.__version__.startswith("2."):  # its default is a file store
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{os.getcwd()}/mlflow.db"
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    notebook = Notebook(fork_server, private)
    yield notebook
    notebook.close()


@pytest.fixture
def server(
    notebook: Notebook, empty_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RestServer]:
    """Asked by the notebook, with its own store."""
    shutil.copy(empty_store, tmp_path / "server.db")
    with serving(f"sqlite:///{tmp_path}/server.db") as running:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", running.uri)
        yield running
