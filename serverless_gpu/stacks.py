"""Where ranks are: the stacks that their agents took, merged where equal, and put in words."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass

from .errors.capture import hidden_files
from .errors.failure import format_ranks
from .places import place

_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')
#: Functions that only pass a call on; the one below them says what is going on.
_PASSING_ON = frozenset(
    {"wrapper", "inner", "decorate_context", "__call__", "_call_impl", "_wrapped_call_impl", "_fn"}
)


@dataclass(frozen=True)
class Place:
    """One line of a stack."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return place(self.file, self.line)


@dataclass(frozen=True)
class Stack:
    """The Python stack of a rank's main thread, innermost line first; our own frames left out.

    note: what the agent said besides, "" in the usual case.
    """

    frames: tuple[Place, ...]
    note: str = ""

    def where(self) -> str:
        """`in all_reduce at Cell In[12], line 9`: the user's innermost line, and what it called."""
        for depth, frame in enumerate(self.frames):
            if _is_library(frame.file):
                continue
            called = [f.function for f in self.frames[:depth] if f.function not in _PASSING_ON]
            return f"in {called[-1] if called else frame.function} at {frame}"
        if self.frames:
            return f"in {self.frames[0].function} at {self.frames[0]}"
        return self.note or "between two lines of user code"

    def lines(self) -> list[str]:
        """As Python prints a traceback: outermost line first."""
        return [f"  {frame}, in {frame.function}" for frame in reversed(self.frames)]


def parse(text: str) -> Stack:
    """Reads what faulthandler wrote for all threads; it calls the main thread current."""
    note, frames = "", []
    hidden = hidden_files()
    current = False
    for line in text.splitlines():
        if line.startswith(("Thread ", "Current thread ")):
            current = line.startswith("Current")
        elif (match := _FRAME.match(line)) is not None:
            shown = match["file"] != "<string>" and not match["file"].startswith(hidden)
            if current and shown:
                frames.append(Place(match["file"], int(match["line"]), match["function"]))
        elif line.strip() and not line.startswith(" "):
            note = line.strip()
    return Stack(tuple(frames), note)


def merged(stacks: Mapping[int, str]) -> list[tuple[list[int], Stack]]:
    """Equal stacks once, with the ranks that have them; in the order of the first rank."""
    groups: dict[Stack, list[int]] = {}
    for rank in sorted(stacks):
        groups.setdefault(parse(stacks[rank]), []).append(rank)
    return [(ranks, stack) for stack, ranks in groups.items()]


def summary(stacks: Mapping[int, str]) -> str:
    """`[0-4,6-7] in all_reduce at Cell In[12], line 9; [5] in load at Cell In[12], line 4`."""
    places: dict[str, list[int]] = {}
    for ranks, stack in merged(stacks):
        places.setdefault(stack.where(), []).extend(ranks)
    return "; ".join(f"[{format_ranks(ranks)}] {where}" for where, ranks in places.items())


def report(stacks: Mapping[int, str]) -> list[str]:
    """The merged stacks in full, as lines; one of a single line is told by its place."""
    lines: list[str] = []
    for ranks, stack in merged(stacks):
        lines.append(f"[{format_ranks(ranks)}] {stack.where()}")
        lines += stack.lines() if len(stack.frames) > 1 else []
    return lines


_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))


def _is_library(file: str) -> bool:
    return "site-packages" in file or file.startswith((*_LIBRARIES, "<frozen "))
