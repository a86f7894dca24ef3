"""Processes that die at the wrong moment: nothing that was logged is lost, nothing is left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from .support import LIMIT_S, PYTHONPATH, Notebook, info_of, wait_until
from .test_semantics import all_runs

POINTS = 500


def history(run_id: str, key: str) -> list[Any]:
    client = MlflowClient(tracking_uri=f"sqlite:///{os.getcwd()}/mlflow.db")
    return client.get_metric_history(run_id, key)


def log_points_and_die() -> None:
    import mlflow

    for step in range(POINTS):
        mlflow.log_metric("m", step, step=step)
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_rank_loses_nothing_that_log_metric_returned_from(notebook: Notebook) -> None:
    run = notebook.begin()
    info = info_of(run)
    ranks = notebook.ranks(2)
    notebook.start(run, ranks, log_points_and_die)
    for rank in ranks:
        rank.wait()
    run.end("FAILED", {"serverless_gpu.failed_rank": "0"}, timeout=LIMIT_S)
    assert len(history(info.run_id, "m")) == 2 * POINTS
    assert all_runs()[0].info.status == "FAILED"


NOTEBOOK = """
import os, shutil, sys, time
from serverless_gpu.tracking.client import Tracker, capture_context
tracker = Tracker(lambda: sys.stdin.readline().strip())
run = tracker.begin("call1", capture_context(None), tags={}, mode="always")
while run.info() is None:
    time.sleep(0.01)
if sys.argv[1] == "with child" and os.fork() == 0:
    time.sleep(1000)  # holds copies of all of the notebook's sockets
import json
print(json.dumps(run.rank_config()), flush=True)
sys.stdin.readline()
if sys.argv[1] == "bye":
    run.log_folder("logs", "logs")
    tracker.close()
    shutil.rmtree("logs")  # as the guard does
    print("closed", flush=True)
    time.sleep(1000)
