"""stdin, stdout and stderr of a rank."""

from __future__ import annotations

import builtins
import contextlib
import getpass
import io
import linecache
import sys
import warnings
from typing import Any, NoReturn

from .. import _core
from ..places import place

agent: _core.RankAgent | None = None

_NO_INPUT = (
    "a rank has no keyboard: {what} cannot be used here. Ask in the notebook and pass the answer "
    "as an argument"
)
_NO_DEBUGGER = (
    "a rank has no keyboard: breakpoint() and pdb cannot be used here. Call the plain function in "
    "the notebook, fn(...) instead of fn.distributed(...), and debug it there"
)


class OrderedStream:
    """A text stream that orders its writes against the other one's: a mark goes into both pipes
    whenever Python switches from one stream to the other. Everything else is the plain stream."""

    last: OrderedStream | None = None

    def __init__(self, stream: io.TextIOWrapper) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        last = OrderedStream.last
        if last is not self:
            if last is not None and agent is not None:
                last._stream.flush()
                agent.mark_switch()
            OrderedStream.last = self
        return self._stream.write(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> Any:
        return iter(self._stream)


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


def install() -> None:
    """Puts our streams in place; descriptors 1 and 2 are the pool's pipes already."""
    for name, fd in (("stdout", 1), ("stderr", 2)):
        stream = open(  # noqa: SIM115
            fd, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
        )
        setattr(sys, name, OrderedStream(stream))
        setattr(sys, f"__{name}__", stream)
    sys.stdin = sys.__stdin__ = NoInput()  # type: ignore[misc, assignment]
    builtins.input = _no_input
    getpass.getpass = _no_getpass
    sys.breakpointhook = _no_debugger
    warnings.formatwarning = _format_warning
    import pdb

    pdb.set_trace = _no_debugger


def flush() -> None:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        # User code may have closed or replaced them by anything.
        with contextlib.suppress(Exception):
            stream.flush()  # type: ignore[union-attr]
