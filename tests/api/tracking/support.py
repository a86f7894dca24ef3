"""A notebook, its tracker and its ranks for tests: real processes, the product's own code."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

import cloudpickle

import serverless_gpu.tracking.client as client_module
from serverless_gpu.tracking.client import RunHandle, RunInfo, Tracker, capture_context

ROOT = Path(client_module.__file__).parents[2]
#: For child processes: this source tree, then what the tests were given, as another MLflow.
PYTHONPATH = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
LIMIT_S = 60.0  # for anything in these tests to happen; reaching it fails the test


class RankFailed(Exception):
    """The function raised in a rank; the text is 'TypeName: message'."""


class ForkServer:
    def __init__(self, folder: Path) -> None:
        self.address = str(folder / "fork-server")
        environ = {**os.environ, "PYTHONPATH": PYTHONPATH}
        script = str(Path(__file__).with_name("processes.py"))
        self._process = subprocess.Popen(
            [sys.executable, script, self.address], env=environ, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def fork(self, role: str, argument: Any = None) -> tuple[Connection, int, int]:
        """Connection, pid and pidfd of a new child; the pidfd is opened before it may end."""
        connection = Client(self.address, family="AF_UNIX")
        pid = connection.recv()
        pidfd = os.pidfd_open(pid)
        connection.send((role, argument))
        return connection, pid, pidfd

    def close(self) -> None:
        self._process.kill()
        self._process.wait(LIMIT_S)


class Process:
    """A child of the fork server, known by pidfd: its pid cannot be mistaken."""

    def __init__(self, connection: Connection, pid: int, pidfd: int) -> None:
        self.connection = connection
        self.pid = pid
        self.pidfd = pidfd

    def kill(self, signum: int = signal.SIGKILL) -> None:
        signal.pidfd_send_signal(self.pidfd, signum)

    def wait(self) -> None:
        assert select.select([self.pidfd], [], [], LIMIT_S)[0], f"process {self.pid} has not ended"

    def ended(self) -> bool:
        return bool(select.select([self.pidfd], [], [], 0)[0])

    def close(self) -> None:
        if not self.ended():
            self.kill()
        self.wait()
        self.connection.close()
        os.close(self.pidfd)


class Rank(Process):
    """Runs functions; see Ranks for how."""

    def start(self, rank: int, config: Any, function: Callable[..., Any], *arguments: Any) -> None:
        cloudpickle.register_pickle_by_value(sys.modules[function.__module__])
        job = {
            "rank": rank,
            "config": config,
            "cwd": os.getcwd(),
            "environ": dict(os.environ),
            "work": cloudpickle.dumps((function, arguments)),
        }
        self.connection.send(job)
        self.warnings: list[str] = []

    def result(self) -> Any:
        assert self.connection.poll(LIMIT_S), f"rank process {self.pid} does not answer"
        kind, value, self.warnings = self.connection.recv()
        if kind == "error":
            raise RankFailed(value)
        return value


class Notebook:
    """The test's own process as the notebook."""

    def __init__(self, fork_server: ForkServer, folder: Path) -> None:
        self._fork_server = fork_server
        self._folder = folder
        self._calls = 0
        self._processes: list[Process] = []
        self.trackers: list[Process] = []
        self.tracker = Tracker(self._connect)

    def _connect(self) -> str:
        if not self.trackers or self.trackers[-1].ended():
            self.start_tracker(os.getpid())
        return self.socket

    @property
    def socket(self) -> str:
        return str(self._folder / f"tracker{len(self.trackers)}")

    def start_tracker(self, notebook_pid: int) -> Process:
        path = str(self._folder / f"tracker{len(self.trackers) + 1}")
        config = {"socket": path, "notebook_pid": notebook_pid, "cwd": os.getcwd(), "env": {}}
        self.trackers.append(Process(*self._fork_server.fork("tracker", config)))
        return self.trackers[-1]

    def ranks(self, count: int) -> list[Rank]:
        made = [Rank(*self._fork_server.fork("rank")) for _ in range(count)]
        self._processes += made
        return made

    def begin(self, name: str | None = None, *, mode: Any = "always", **tags: str) -> RunHandle:
        self._calls += 1
        call_id = f"call{self._calls}"
        return self.tracker.begin(call_id, capture_context(name), tags=tags, mode=mode)

    def start(
        self, run: RunHandle, ranks: list[Rank], function: Callable[..., Any], *arguments: Any
    ) -> None:
        for number, rank in enumerate(ranks):
            rank.start(number, run.rank_config(), function, *arguments)

    def run(
        self, run: RunHandle, ranks: list[Rank], function: Callable[..., Any], *arguments: Any
    ) -> list[Any]:
        """Runs function(*arguments) on all ranks within the call, as the kernel would: somebody
        looks at the handle now and then."""
        self.start(run, ranks, function, *arguments)
        done = threading.Event()
        watcher = threading.Thread(target=_watch, args=(run, done))
        watcher.start()
        try:
            return [rank.result() for rank in ranks]
        finally:
            done.set()
            watcher.join(LIMIT_S)

    def call(self, count: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """A whole call on fresh ranks, which ends as the product would end it."""
        run = self.begin()
        try:
            values = self.run(run, self.ranks(count), function, *arguments)
        except RankFailed:
            run.end("FAILED", timeout=LIMIT_S)
            raise
        run.end("FINISHED", timeout=LIMIT_S)
        assert run.error is None
        return values

    def close(self) -> None:
        self.tracker.close()
        for process in self._processes + self.trackers:
            process.close()


def _watch(run: RunHandle, done: threading.Event) -> None:
    while not done.wait(0.05):
        run.info()


def wait_until(condition: Callable[[], Any], what: str) -> Any:
    """The first true value of condition(); fails after LIMIT_S."""
    pause = threading.Event()
    for _ in range(int(LIMIT_S / 0.02)):
        if value := condition():
            return value
        pause.wait(0.02)
    raise AssertionError(f"did not happen within {LIMIT_S:.0f} s: {what}")


def info_of(run: RunHandle) -> RunInfo:
    info: RunInfo = wait_until(run.info, f"the run is made (error: {run.error})")
    return info