"""


class OtherNotebook:
    """A notebook in a process of its own, so that it can be killed."""

    def __init__(self, notebook: Notebook, behaviour: str) -> None:
        environ = {**os.environ, "PYTHONPATH": PYTHONPATH}
        self.process = subprocess.Popen(
            [sys.executable, "-c", NOTEBOOK, behaviour],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.tracker = notebook.start_tracker(self.process.pid)
        wait_until(lambda: os.path.exists(notebook.socket), "the tracker listens")
        self.say(notebook.socket)
        assert self.process.stdout is not None
        self.rank_config = json.loads(self.process.stdout.readline())

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def end(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate(timeout=LIMIT_S)


def log_points() -> None:
    import mlflow

    for step in range(POINTS):
        mlflow.log_metric("m", step, step=step)


@pytest.mark.parametrize("behaviour", ["alone", "with child", "bye"])
def test_the_notebooks_end_kills_the_run_and_ends_the_tracker(
    notebook: Notebook, behaviour: str
) -> None:
    os.mkdir("logs")
    Path("logs", "rank-0.log").write_text("line\n")
    other = OtherNotebook(notebook, behaviour)
    try:
        [rank] = notebook.ranks(1)
        rank.start(0, other.rank_config, log_points)
        rank.result()
        if behaviour == "bye":
            other.say("now")
        else:
            other.process.kill()
        other.tracker.wait()
    finally:
        other.end()
    [run] = all_runs()
    assert run.info.status == "KILLED"
    assert len(history(run.info.run_id, "m")) == POINTS
    if behaviour == "bye":  # its logs were removed while they waited to be attached
        assert Path(run.info.artifact_uri, "logs", "rank-0.log").read_text() == "line\n"


def test_a_tracker_whose_store_hangs_ends_with_its_notebook_all_the_same(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and never answers
        other = OtherNotebook(notebook, "alone")
        [rank] = notebook.ranks(1)
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        rank.start(0, {**other.rank_config, "tracking_uri": uri}, log_points)
        silent.settimeout(LIMIT_S)
        silent.accept()
        other.process.kill()
        other.tracker.wait()
        other.end()


def test_a_tracker_that_comes_after_its_notebooks_end_ends(notebook: Notebook) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(LIMIT_S)
    notebook.start_tracker(gone.pid).wait()


def log_around(marker: str) -> tuple[str, str]:
    import mlflow

    mlflow.log_metric("before", 1.0)
    mlflow.get_run(mlflow.active_run().info.run_id)  # 'before' is written when this returns
    open(marker + os.environ["RANK"], "w").close()
    while not os.path.exists(marker + "go"):
        time.sleep(0.001)
    for step in range(10):
        mlflow.log_metric("after", 10 * int(os.environ["RANK"]) + step)
    mlflow.log_param("rank" + os.environ["RANK"], 1)
    mlflow.end_run()
    with mlflow.start_run() as run:
        return run.info.run_id, mlflow.get_run(run.info.run_id).info.status


def test_ranks_go_on_alone_when_the_tracker_is_killed(notebook: Notebook) -> None:
    run = notebook.begin()
    info = info_of(run)
    ranks = notebook.ranks(2)
    marker = os.path.join(os.getcwd(), "marker")
    notebook.start(run, ranks, log_around, marker)
    wait_until(lambda: os.path.exists(marker + "0") and os.path.exists(marker + "1"), "both log")
    notebook.trackers[0].kill()
    notebook.trackers[0].wait()
    open(marker + "go", "w").close()
    assert [rank.result() for rank in ranks] == [(info.run_id, "RUNNING")] * 2
    for rank in ranks:
        assert len([text for text in rank.warnings if "directly" in text]) == 1
    run.end("FINISHED", timeout=LIMIT_S)  # by a new tracker
    assert len(notebook.trackers) == 2
    [made] = all_runs()
    assert made.info.status == "FINISHED"
    assert made.data.params == {"rank0": "1", "rank1": "1"}
    assert len(history(info.run_id, "after")) == 20


def test_calls_after_a_trackers_death_are_tracked_again(notebook: Notebook) -> None:
    first = notebook.begin("first")
    info_of(first)
    notebook.trackers[0].kill()
    notebook.trackers[0].wait()
    wait_until(lambda: first.info() and first.error, "the death is noticed")
    notebook.call(2, log_points)
    first.end("FINISHED", timeout=LIMIT_S)
    assert [run.info.status for run in all_runs()] == ["FINISHED"] * 2


def test_a_socket_that_vanishes_disturbs_nobody_who_is_connected(notebook: Notebook) -> None:
    run = notebook.begin()
    info = info_of(run)
    shutil.rmtree(Path(notebook.socket).parent)
    run.log_text("x", "cell.py")
    run.end("FINISHED", timeout=LIMIT_S)
    assert run.error is None
    assert [made.info.status for made in all_runs()] == ["FINISHED"]
    assert os.path.exists(os.path.join(info.artifact_uri, "cell.py"))


def fork_and_log() -> None:
    import mlflow

    mlflow.log_metric("parent", 1.0)
    run_id = mlflow.active_run().info.run_id
    child = os.fork()
    try:
        for _ in range(50):  # both ask at the same time, and each must get its own answer
            if child:
                assert mlflow.get_experiment_by_name("project").name == "project"
            else:
                assert mlflow.get_run(run_id).info.run_id == run_id
        mlflow.log_metric("parent" if child else "child", 2.0)
    finally:
        if child == 0:
            os._exit(0 if sys.exc_info()[0] is None else 1)
    assert os.waitpid(child, 0)[1] == 0


def log_from_threads() -> None:
    import mlflow

    run_id = mlflow.active_run().info.run_id
    threads = [
        threading.Thread(
            target=mlflow.log_metric, args=(f"thread{n}", 1.0), kwargs={"run_id": run_id}
        )
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize(
    ("train", "keys"),
    [
        (fork_and_log, {"parent", "child"}),
        (log_from_threads, {"thread0", "thread1", "thread2", "thread3"}),
    ],
)
def test_children_and_threads_of_ranks_log_into_the_run(
    notebook: Notebook, train: Callable[[], None], keys: set[str]
) -> None:
    notebook.call(2, train)
    [run] = all_runs()
    assert set(run.data.metrics) == keys


def log_under_interrupts() -> int:
    """Interrupted all the time, at any point; returns how many metrics it knows to be logged."""
    import mlflow

    logged = 0
    mlflow.log_metric("warm", 1.0)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    for step in range(300):
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.00001 * (step % 40 + 1))
            mlflow.log_metric("m", step, step=step)
            logged += 1
            mlflow.MlflowClient().get_run(mlflow.active_run().info.run_id)
        except KeyboardInterrupt:
            continue
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    return logged


def test_interrupts_at_any_point_leave_the_link_usable(notebook: Notebook) -> None:
    def train() -> tuple[int, float]:
        import mlflow

        logged = log_under_interrupts()
        mlflow.log_metric("last", 1.0)
        run_id = mlflow.active_run().info.run_id
        return logged, mlflow.get_run(run_id).data.metrics["last"]

    [(logged, last)] = notebook.call(1, train)
    assert last == 1.0
    # More may have arrived: an interrupt can come between the send and the count.
    assert logged <= len(history(all_runs()[0].info.run_id, "m")) <= 300
