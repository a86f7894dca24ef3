"""The notebook's one pool of rank processes, and the helper processes beside the ranks."""

from __future__ import annotations

import atexit
import errno
import json
import os
import resource
import sys
import threading
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from . import _core, output, stops
from .errors.types import Shown
from .rank import in_rank

if TYPE_CHECKING:
    from .tracking.client import Tracker

_GUARD = str(Path(_core.__file__).parent / "serverless-gpu-guard")
_PACKAGE_PARENT = str(Path(__file__).resolve().parent.parent)

#: The fork server imports nothing from the notebook's folder, where a file may be called random.py.
_FORK_SERVER = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; "
    f"sys.path.append({_PACKAGE_PARENT!r}); "
    "from serverless_gpu.rank.fork_server import main; main()"
)
#: A trouble that begins so is explained by what the fork server printed.
_ENDED = "the fork server ended"
#: What the tracker may take after the notebook's end, to write what ranks have logged, in seconds.
TRACKER_LINGER = 2.0
#: Seconds that the end of a notebook waits for a tracker that has not started yet.
TRACKER_START = 10.0
#: So many rendezvous processes in a row may end before they are up; then there is none.
_STORE_ATTEMPTS = 3


class PoolError(Shown, RuntimeError):
    """The processes behind the notebook could not be started or have ended."""


class Pool:
    """Owns the C++ pool. One per notebook process; `get` makes it and replaces a broken one.

    Threads: any.
    """

    def __init__(self) -> None:
        #: Names this pool in the store and to the tracker.
        self.token = uuid.uuid4().hex[:12]
        try:
            self.core = _core.RankPool(
                guard=_GUARD, fork_server=[sys.executable, "-c", _FORK_SERVER]
            )
            self.output = output.Output(self.core, self._lost)
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread can be made
            raise PoolError(
                f"the rank processes could not be started: {error}{_limit_behind(error)}"
            ) from error
        self.folder = Path(self.core.folder)
        self._lock = threading.RLock()
        self._store_file = self.folder / "store"
        self._store: tuple[int, str] | None = None
        self._store_before: tuple[int, int] | None = None  # its file, when the process was started
        self._store_failures = 0  # in a row
        self._tracker_service: tuple[int, str] | None = None
        self._tracker: Tracker | None = None
        self._trackers = 0
        self.ready = self.core.fork_server_ready()

    def _lost(self) -> None:
        """The guard has died: the session's GPUs are free now, not only from its next cell on."""
        sessions = sys.modules.get("serverless_gpu.sessions")
        if sessions is not None:
            sessions.session().lost(self)

    def fork_server_up(self) -> bool:
        """Whether calls find a warm fork server, that has everything imported."""
        return bool(self.ready.answers().get(int(_core.Imports.all)))

    def forked(self, members: Iterable[tuple[int, int]]) -> bool:
        """Whether these ranks are there, each with its child."""
        there = self.core.pids()["children"]
        return all(child in there for _, child in members)

    def import_seconds(self, needed: _core.Imports = _core.Imports.all) -> float:
        """What the fork server has spent on these imports; 0 if it does not have them yet."""
        answer = self.ready.answers().get(int(needed))
        return sum(json.loads(answer)["imports"].values()) if answer else 0.0

    def _service(
        self,
        old: tuple[int, str] | None,
        entry: str,
        path: Path,
        linger: float,
        config: dict[str, object],
        needed: _core.Imports,
    ) -> tuple[int, str]:
        """The running service, or a new one in its place if it has died: child and path."""
        if old is not None and old[0] not in self.core.dead_children():
            return old
        child, _ = self.core.start_service(entry, json.dumps(config), linger, needed)
        return child, str(path)

    def store_file(self) -> str:
        """The file in which ranks find the rendezvous' port; starts its process if need be."""
        with self._lock:
            if self._store_failures >= _STORE_ATTEMPTS:  # there may be room for it now
                self._store_file.unlink(missing_ok=True)
            self._store_failures = 0
            return self.keep_store()

    def keep_store(self) -> str:
        """The same while a call runs. A rendezvous that has died is replaced, under the same name:
        ranks that wait for it find the new one. If none comes up the file says why."""
        with self._lock:
            path = self._store_file
            dead = self.core.dead_children().get(self._store[0]) if self._store else None
            if dead is not None and _identity(path) == self._store_before:
                self._store_failures += 1
                if self._store_failures == _STORE_ATTEMPTS:
                    self._refuse_store(path, bool(dead["pid"]))
            if self._store_failures < _STORE_ATTEMPTS and (dead or self._store is None):
                self._store_before = _identity(path)
                entry = "serverless_gpu.rank.rendezvous:main"
                self._store = self._service(
                    self._store, entry, path, 0, {"store_file": str(path)}, _core.Imports.torch
                )
            return str(path)

    def _refuse_store(self, path: Path, forked: bool) -> None:
        limit = "it ended at its start (see ulimit -u, and pids.max of the cgroup)"
        why = limit if forked else self.why_dead() or limit
        new = path.with_name("store.new")
        new.write_text(
            json.dumps({"refused": f"the process in which ranks meet cannot run: {why}"})
        )
        new.rename(path)

    def _tracker_socket(self) -> str:
        with self._lock:
            old = self._tracker_service
            if old is None or old[0] in self.core.dead_children():
                self._trackers += 1
                if old is not None:
                    Path(old[1]).unlink(missing_ok=True)  # a killed one leaves its socket
            path = self.folder / f"tracker-{self._trackers}"
            config: dict[str, object] = {
                "socket": str(path),
                "notebook_pid": os.getpid(),
                "cwd": os.getcwd(),
                "env": {},
                "outlives_guard": True,
            }
            entry = "serverless_gpu.tracking.tracker:main"
            self._tracker_service = self._service(
                old, entry, path, TRACKER_LINGER, config, _core.Imports.tracking
            )
            return self._tracker_service[1]

    def start_tracker(self) -> None:
        """Has the tracker's process up before the first call needs it. It opens no store yet."""
        self._tracker_socket()

    def tracker(self) -> Tracker:
        """The connection to the process that owns the MLflow store."""
        from .tracking.client import Tracker

        with self._lock:
            if self._tracker is None:
                self._tracker = Tracker(self._tracker_socket)
            return self._tracker

    def _end_tracking(self) -> None:
        """A quick first call may be over before there is a tracker: its run must not be lost."""
        if self._tracker is not None:
            lost = self._tracker.close(0.0 if self.core.trouble else TRACKER_START)
            if lost:
                print(lost, file=sys.stderr)

    def why_dead(self) -> str:
        """What is known about a process that ended unexpectedly: one line, "" if nothing."""
        trouble = str(self.core.trouble)
        if not trouble.startswith(_ENDED):
            return trouble
        last = last_line(self.folder / "fork_server.log")
        return f"{trouble}: {last}" if last else trouble


