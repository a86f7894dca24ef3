"""Tracebacks of our errors for notebooks, in the look of IPython's."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from serverless_gpu.places import cell_of, file_of

from .build import ranks_text
from .capture import frames_of, hidden_files
from .failure import Frame, Link, first_line
from .types import DistributedTimeoutError, RankError

_RED, _GREEN, _CYAN, _BLUE, _PLAIN = (f"\x1b[{n}m" for n in (31, 32, 36, 34, 39))
_WIDTH = 75
_BETWEEN = {
    "cause": "The above exception was the direct cause of the following exception:",
    "context": "During handling of the above exception, another exception occurred:",
}
_ANSI = re.compile("\x1b\\[[0-9;]*m")


def lines_of(error: BaseException) -> list[str]:
    """The blocks IPython prints for one of our errors, each of one or more lines.

    The notebook's line that called; for an exception of a rank, the rank's own traceback after it.
    """
    verbose = _verbose()
    failure = None
    if isinstance(error, RankError) and not isinstance(error, DistributedTimeoutError):
        failure = error.failures.get(error.rank)
    called = _callers(error, verbose)
    blocks = [f"{_RED}{'-' * _WIDTH}{_PLAIN}"]
    if isinstance(error, RankError) and failure is not None and failure.chain:
        same = [rank for rank, one in error.failures.items() if one.chain == failure.chain]
        blocks += [_block(frame) for frame in called]
        blocks += _chain(
            failure.chain, f"Traceback of {ranks_text(same)} (most recent call last)", verbose
        )
        rest = str(error).removeprefix(first_line(error.rank, failure)).strip("\n")
        told = f"{ranks_text(set(same) - {error.rank})} raised the same"
        rest = "\n".join(line for line in rest.splitlines() if line != told)
        blocks += [rest] if rest else []
    else:
        link = Link(type(error).__name__, str(error), called)
        blocks += _chain((link,), "Traceback (most recent call last)", verbose)
    return blocks if _coloured() else [_ANSI.sub("", block) for block in blocks]


def syntax_error(error: SyntaxError) -> list[str]:
    """As IPython shows a syntax error, without the frames of those who looked for it."""
    shell = _shell()
    if shell is None:
        return traceback.format_exception_only(error)
    lines: list[str] = shell.SyntaxTB.structured_traceback(SyntaxError, error, [])
    return lines


def _callers(error: BaseException, verbose: bool) -> tuple[Frame, ...]:
    """The notebook's frames, without those that only pass a cell on to a magic."""
    frames = traceback.extract_tb(error.__traceback__)
    if verbose:
        return frames_of(frames, ())
    by_magic = [below.name in ("run_cell_magic", "run_line_magic") for below in frames[1:]]
    users = [f for f, magic in zip(frames, [*by_magic, False], strict=True) if not magic]
    hidden = hidden_files()
    return frames_of([f for f in users if not f.filename.startswith((*hidden, "<timed "))], ())


def _chain(chain: Sequence[Link], origin: str, verbose: bool) -> list[str]:
    blocks = []
    for link in chain:
        short = link.kind.rpartition(".")[2]
        gap = " " * max(1, _WIDTH - len(short) - len(origin))
        blocks.append(f"{_RED}{short}{_PLAIN}{gap}{origin}")
        blocks += [_block(frame) for frame in (link.frames if verbose else link.shown())]
        blocks.append("\n".join((f"{_RED}{short}{_PLAIN}: {link.message}", *link.below)))
        if link is not chain[-1]:
            blocks.append(f"\n{_BETWEEN.get(link.relation, '')}\n")
    return blocks


def _block(frame: Frame) -> str:
    cell = frame.label or cell_of(frame.filename)
    name = cell or f"File {file_of(frame.filename)}"
    place = f"{_CYAN}{name}{_PLAIN}{_GREEN}, line {frame.line}{_PLAIN}"
    if frame.function != "<module>":
        place += f", in {_CYAN}{frame.function}{_PLAIN}"
    lines = [f"      [... {frame.left_out} frames left out]\n"] if frame.left_out else []
    lines.append(place)
    for number, text in enumerate(frame.lines, frame.first):
        if number == frame.line:
            lines.append(f"{_GREEN}----> {number}{_PLAIN} {text}")
        else:
            lines.append(f"{_GREEN}{number:>7}{_PLAIN} {text}")
    return "\n".join(lines) + "\n"


def _shell() -> Any:
    return getattr(sys.modules.get("IPython.core.getipython"), "get_ipython", lambda: None)()


def _coloured() -> bool:
    return str(getattr(_shell(), "colors", "")).lower() != "nocolor"


def _verbose() -> bool:
    """Whether the user has asked for all there is: ``%xmode Verbose``."""
    return getattr(getattr(_shell(), "InteractiveTB", None), "mode", "") == "Verbose"
