"""Links that are there before their runs: nothing waits, nothing is left over, nothing is wrong."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from mlflow import MlflowClient

from serverless_gpu.tracking import ahead
from serverless_gpu.tracking.client import RunHandle, RunInfo

from .support import LIMIT_S, Notebook, info_of, wait_until
from .test_semantics import all_runs


def log_one() -> str:
    import mlflow

    mlflow.log_metric("m", 1.0)
    return str(mlflow.active_run().info.run_id)


def first_run(notebook: Notebook, name: str | None = None) -> RunInfo:
    """A whole call, after which the tracker is known to make runs."""
    run = notebook.begin(name)
    info = info_of(run)
    run.end("FINISHED", timeout=LIMIT_S)
    return info


@contextmanager
def stopped(notebook: Notebook) -> Iterator[None]:
    """The tracker does nothing meanwhile, whatever it is sent."""
    notebook.trackers[-1].kill(signal.SIGSTOP)
    try:
        yield
    finally:
        notebook.trackers[-1].kill(signal.SIGCONT)


def test_the_next_run_of_a_place_is_known_before_the_tracker_has_even_looked(
    notebook: Notebook,
) -> None:
    first = first_run(notebook)
    with stopped(notebook):
        before = int(time.time() * 1000)
        run = notebook.begin(source="cell")
        after = int(time.time() * 1000)
        known = run.info()
        assert len(all_runs()) == 1
    assert known is not None
    assert known.url == (first.url and first.url.replace(first.run_id, known.run_id))
    assert run.rank_config()["tracking_uri"] == first.tracking_uri  # no rank looks for it
    [used] = notebook.run(run, notebook.ranks(1), log_one)
    run.end("FINISHED", timeout=LIMIT_S)
    assert (run.error, used) == (None, known.run_id)
    made = MlflowClient(tracking_uri=known.tracking_uri).get_run(known.run_id)
    assert (made.info.run_name, made.info.status) == (known.name, "FINISHED")
    assert (made.data.metrics, made.data.tags["source"]) == ({"m": 1.0}, "cell")
    assert made.info.artifact_uri == known.artifact_uri
    assert before <= made.info.start_time <= after


def test_a_store_of_plain_files_makes_announced_runs_too(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{os.getcwd()}/files")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    first = first_run(notebook)
    with stopped(notebook):
        run = notebook.begin()
        known = run.info()
    assert known is not None and known.run_id != first.run_id
    run.end("FINISHED", timeout=LIMIT_S)
    made = MlflowClient(tracking_uri=known.tracking_uri).get_run(known.run_id)
    assert (made.info.run_name, made.info.status) == (known.name, "FINISHED")
    assert made.info.artifact_uri == known.artifact_uri


def test_a_name_of_the_users_is_the_name(notebook: Notebook) -> None:
    first_run(notebook, "first")
    with stopped(notebook):
        run = notebook.begin("second")
        assert (known := run.info()) is not None and known.name == "second"
    run.end("FINISHED", timeout=LIMIT_S)
    assert sorted(one.info.run_name for one in all_runs()) == ["first", "second"]


def test_a_run_starts_and_ends_when_its_call_does_however_late_it_is_written(
    notebook: Notebook,
) -> None:
    first_run(notebook)
    with stopped(notebook):
        run = notebook.begin()
        run.end("FINISHED", timeout=0)
        over = int(time.time() * 1000)
        wait_until(lambda: time.time() * 1000 > over + 2, "it is later by the clock")
    wait_until(run.ended, "the run is ended")
    known = info_of(run)
    made = MlflowClient(tracking_uri=known.tracking_uri).get_run(known.run_id)
    assert made.info.start_time <= made.info.end_time <= over


@pytest.mark.parametrize("over", [False, True])
def test_a_run_whose_tracker_died_before_it_was_made_is_made_by_the_next(
    notebook: Notebook, over: bool
) -> None:
    first_run(notebook)
    notebook.trackers[-1].kill(signal.SIGSTOP)
    run = notebook.begin()
    known = info_of(run)
    if over:
        run.end("FINISHED", timeout=0)
    notebook.trackers[-1].kill(signal.SIGKILL)
    notebook.trackers[-1].wait()
    wait_until(lambda: run.info() and len(all_runs()) == 2, "the run is made")
    run.end("FINISHED", timeout=LIMIT_S)
    wait_until(run.ended, "the run is ended")
    made = MlflowClient(tracking_uri=known.tracking_uri).get_run(known.run_id)
    assert (made.info.status, made.info.run_name) == ("FINISHED", known.name)
    assert len(all_runs()) == 2


def test_a_run_that_a_dead_tracker_has_made_unseen_is_used_again(notebook: Notebook) -> None:
    first_run(notebook)
    run = notebook.begin()
    known = info_of(run)
    wait_until(lambda: len(all_runs()) == 2, "the run is made")  # and nobody has read the answer
    notebook.trackers[-1].kill(signal.SIGKILL)
    notebook.trackers[-1].wait()
    run.end("FINISHED", timeout=LIMIT_S)
    wait_until(run.ended, "the run is ended")
    assert {one.info.status for one in all_runs()} == {"FINISHED"}
    assert known.run_id in {one.info.run_id for one in all_runs()}
    assert len(all_runs()) == 2


def asked_while_stopped(notebook: Notebook) -> RunHandle:
    with stopped(notebook):
        run = notebook.begin()
        assert run.info() is None
    return run


def test_nothing_is_announced_for_another_place(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = first_run(notebook)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "another")
    run = asked_while_stopped(notebook)
    assert info_of(run).experiment_id != first.experiment_id
    run.end("FINISHED", timeout=LIMIT_S)
    monkeypatch.setenv("MLFLOW_RUN_ID", first.run_id)
    resumed = asked_while_stopped(notebook)
    assert info_of(resumed).run_id == first.run_id
    resumed.end("FINISHED", timeout=LIMIT_S)


def test_nothing_is_announced_once_the_stores_file_is_another_one(notebook: Notebook) -> None:
    first_run(notebook)
    os.rename("mlflow.db", "old.db")
    run = asked_while_stopped(notebook)
    info_of(run)
    run.end("FINISHED", timeout=LIMIT_S)
    assert (run.error, len(all_runs())) == (None, 1)


def test_nothing_is_announced_for_a_call_that_may_never_need_a_run(notebook: Notebook) -> None:
    first_run(notebook)
    run = notebook.begin(mode="lazy")
    assert run.info() is None
    run.end("FINISHED", timeout=LIMIT_S)
    assert len(all_runs()) == 1


def test_a_run_that_comes_to_be_elsewhere_replaces_the_announced_one(notebook: Notebook) -> None:
    first = first_run(notebook)
    client = MlflowClient(tracking_uri=first.tracking_uri)
    client.delete_experiment(first.experiment_id)
    run = notebook.begin()
    announced = info_of(run)
    text = wait_until(lambda: run.info() and run.error, "it is told")
    assert "is deleted: restore it" in text
    assert info_of(run).run_id != announced.run_id
    run.end("FINISHED", timeout=LIMIT_S)
    assert asked_while_stopped(notebook).info() is None


def test_a_notebook_is_never_far_ahead_of_its_store(notebook: Notebook) -> None:
    first_run(notebook)
    with stopped(notebook):
        runs = [notebook.begin() for _ in range(ahead.NAMES + 1)]
        assert [run.info() is not None for run in runs] == [True] * ahead.NAMES + [False]
    for run in runs:
        run.end("FINISHED", timeout=LIMIT_S)
    assert {info_of(run).run_id for run in runs} < {run.info.run_id for run in all_runs()}
    assert len(all_runs()) == 1 + len(runs)
    with stopped(notebook):
        assert notebook.begin().info() is not None
