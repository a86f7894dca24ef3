"""The notebook's side of tracking: begins and ends runs without ever waiting for a store.

    tracker = Tracker(connect)
    run = tracker.begin(call_id, capture_context(name), tags={}, mode="always")
    ... run.rank_config() to each rank; run.info() until the link is known ...
    run.end("FINISHED")

Never imports mlflow.
"""

from __future__ import annotations

import collections
import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable, Mapping

from serverless_gpu import environ
from serverless_gpu.tracking.ahead import Ahead
from serverless_gpu.tracking.context import TrackingContext, capture_context
from serverless_gpu.tracking.facts import call_tags
from serverless_gpu.tracking.handle import (
    END_LIMIT_S,
    REMOTE_LIMIT_S,
    WAIT_S,
    RunHandle,
    RunInfo,
    Status,
)
from serverless_gpu.tracking.packets import (
    Assembler,
    Began,
    Begin,
    Bye,
    End,
    Ended,
    Hello,
    packets,
)
from serverless_gpu.tracking.settings import Mode, mode, tracking_environment

__all__ = [
    "END_LIMIT_S",
    "REMOTE_LIMIT_S",
    "RunHandle",
    "RunInfo",
    "Status",
    "Tracker",
    "TrackingContext",
    "call_tags",
    "capture_context",
    "mode",
]

CLOSE_S = 0.5
RECONNECT_S = 1.0  # at least this long between two attempts to reach a tracker that is away

_SEND_BYTES = 4 << 20
_LOOK_S = 0.01


