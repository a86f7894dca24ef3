"""Tracebacks of our errors for notebooks, in the look of IPython's."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from serverless_gpu.places import cell_of, file_of

from .capture import frames_of, hidden_files, visible
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

    For an exception of a rank: the rank's own traceback. Else the notebook's line that called.
    """
    failure = None
    if isinstance(error, RankError) and not isinstance(error, DistributedTimeoutError):
        failure = error.failures.get(error.rank)
    if isinstance(error, RankError) and failure is not None and failure.chain:
        origin = f"Traceback of rank {error.rank} (most recent call last)"
        blocks = _chain(failure.chain, origin)
        rest = str(error).removeprefix(first_line(error.rank, failure)).strip("\n")
        blocks += [rest] if rest else []
    else:
        kind = type(error).__name__
        stack = visible(traceback.extract_tb(error.__traceback__), hidden_files())
        link = Link(kind, str(error), frames_of(stack))
        blocks = _chain((link,), "Traceback (most recent call last)")
    return blocks if _coloured() else [_ANSI.sub("", block) for block in blocks]


def _chain(chain: Sequence[Link], origin: str) -> list[str]:
    blocks = [f"{_RED}{'-' * _WIDTH}{_PLAIN}"]
    for link in chain:
        short = link.kind.rpartition(".")[2]
        gap = " " * max(1, _WIDTH - len(short) - len(origin))
        blocks.append(f"{_RED}{short}{_PLAIN}{gap}{origin}")
        blocks += [_block(frame) for frame in link.frames]
        blocks.append(f"{_RED}{short}{_PLAIN}: {link.message}")
        if link is not chain[-1]:
            blocks.append(f"\n{_BETWEEN.get(link.relation, '')}\n")
    return blocks


def _block(frame: Frame) -> str:
    cell = frame.label or cell_of(frame.filename)
    name = cell or f"File {file_of(frame.filename)}"
    place = f"{_CYAN}{name}{_PLAIN}{_GREEN}, line {frame.line}{_PLAIN}"
    if frame.function != "<module>":
        place += f", in {_CYAN}{frame.function}{_PLAIN}"
    lines = [place]
    for number, text in enumerate(frame.lines, frame.first):
        if number == frame.line:
            lines.append(f"{_GREEN}----> {number}{_PLAIN} {text}")
        else:
            lines.append(f"{_GREEN}{number:>7}{_PLAIN} {text}")
    return "\n".join(lines) + "\n"


def _coloured() -> bool:
    shell: Any = getattr(sys.modules.get("IPython.core.getipython"), "get_ipython", lambda: None)()
    return str(getattr(shell, "colors", "")).lower() != "nocolor"