def last_line(path: Path | str) -> str:
    """Of a log; "" if there is none."""
    try:
        return (Path(path).read_text(errors="replace").strip().splitlines() or [""])[-1]
    except OSError:
        return ""


def _identity(path: Path) -> tuple[int, int] | None:
    """Changes with the file's content."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _limit_behind(error: Exception) -> str:
    """The limit that made the system refuse, in brackets, if one did."""
    number = getattr(error, "errno", None)
    if number == errno.EMFILE:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return f" (ulimit -n is {most}; raise it with resource.setrlimit)"
    if number == errno.EAGAIN or isinstance(error, RuntimeError):
        return " (see ulimit -u, and pids.max of the cgroup)"
    return ""


_pool: Pool | None = None
_lock = threading.Lock()


def get() -> Pool:
    """The notebook's pool; started if there is none, replaced if its guard has died.

    Raises PoolError if the processes cannot be started.
    """
    global _pool
    if in_rank():
        raise PoolError("a rank has no ranks of its own")
    with _lock:
        if _pool is not None and _pool.core.broken:
            # Its end waits for the dead guard's other half to clean up.
            threading.Thread(target=_discard, args=[_pool]).start()
            _pool = None
        if _pool is None:
            with stops.held():
                _pool = Pool()
        return _pool


def _discard(pool: Pool) -> None:
    pool.core.end()
    pool.output.close()


def running() -> Pool | None:
    """The pool if there is one."""
    return _pool


def stop() -> None:
    """Ends every process of the pool and waits until they are gone; the next call starts anew. An
    idle session's ranks run their exit handlers first."""
    global _pool
    sessions = sys.modules.get("serverless_gpu.sessions")
    if _pool is not None and sessions is not None:
        sessions.session().leave()
    with _lock, stops.held():
        old, _pool = _pool, None
        if old is not None:
            old._end_tracking()
            _discard(old)


def _forget() -> None:
    """A forked process has no pool: its parent's is not its own, nor is anything that its parent's
    threads held at the fork."""
    global _pool, _lock
    _pool, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)
atexit.register(stop)
