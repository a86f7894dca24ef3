"""New sqlite stores are copies of a template that MLflow itself has made."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from serverless_gpu.tracking import fresh


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "serverless-gpu"


def _schema(path: Path) -> set[tuple[object, ...]]:
    """Tables with their columns, and indexes; the order of constraints is MLflow's chance."""
    found: set[tuple[object, ...]] = set()
    with sqlite3.connect(path) as db:
        for kind, name in list(db.execute("select type, name from sqlite_master")):
            found.add((kind, name))
            found |= {(name, *column) for column in db.execute(f"pragma table_info({name!r})")}
    return found


def test_a_store_from_the_template_has_the_tables_of_one_that_mlflow_made(tmp_path: Path) -> None:
    import mlflow

    ours, theirs = tmp_path / "ours.db", tmp_path / "theirs.db"
    fresh.ensure(f"sqlite:///{ours}")
    mlflow.MlflowClient(f"sqlite:///{theirs}").search_experiments()
    assert _schema(ours) == _schema(theirs)
    client = mlflow.MlflowClient(f"sqlite:///{ours}")
    run = client.create_run(client.create_experiment("new"))
    client.log_metric(run.info.run_id, "loss", 0.5)
    assert client.get_run(run.info.run_id).data.metrics == {"loss": 0.5}


def test_the_template_is_made_once_and_leaves_nothing_beside_it(cache: Path) -> None:
    first = fresh.template().stat()
    again = fresh.template().stat()
    assert (first.st_ino, first.st_mtime_ns) == (again.st_ino, again.st_mtime_ns)
    assert [p.name for p in cache.iterdir()] == [fresh.template().name]


def test_an_existing_file_is_never_touched(tmp_path: Path) -> None:
    path = tmp_path / "mine.db"
    path.write_bytes(b"mine")
    fresh.ensure(f"sqlite:///{path}")
    assert path.read_bytes() == b"mine"


def test_a_folder_that_cannot_be_written_is_left_to_mlflow(tmp_path: Path) -> None:
    fresh.template()
    blocked = tmp_path / "file"
    blocked.write_text("")
    fresh.ensure(f"sqlite:///{blocked}/in/it/mlflow.db")  # MLflow then says what is wrong
    assert blocked.read_text() == ""


@pytest.mark.parametrize(
    "uri", ["http://127.0.0.1:5000", "sqlite://", "sqlite:///:memory:", "file:/tmp/x", "databricks"]
)
def test_other_stores_are_not_ours_to_make(uri: str) -> None:
    assert fresh.sqlite_file(uri) is None


def test_file_modes_are_those_of_the_user(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    before = os.umask(0o027)
    try:
        fresh.ensure(f"sqlite:///{path}")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640
