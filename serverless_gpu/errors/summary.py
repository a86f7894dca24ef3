"""What is said of one exception: its name, its text, and what stands below that."""

from __future__ import annotations

import traceback
from collections.abc import Sequence

from serverless_gpu.places import place

MESSAGE_LIMIT = 4_000  # characters
_SOURCE_LIMIT = 500  # characters of a line of source
_MEMBERS = 10  # exceptions of a group
_MEMBER_FRAMES = 3  # of each, the innermost


def kind_of(summary: traceback.TracebackException) -> str:
    """``ValueError``; with its module unless that is the notebook, built in, ours or IPython's."""
    name: str | None = getattr(summary, "exc_type_str", None)  # from Python 3.13 on
    if name is None:
        kind = summary.exc_type
        hidden = kind.__module__ in ("builtins", "__main__")
        name = kind.__qualname__ if hidden else f"{kind.__module__}.{kind.__qualname__}"
    return name.rpartition(".")[2] if name.startswith(("serverless_gpu.", "IPython.")) else name


def message_of(summary: traceback.TracebackException) -> str:
    """Its text, cut at 4,000 characters."""
    return _cut(str(summary))


def below(summary: traceback.TracebackException, hidden: tuple[str, ...]) -> tuple[str, ...]:
    """The lines under its text: the line that is no Python, its notes, and of a group each
    exception with its place.

    hidden: beginnings of the names of files whose frames are not shown.
    """
    lines = [*_source(summary), *_notes(summary)]
    members: Sequence[traceback.TracebackException] = getattr(summary, "exceptions", None) or ()
    for number, member in enumerate(members[:_MEMBERS], 1):
        first, *rest = (*_named(member), *below(member, hidden))
        lines.append(f"  {number}. {first}")
        lines += [f"     {line}" for line in (*_places(member, hidden), *rest)]
        if member.__cause__ is not None:
            lines.append(f"     from {_named(member.__cause__)[0]}")
    if len(members) > _MEMBERS:
        lines.append(f"  ... {len(members) - _MEMBERS} more")
    return tuple(lines)


def visible(
    frames: Sequence[traceback.FrameSummary], hidden: tuple[str, ...]
) -> list[traceback.FrameSummary]:
    """The frames outside of hidden files; the innermost one if there is no other."""
    shown = [frame for frame in frames if not frame.filename.startswith(hidden)]
    return shown or list(frames[-1:])


def _source(summary: traceback.TracebackException) -> list[str]:
    """Of a SyntaxError: the line, and a mark under the place where it goes wrong."""
    text = (getattr(summary, "text", None) or "").rstrip()
    if not text:
        return []
    at = int(summary.offset or 0) - 1 - (len(text) - len(text.lstrip()))
    text = text.lstrip()[:_SOURCE_LIMIT]
    return [f"    {text}", *([f"    {' ' * at}^"] if 0 <= at <= len(text) else [])]


def _notes(summary: traceback.TracebackException) -> list[str]:
    notes = getattr(summary, "__notes__", None)  # from Python 3.11 on; may be anything
    if not isinstance(notes, (list, tuple)):
        return [] if notes is None else [_cut(repr(notes))]
    return _cut("\n".join(map(str, notes))).split("\n") if notes else []


def _named(summary: traceback.TracebackException) -> list[str]:
    text = message_of(summary)
    return (f"{kind_of(summary)}: {text}" if text else kind_of(summary)).split("\n")


def _places(summary: traceback.TracebackException, hidden: tuple[str, ...]) -> list[str]:
    lines = []
    for frame in visible(summary.stack, hidden)[-_MEMBER_FRAMES:]:
        inside = "" if frame.name == "<module>" else f", in {frame.name}"
        lines.append(f"{place(frame.filename, frame.lineno or 0)}{inside}")
        lines += [f"    {frame.line}"] if frame.line else []
    return lines


def _cut(text: str) -> str:
    return text if len(text) <= MESSAGE_LIMIT else text[:MESSAGE_LIMIT] + " ..."
