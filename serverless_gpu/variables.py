"""What a session's ranks have in their namespaces, told by them with each answer: once a rank is
dead, nobody can ask it which variables have gone with it."""

from __future__ import annotations

import json
import types
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from .errors import format_ranks

#: Names that are told; of the others only how many there are.
LIMIT = 20
_MAX_LENGTH = 60


@dataclass(frozen=True)
class Variables:
    """The user's variables of one rank: `names`, LIMIT at most, and how many `more` there are."""

    names: tuple[str, ...] = ()
    more: int = 0


def of_namespace(namespace: Mapping[str, object], hidden: Mapping[str, object]) -> Variables:
    """Data first, then what was defined; without modules, `hidden` and underscored names."""
    data: list[str] = []
    defined: list[str] = []
    for name, value in namespace.items():
        kind = type(value)
        if kind is types.ModuleType or name in hidden or name[:1] == "_":
            continue
        (defined if kind is types.FunctionType or kind is type else data).append(name)
    names = [*data, *defined]
    return Variables(tuple(name[:_MAX_LENGTH] for name in names[:LIMIT]), len(names[LIMIT:]))


def to_frame(variables: Variables) -> bytes:
    return json.dumps([variables.names, variables.more]).encode()


def from_frame(frame: bytes) -> Variables:
    """What `to_frame` made; nothing if user code of the rank has tampered with it."""
    try:
        names, more = json.loads(frame)
        return Variables(tuple(map(str, names)), int(more))
    except (ValueError, TypeError):
        return Variables()


def gone_with(ranks: Collection[int], had: Iterable[Variables]) -> str:
    """What is said of ranks that ended and were replaced, and of what they `had`."""
    if len(ranks) == 1:
        them, text = "it", f"Rank {format_ranks(ranks)} had ended and is replaced."
    else:
        them, text = "them", f"Ranks {format_ranks(ranks)} had ended and are replaced."
    if names := _listed(had):
        text += f" Gone with {them}: {names}; imports too. Run their cells again."
    return text


def _listed(several: Iterable[Variables]) -> str:
    """All names once: `model, step and 3 more`; "" if there are none."""
    several = list(several)
    names = list(dict.fromkeys(name for one in several for name in one.names))
    more = max((one.more for one in several), default=0) + len(names[LIMIT:])
    text = ", ".join(names[:LIMIT])
    return f"{text} and {more} more" if more else text
