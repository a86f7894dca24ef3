"""From an exception in a rank to a RankFailure, keeping nothing of the exception's frames."""

from __future__ import annotations

import collections
import dataclasses
import linecache
import os
import sys
import traceback
from collections.abc import Iterator, Sequence

from serverless_gpu.places import cell_of, place

from .failure import Frame, Link, RankFailure
from .summary import below, kind_of, message_of, visible
from .types import NotThereError, ResultError

TEXT_LIMIT = 64 * 1024  # characters
CAUSE_LIMIT = 1024 * 1024  # bytes; an exception that carries tensors is not worth more
_FRAMES = 40  # per exception of a chain
_ALIKE = 3  # frames at one place; of more, the first and the last
_LINKS = 10  # exceptions of a chain
_AROUND = 2  # lines shown before and after a frame's own

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_NEVER_OURS_TO_SHOW = ("<frozen runpy>", "<frozen importlib", "<frozen zipimport>")


def capture_failure(error: BaseException, hide: Sequence[str] = ()) -> RankFailure:
    """Describes an exception and lets go of its frames, so that the memory they hold is free.

    hide: beginnings of file names whose frames are not shown, besides this package, IPython, runpy.
    Afterwards neither the exception nor what it is chained to has a ``__traceback__``.
    """
    try:
        summary = traceback.TracebackException.from_exception(error)
        hidden = hidden_files(hide)
        chain = tuple(_links(summary, hidden))[-_LINKS:]
        if isinstance(error, (NotThereError, ResultError)):  # ours, after the user's code
            chain = (dataclasses.replace(chain[-1], frames=()),)
        for one in _all_of(summary):
            one.stack[:] = visible(one.stack, hidden)
        text = _middle_out("".join(summary.format()), TEXT_LIMIT)
    finally:
        forget_frames(error)
    return RankFailure(chain[-1].kind, chain[-1].message, text, _ship(error), chain)


def told(error: BaseException) -> list[str]:
    """The lines that tell of an exception from which code goes on: what it is, and the user's
    places, innermost last. Lets go of its frames."""
    link = capture_failure(error).chain[-1]
    places = [
        f"  {place(frame.filename, frame.line)}, in {frame.function}" for frame in link.shown()
    ]
    return [*places, f"{link.kind}: {link.message}", *link.below]


def hidden_files(hide: Sequence[str] = ()) -> tuple[str, ...]:
    """Beginnings of the names of files whose frames tell a user nothing."""
    ipython = getattr(sys.modules.get("IPython"), "__path__", [])
    runpy = getattr(sys.modules.get("runpy"), "__file__", None)
    hidden = [_PACKAGE, *_NEVER_OURS_TO_SHOW, *hide]
    hidden += [os.path.join(folder, "") for folder in ipython]
    return (*hidden, runpy) if runpy else tuple(hidden)


def frames_of(
    stack: Sequence[traceback.FrameSummary], hidden: tuple[str, ...]
) -> tuple[Frame, ...]:
    """The frames with the lines around them; of many, and of many at one place (a recursion), the
    first and the last.

    hidden: beginnings of the names of files whose frames are marked as ours.
    """
    kept = _folded(stack)
    if len(kept) > _FRAMES:
        kept = [*kept[: _FRAMES // 4], *kept[-_FRAMES * 3 // 4 :]]
    frames, before = [], -1
    for at in kept:
        ours = stack[at].filename.startswith(hidden)
        frames.append(_frame(stack[at], ours, left_out=at - before - 1))
        before = at
    return tuple(frames)


def _folded(stack: Sequence[traceback.FrameSummary]) -> list[int]:
    """Which frames are left if those at one place are few."""
    places = [(frame.filename, frame.lineno, frame.name) for frame in stack]
    times = collections.Counter(places)
    seen: collections.Counter[tuple[str, int | None, str]] = collections.Counter()
    kept = []
    for at, where in enumerate(places):
        seen[where] += 1
        if times[where] <= _ALIKE or seen[where] in (1, times[where]):
            kept.append(at)
    return kept


def forget_frames(error: BaseException) -> None:
    """Takes the tracebacks off an exception and all it is chained to, and off ``sys.last_*``."""
    seen: dict[int, BaseException] = {}
    rest: list[BaseException | None] = [error]
    while rest:
        one = rest.pop()
        if one is None or id(one) in seen:
            continue
        seen[id(one)] = one
        one.__traceback__ = None
        rest += (one.__cause__, one.__context__, *getattr(one, "exceptions", ()))
    if id(getattr(sys, "last_value", None)) in seen:
        for name in ("last_type", "last_value", "last_traceback", "last_exc"):
            if hasattr(sys, name):
                delattr(sys, name)


def _all_of(summary: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    rest: list[traceback.TracebackException | None] = [summary]
    while rest:
        one = rest.pop()
        if one is None:
            continue
        yield one
        rest += (one.__cause__, one.__context__, *(getattr(one, "exceptions", None) or ()))


def _links(summary: traceback.TracebackException, hidden: tuple[str, ...]) -> Iterator[Link]:
    """The chain, oldest first, as Python prints it."""
    links: list[Link] = []
    one: traceback.TracebackException | None = summary
    relation = ""
    while one is not None:
        frames = frames_of(one.stack, hidden)
        if hasattr(one, "offset"):  # a SyntaxError: who compiled the code tells nothing
            frames = tuple(frame for frame in frames if not frame.ours)
        links.append(Link(kind_of(one), message_of(one), frames, relation, below(one, hidden)))
        if one.__cause__ is not None:
            one, relation = one.__cause__, "cause"
        elif one.__context__ is not None and not one.__suppress_context__:
            one, relation = one.__context__, "context"
        else:
            one = None
    return reversed(links)


def _frame(summary: traceback.FrameSummary, ours: bool, left_out: int) -> Frame:
    line = summary.lineno or 0
    first = max(1, line - _AROUND)
    lines = linecache.getlines(summary.filename)[first - 1 : line + _AROUND]
    label = cell_of(summary.filename) or ""
    kept = tuple(text.rstrip("\n")[:500] for text in lines)
    return Frame(summary.filename, line, summary.name, label, first, kept, ours, left_out)


def _middle_out(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    left_out = len(text) - limit
    return f"{text[: limit // 2]}\n... {left_out:,} characters left out ...\n{text[-limit // 2 :]}"


def _ship(error: BaseException) -> bytes | None:
    """The exception with its type, or the type alone: the most that survives the journey."""
    from serverless_gpu import serialize

    for pair in ((type(error), error), (type(error), None)):
        try:
            data = serialize.dumps_inline(pair, limit=CAUSE_LIMIT)
            serialize.loads_inline(data)
        except Exception:  # whatever an exception's own pickling code raises
            continue
        return data
    return None
