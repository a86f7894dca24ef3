"""stdin, stdout and stderr of a rank."""

from __future__ import annotations

import builtins
import codecs
import contextlib
import getpass
import io
import linecache
import os
import sys
import threading
import warnings
from typing import TYPE_CHECKING, Any, NoReturn

from .. import _core
from ..places import place

if TYPE_CHECKING:
    from typing_extensions import Buffer

_NO_INPUT = (
    "a rank has no keyboard: {what} cannot be used here. Ask in the notebook and pass the answer "
    "as an argument"
)
_NO_DEBUGGER = (
    "a rank has no keyboard: breakpoint() and pdb cannot be used here. Call the plain function in "
    "the notebook, fn(...) instead of fn.distributed(...), and debug it there"
)


class _Bytes(io.BufferedIOBase):
    """`sys.stdout.buffer`: bytes take their place between the text."""

    def __init__(self, agent: _core.RankAgent, fd: int) -> None:
        self._agent, self._fd = agent, fd
        self.name = "<stdout>" if fd == 1 else "<stderr>"
        self.mode = "wb"

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    @property
    def raw(self) -> io.FileIO:
        self.flush()
        return io.FileIO(self._fd, "w", closefd=False)

    def write(self, data: Buffer) -> int:
        if self.closed:
            raise ValueError("write to closed file")
        view = memoryview(data)
        _core.write_raw(self._agent, self._fd, view.tobytes(), _owner)
        return view.nbytes

    def flush(self) -> None:
        if not self.closed:
            _core.flush_output()


class RankStream(io.TextIOWrapper):
    """`sys.stdout` and `sys.stderr`: a plain text stream whose `write` is C++ (rank_output.h) for
    as long as it writes UTF-8."""

    def __init__(self, agent: _core.RankAgent, fd: int) -> None:
        self._agent, self._fd = agent, fd
        super().__init__(
            _Bytes(agent, fd),
            encoding="utf-8",
            errors="backslashreplace",
            line_buffering=True,
            write_through=True,
        )
        self.mode = "w"  # type: ignore[misc]
        self._quicken()

    def _quicken(self) -> None:
        slow = super().write
        self.write = _core.stream_writer(  # type: ignore[method-assign]
            self._agent, self._fd, slow, _owner
        )

    def _slow_down(self) -> None:
        self.__dict__.pop("write", None)

    @property
    def holds_nothing(self) -> bool:
        """Whether all it was given is with C++ already, so that one flush there serves all."""
        return "write" in self.__dict__

    def reconfigure(self, **options: Any) -> None:
        super().reconfigure(**{**options, "write_through": True})
        self._slow_down()
        same_ends = options.get("newline") in (None, "", "\n")
        if codecs.lookup(self.encoding).name == "utf-8" and same_ends:
            self._quicken()

    def detach(self) -> Any:
        self._slow_down()
        return super().detach()

    def close(self) -> None:
        self._slow_down()
        super().close()


def _owner() -> int:
    """The call that the calling thread was started in; 0: the one that runs."""
    return int(getattr(threading.current_thread(), "_serverless_gpu_call", 0))


def _remember_calls(agent: _core.RankAgent) -> None:
    """From now on a thread keeps the call that it was started in, and those that it starts too."""
    start = threading.Thread.start

    def start_in_call(self: threading.Thread) -> None:
        self._serverless_gpu_call = _owner() or agent.busy  # type: ignore[attr-defined]
        start(self)

    threading.Thread.start = start_in_call  # type: ignore[method-assign]


class NoInput(io.TextIOBase):
    """stdin of a rank: reading says what to do instead."""

    encoding = "utf-8"

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return 0

    def isatty(self) -> bool:
        return False

    def _refuse(self, *_: Any) -> NoReturn:
        raise RuntimeError(_NO_INPUT.format(what="sys.stdin"))

    read = readline = readlines = __next__ = _refuse


def _no_input(prompt: object = "") -> NoReturn:
    raise RuntimeError(_NO_INPUT.format(what="input()"))


def _no_getpass(prompt: str = "Password: ", stream: Any = None, **_: Any) -> NoReturn:
    raise RuntimeError(_NO_INPUT.format(what="getpass()"))


def _no_debugger(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError(_NO_DEBUGGER)


def _format_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """As Python's, with the place in a notebook's words: the name of a cell's file says nothing."""
    text = linecache.getline(filename, lineno) if line is None else line
    shown = f"  {text.strip()}\n" if text.strip() else ""
    return f"{place(filename, lineno)}: {category.__name__}: {message}\n{shown}"


def install(agent: _core.RankAgent) -> None:
    """Puts our streams in place; descriptors 1 and 2 are the pool's pipes already."""
    sys.stdout = sys.__stdout__ = RankStream(agent, 1)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = RankStream(agent, 2)  # type: ignore[misc]
    _core.keep_order_with_processes()
    _remember_calls(agent)
    real_exit = os._exit

    def flush_and_exit(status: int) -> NoReturn:
        with contextlib.suppress(OSError):
            _core.flush_output()
        real_exit(status)

    os._exit = flush_and_exit
    sys.stdin = sys.__stdin__ = NoInput()  # type: ignore[misc, assignment]
    builtins.input = _no_input
    getpass.getpass = _no_getpass
    sys.breakpointhook = _no_debugger
    warnings.formatwarning = _format_warning
    import pdb

    pdb.set_trace = _no_debugger


def flush() -> None:
    """Everything that was written so far goes on its way."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        if type(stream) is RankStream and stream.holds_nothing:
            continue
        # User code may have closed or replaced them by anything.
        with contextlib.suppress(Exception):
            stream.flush()  # type: ignore[union-attr]
    with contextlib.suppress(OSError):
        _core.flush_output()