class Tracker:
    """The notebook's connection to the tracker process. Owns one socket.

    Threads: any; one lock, never held while waiting.
    Fork: a child of the notebook must not use it, and its copy does nothing.
    Destruction: close(), or the end of the process, ends the tracker too.
    """

    def __init__(self, connect: Callable[[], str]) -> None:
        """``connect`` returns the path of the tracker's socket and starts the service if there is
        none. It must not wait for the service; what it raises becomes the runs' ``error``."""
        self._connect = connect
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._path = ""
        self._sock: socket.socket | None = None
        self._assembler = Assembler()
        self._outgoing: collections.deque[bytes] = collections.deque()
        self._ahead = Ahead()
        self._handles: dict[str, RunHandle] = {}  # of calls that have not ended
        # There may be news of these, too: a store that is back has got what was kept for it.
        self._ended: weakref.WeakValueDictionary[str, RunHandle] = weakref.WeakValueDictionary()
        self._failed_at = 0.0

    def begin(
        self, call_id: str, context: TrackingContext, *, tags: Mapping[str, str], mode: Mode
    ) -> RunHandle:
        """Asks for a run and returns at once. ``mode`` is "always" or "lazy" (the run is made when
        a rank first uses MLflow). Never raises for a store or tracker that is away. The run may be
        known at once (ahead.py)."""
        begin = Begin(
            call=call_id,
            tracking_uri=context.tracking_uri,
            experiment=context.experiment,
            experiment_id=context.experiment_id,
            parent_run_id=context.parent_run_id,
            run_id=context.run_id,
            run_name=context.run_name,
            protected=context.protected,
            tags=dict(tags),
            lazy=mode == "lazy",
            cwd=context.cwd or os.getcwd(),
            environment=tracking_environment(environ.now()),
            started_ms=time.time_ns() // 1_000_000,
        )
        with self._lock:
            begin, announced = self._ahead.announce(begin)
            handle = self._handles[call_id] = RunHandle(self, begin, announced)
            self._failed_at = 0.0
            self._post(begin)
        return handle

    def close(self, start_limit_s: float = 0.0) -> str:
        """Tells the tracker to end; runs still open become KILLED. Waits until it has received that
        and all before, CLOSE_S at most, but for nothing that it does. If it has not even started it
        is given ``start_limit_s`` for that. Returns what is lost, in words; "" if nothing."""
        deadline = time.monotonic() + start_limit_s
        while not self._address()[1] and self._outgoing and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        with self._lock:
            if self._sock is None:
                count = len(self._handles)
                runs = "the run is" if count == 1 else f"{count} runs are"
                return f"MLflow: no tracker came up; {runs} not recorded" if count else ""
            self._post(Bye())
            if self._sock is not None and not self._outgoing:
                poller = select.poll()
                poller.register(self._sock, select.POLLRDHUP)
                poller.poll(CLOSE_S * 1000)
            self._disconnect()
            return ""

    # ---- used by RunHandle

    def _post(self, message: object) -> None:
        with self._lock:
            self._outgoing.extend(packets(message))
            self._exchange()

    def _address(self) -> tuple[str, bool]:
        with self._lock:
            if self._sock is None:
                self._exchange()
            return self._path, self._sock is not None

    def _finish(self, handle: RunHandle, end: End, timeout: float) -> None:
        call_id = end.call
        self._post(end)
        if timeout <= 0:
            return  # the tracker goes on by itself; its answer is taken by a later exchange
        deadline = time.monotonic() + timeout
        while call_id in self._handles and time.monotonic() < deadline:
            self._wait_readable(min(WAIT_S, max(0.0, deadline - time.monotonic())))
            self._exchange()
        with self._lock:
            # It stays among the handles: should the tracker die, its successor must end the run.
            if call_id in self._handles and handle.error is None and not handle.remote:
                handle.error = f"MLflow: the run was not ended within {timeout:g} s"

    def _wait_readable(self, limit_s: float) -> None:
        sock = self._sock
        descriptor = sock.fileno() if sock is not None else -1
        poller = select.poll()  # select() knows no descriptor above 1023
        if descriptor >= 0:
            poller.register(descriptor, select.POLLIN)
        poller.poll(limit_s * 1000)

    def _exchange(self) -> None:
        """Connects, sends and receives what can be done without waiting."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._sock is None and not self._open():
                return
            try:
                self._send_waiting()
                self._receive_waiting()
            except OSError as error:
                self._lost(f"MLflow: the tracker has ended ({error})")

    def _open(self) -> bool:
        wanted = self._outgoing or self._handles
        if not wanted or time.monotonic() < self._failed_at + RECONNECT_S:
            return False
        try:
            self._path = self._connect()
        except Exception as error:
            self._unreachable(error)
            return False
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
            sock.setblocking(False)
            sock.connect(self._path)
        except (FileNotFoundError, BlockingIOError):  # it is being started: again, soon
            sock.close()
            return False
        except OSError as error:
            sock.close()
            self._unreachable(error)
            return False
        self._sock, self._assembler = sock, Assembler()
        self._outgoing.extendleft(packets(Hello("notebook", "", -1)))
        return True

    def _unreachable(self, error: Exception) -> None:
        self._failed_at = time.monotonic()
        for handle in self._handles.values():
            handle.error = handle.error or f"MLflow: no tracker: {error}"

    def _send_waiting(self) -> None:
        assert self._sock is not None
        while self._outgoing:
            try:
                self._sock.send(self._outgoing[0])
            except BlockingIOError:
                return
            self._outgoing.popleft()

    def _receive_waiting(self) -> None:
        assert self._sock is not None
        while True:
            try:
                packet = self._sock.recv(1 << 17)
            except BlockingIOError:
                return
            if not packet:
                raise ConnectionResetError("end of file")
            self._take(self._assembler.feed(packet))

    def _take(self, message: object) -> None:
        if isinstance(message, Began):
            handle = self._handles.get(message.call) or self._ended.get(message.call)
            if handle is None:
                return
            handle.error = message.error
            if message.info is not None:
                handle._info, handle._made = RunInfo(**message.info), True
            self._ahead.learn(handle._begin, handle._info, message)
        elif isinstance(message, Ended) and message.call in self._handles:
            handle = self._ended[message.call] = self._handles.pop(message.call)
            handle.error = message.error or handle.error

    def _lost(self, reason: str) -> None:
        """The tracker is gone: a new one is told about the calls that are still open."""
        self._disconnect()
        self._failed_at = time.monotonic()
        for handle in self._handles.values():
            handle.error = reason
            begin = handle._begin
            if handle._info is not None:  # made, or perhaps only announced
                begin = begin._replace(run_id=handle._info.run_id)
            if handle._end is None or not handle._made:
                self._outgoing.extend(packets(begin))
            if handle._end is not None:
                self._outgoing.extend(packets(handle._end))

    def _disconnect(self) -> None:
        if self._sock is not None:
            self._sock.close()
        self._sock = None
        self._outgoing.clear()
        self._ahead.forget()
