"""What trackers that are gone could not write reaches its store all the same, and only once."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from mlflow import MlflowClient

from serverless_gpu import cli
from serverless_gpu.tracking import spool
from serverless_gpu.tracking.leftovers import Leftovers

from .rest_server import RestServer
from .support import LIMIT_S, Notebook, info_of, wait_until
from .test_outages import Training, check, kept_in, runs


def end_of(notebook: Notebook) -> None:
    """Of its tracker, at once."""
    notebook.trackers[-1].kill()
    notebook.trackers[-1].wait()


def test_the_next_notebook_writes_what_a_dead_one_could_not(
    notebook: Notebook, server: RestServer, tmp_path: Path
) -> None:
    training = Training(notebook)
    server.refuse = 503
    training.go_on()
    training.run.end("FINISHED", timeout=LIMIT_S)
    assert len(kept_in(tmp_path)) == 1
    end_of(notebook)
    server.refuse = None
    run = notebook.begin("next")
    said = re.compile(r"MLflow: an earlier notebook's 20\d values are in the store now")
    wait_until(lambda: run.info() and said.fullmatch(str(run.error)), "it is told")
    run.end("FINISHED", timeout=LIMIT_S)
    assert said.fullmatch(str(run.error))
    assert kept_in(tmp_path) == []
    following, earlier = runs(server)
    assert following.info.run_id == info_of(run).run_id
    check(earlier, server)


def test_a_whole_run_of_a_dead_notebook_is_made_by_the_next(
    notebook: Notebook, server: RestServer, tmp_path: Path
) -> None:
    server.refuse = 503
    training = Training(notebook)
    training.go_on()
    training.run.end("FINISHED", timeout=LIMIT_S)
    end_of(notebook)
    server.refuse = None
    run = notebook.begin("next")
    wait_until(lambda: run.info() and "and 1 whole runs are" in str(run.error), "it is told")
    run.end("FINISHED", timeout=LIMIT_S)
    [earlier] = [one for one in runs(server) if one.info.run_id != info_of(run).run_id]
    check(earlier, server)
    assert list((tmp_path / "xdg_state_home" / "serverless-gpu").iterdir()) == []


@pytest.fixture
def uri(clean_environment: None, empty_store: Path) -> str:
    return f"sqlite:///{shutil.copy(empty_store, os.path.abspath('mlflow.db'))}"


def kept(uri: str, run_id: str, key: str = "m") -> spool.Spool:
    made = spool.Spool(uri)
    made.keep(log=[run_id, [[key, 1.0, 1, 0]], [], []])
    return made


def test_only_one_takes_up_a_file_and_none_while_its_writer_lives(uri: str) -> None:
    client = MlflowClient(tracking_uri=uri)
    run_id = client.create_run("0").info.run_id
    alive, dead = kept(uri, run_id, "alive"), kept(uri, run_id, "dead")
    dead.set_aside()
    first, second = Leftovers(), Leftovers()
    first.look(uri)
    second.look(uri)
    assert second.write() is None
    assert first.write() == (uri, "MLflow: an earlier notebook's 1 values are in the store now")
    second.look(uri)
    assert (first.write(), second.write()) == (None, None)
    assert set(client.get_run(run_id).data.metrics) == {"dead"}
    alive.set_aside()
    second.look(uri)
    assert second.write() is not None
    assert set(client.get_run(run_id).data.metrics) == {"alive", "dead"}
    assert spool.files(uri) == []


def test_files_of_other_stores_and_of_no_store_are_left_alone(uri: str) -> None:
    other = kept(uri + "2", "0" * 32)
    path = other.set_aside()
    assert path is not None
    (path.parent / f"mlflow-{path.name[-12:]}").write_text("not ours")
    assert spool.files(uri) == []
    assert spool.files(uri + "2") == [path]


def test_a_file_that_the_store_refuses_in_part_is_done_with_and_that_is_told(uri: str) -> None:
    run_id = MlflowClient(tracking_uri=uri).create_run("0").info.run_id
    dead = kept(uri, run_id)
    dead.keep(log=["0" * 32, [["lost", 1.0, 1, 0]], [], []])
    dead.set_aside()
    leftovers = Leftovers()
    leftovers.look(uri)
    done = leftovers.write()
    assert done is not None
    assert f"values are in the store now, which refused 1: run {'0' * 32}: " in done[1]
    assert spool.files(uri) == []


def test_a_store_that_is_away_again_is_asked_again_later(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = MlflowClient(tracking_uri=uri).create_run("0").info.run_id
    kept(uri, run_id).set_aside()
    leftovers = Leftovers()
    leftovers.look(uri)
    with monkeypatch.context() as patch:

        def away(*_: object) -> None:
            raise OSError("away")

        patch.setattr("serverless_gpu.tracking.leftovers.replay", away)
        assert leftovers.write() is None
    leftovers.look(uri)
    assert leftovers.write() is not None


def test_the_command_leaves_a_running_notebooks_file_to_it(
    uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = MlflowClient(tracking_uri=uri).create_run("0").info.run_id
    alive = kept(uri, run_id)
    assert cli.main(["mlflow-replay", str(alive.path)]) == 1
    assert "is in use by a notebook that runs" in capsys.readouterr().err
    path = alive.set_aside()
    assert cli.main(["mlflow-replay", str(path)]) == 0
    assert cli.main(["mlflow-replay", str(path)]) == 1
    assert "No such file" in capsys.readouterr().err
