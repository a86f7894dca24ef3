"""Support for tests of serialisation: a notebook's cells, and another process that runs calls."""

from __future__ import annotations

import linecache
import os
import pickle
import socket
import subprocess
import sys
import textwrap
import types
from collections.abc import Callable
from typing import Any

from serverless_gpu import serialize
from serverless_gpu.errors import RankFailure, capture_failure

_MESSAGE = 256 * 1024  # bytes; frames are promised to be smaller
_SECONDS = 120  # for anything the other process does


class Notebook:
    """The names that cells define, as in ``__main__`` of a kernel, with files that do not exist."""

    def __init__(self, folder: str = "/tmp/ipykernel_1") -> None:
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.folder = folder
        self._count = 0

    def cell(self, source: str) -> Notebook:
        """Runs a cell; ``linecache`` knows its source, as it does with IPython."""
        self._count += 1
        source = textwrap.dedent(source).lstrip("\n")
        filename = f"{self.folder}/{self._count}.py"
        lines = source.splitlines(keepends=True)
        linecache.cache[filename] = (len(source), None, lines, filename)
        exec(compile(source, filename, "exec"), self.names)
        return self

    def __getattr__(self, name: str) -> Any:
        return self.names[name]


def through(obj: Any) -> Any:
    """The object dumped and loaded again in this process."""
    payload = serialize.dump(obj)
    return serialize.load(payload.frames, payload.detach())


class Peer:
    """A process that runs calls one after the other, as a rank does."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(_SECONDS)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What the function returns there; a RankFailure if it raised."""
        with serialize.dump((function, args, kwargs)) as payload:
            _send(self._socket, payload)
        return _receive(self._socket)

    def close(self) -> None:
        self._socket.close()
        assert self._process.wait(timeout=_SECONDS) == 0


def _send(to: socket.socket, payload: serialize.Payload) -> None:
    fds = [payload.fd] if payload.fd >= 0 else []
    socket.send_fds(to, [pickle.dumps(payload.frames)], fds)


def _receive(source: socket.socket) -> Any:
    message, fds, _, _ = socket.recv_fds(source, _MESSAGE, 1)
    if not message:
        raise EOFError("the other process ended")
    return serialize.load(pickle.loads(message), fds[0] if fds else -1)


def _answer(request: tuple[Any, ...]) -> Any | RankFailure:
    function, args, kwargs = request
    try:
        return function(*args, **kwargs)
    except BaseException as error:
        return capture_failure(error, hide=[__file__])


def main(fd: int) -> None:
    sys.modules["__main__"] = types.ModuleType("__main__")  # as in a rank
    serialize.install_forking_pickler()
    with socket.socket(fileno=fd) as channel:
        while True:
            try:
                request = _receive(channel)
            except EOFError:
                return
            with serialize.dump(_answer(request)) as payload:
                _send(channel, payload)
            del request


if __name__ == "__main__":
    main(int(sys.argv[1]))
