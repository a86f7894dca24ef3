"""A rank's connection to the tracker."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from serverless_gpu.tracking.packets import Answer, Ask, Assembler, Hello, PeerKind, packets

SOCKET_LIMIT_S = 10.0  # for a tracker that is being started to open its socket
SEND_LIMIT_S = 60.0  # for a tracker that has stopped reading
RUN_LIMIT_S = 60.0  # for the tracker to make the call's run
ANSWER_LIMIT_S = 600.0  # for anything else; MLflow's own retries against a server take minutes

_POLL_S = 0.005
_BUFFER_BYTES = 4 << 20  # the system clips it


class TrackerGone(ConnectionError):
    """The tracker cannot be reached, or has ended."""


class RankConfig(NamedTuple):
    """What the notebook tells a rank about the call (``RunHandle.rank_config``)."""

    socket: str  # "" if no tracker could be started
    call: str
    rank: int
    tracking_uri: str | None  # None: MLflow's default for the working directory
    experiment: str | None
    experiment_id: str | None
    starting: bool  # the tracker may not have opened its socket yet

    @staticmethod
    def parse(values: Mapping[str, Any]) -> RankConfig:
        """Unknown keys are ignored, optional ones may be missing."""
        return RankConfig(
            socket=values["socket"] or "",
            call=values["call"],
            rank=int(values["rank"]),
            tracking_uri=values.get("tracking_uri"),
            experiment=values.get("experiment"),
            experiment_id=values.get("experiment_id"),
            starting=bool(values.get("starting", False)),
        )


class _ThreadSockets(threading.local):
    """The two sockets of one thread. Two, because a message on ``data`` wakes nobody (the tracker
    looks at them 50 times a second), while one on ``calls`` wakes the tracker at once."""

    def __init__(self) -> None:
        self.data: socket.socket | None = None
        self.calls: socket.socket | None = None
        self.assembler = Assembler()
        self.number = 0


class Link:
    """Connects at the first use, once per thread and process.

    Threads: any; there is no lock. Fork: the child must call ``after_fork``.
    Errors: every method raises TrackerGone once the tracker cannot be reached.
    Interrupts: a KeyboardInterrupt at any point leaves the link usable.
    """

    def __init__(self, config: RankConfig) -> None:
        self.config = config
        self._mine = _ThreadSockets()

    def after_fork(self) -> None:
        """In a forked child: forget the parent's sockets, which stay open in the parent."""
        self.close()
        self._mine = _ThreadSockets()

    def connected(self) -> bool:
        """Whether this thread has sent or asked anything."""
        return self._mine.data is not None or self._mine.calls is not None

    def send(self, message: object) -> None:
        """One way. When it returns, nothing that happens to this process loses the message.
        Blocks while the tracker is more than some hundred messages behind."""
        mine = self._mine
        if mine.data is None:
            mine.data = self._open("data")
        try:
            for packet in packets(message):
                mine.data.send(packet)
        except OSError as error:
            raise TrackerGone(str(error)) from None

    def ask(self, uri: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Sends a question and blocks for its answer; raises what the tracker raised.

        Errors: TimeoutError after RUN_LIMIT_S ("!run") or ANSWER_LIMIT_S.
        """
        mine = self._mine
        if mine.calls is None:
            mine.calls = self._open("calls")
        mine.number += 1
        number = mine.number
        limit = RUN_LIMIT_S if method == "!run" else ANSWER_LIMIT_S
        try:
            mine.calls.settimeout(limit)
            for packet in packets(Ask(number, uri, method, args, kwargs)):
                mine.calls.send(packet)
            answer = self._receive(mine, number, time.monotonic() + limit)
        except TimeoutError:
            raise TimeoutError(
                f"MLflow: the tracker did not answer {method.lstrip('!')!r} of rank"
                f" {self.config.rank} within {limit:.0f} s"
            ) from None
        except OSError as error:
            raise TrackerGone(str(error)) from None
        if answer.error is not None:
            raise answer.error
        return answer.value

    def close(self) -> None:
        """Closes this thread's sockets; what was sent before still arrives. Those of other threads
        go with the link."""
        for sock in (self._mine.data, self._mine.calls):
            if sock is not None:
                sock.close()
        self._mine.data = self._mine.calls = None

    @staticmethod
    def _receive(mine: _ThreadSockets, number: int, deadline: float) -> Answer:
        assert mine.calls is not None
        while True:
            mine.calls.settimeout(max(0.001, deadline - time.monotonic()))
            packet = mine.calls.recv(1 << 17)
            if not packet:
                raise TrackerGone("the tracker has ended")
            answer = mine.assembler.feed(packet)
            # A lower number: the answer to a question whose asker was interrupted.
            if isinstance(answer, Answer) and answer.number == number:
                return answer

    def _open(self, kind: PeerKind) -> socket.socket:
        if not self.config.socket:
            raise TrackerGone("no tracker could be started")
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
            # Not settimeout: that costs a poll for each message on the hot path.
            limit = struct.pack("ll", int(SEND_LIMIT_S), 0)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            self._connect(sock)
            sock.send(packets(Hello(kind, self.config.call, self.config.rank))[0])
        except OSError as error:
            sock.close()
            raise TrackerGone(f"{os.path.basename(self.config.socket)}: {error}") from None
        except BaseException:
            sock.close()
            raise
        return sock

    def _connect(self, sock: socket.socket) -> None:
        deadline = time.monotonic() + SOCKET_LIMIT_S
        while True:
            try:
                return sock.connect(self.config.socket)
            except FileNotFoundError:
                if not self.config.starting or time.monotonic() > deadline:
                    raise
            time.sleep(_POLL_S)
