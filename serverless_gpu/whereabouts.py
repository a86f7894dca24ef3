"""Where ranks say they are: the stack of each, and the collectives they wait in, in words."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import _core
from .errors.failure import format_ranks

#: Seconds that agents get to answer; they need a millisecond.
_ANSWER_S = 1.0


@dataclass(frozen=True)
class Collective:
    """The last collective that a rank has begun in a group. number: counted in the group, from 1.

    pending: it has not ended. seconds: since it began.
    """

    group: str
    default: bool
    op: str
    number: int
    shape: tuple[int, ...] = ()
    pending: bool = False
    seconds: float = 0.0


@dataclass(frozen=True)
class Whereabouts:
    """What one rank has answered. stack: as faulthandler writes it, "" if it was not asked for."""

    stack: str
    collectives: tuple[Collective, ...] = ()

    def waiting(self) -> float:
        """Seconds for which it has waited in a collective; 0 if it does not."""
        return max((c.seconds for c in self.collectives if c.pending), default=0.0)


def read(answer: str) -> Whereabouts:
    """Reads a rank's answer to `RankPool.whereabouts`."""
    fields = json.loads(answer)
    found = json.loads(fields["collectives"] or "[]")
    collectives = (Collective(**{**one, "shape": tuple(one["shape"])}) for one in found)
    return Whereabouts(fields["text"], tuple(collectives))


def running_of(members: Sequence[tuple[int, int]], view: Mapping[str, Any]) -> dict[int, int]:
    """The (rank, child) of a call that still run by its view: rank to child."""
    states = zip(members, view["states"], strict=True)
    return {rank: child for (rank, child), state in states if state == "running"}


def ask(core: _core.RankPool, ranks: Mapping[int, int], *, stack: bool) -> dict[int, Whereabouts]:
    """Asks the children of `ranks` (rank to child); those that answered within a second."""
    ticket = core.whereabouts(list(ranks.values()), stack=stack)
    ticket.wait(_ANSWER_S)
    got = {child: text for child, text in ticket.answers().items() if text is not None}
    return {rank: read(got[child]) for rank, child in ranks.items() if child in got}


def waits_for_all(found: Whereabouts) -> int:
    """The number of the default group's collective that a rank waits in; 0 if it waits in none."""
    return next((c.number for c in found.collectives if c.default and c.pending), 0)


def differences(found: Mapping[int, Whereabouts]) -> list[str]:
    """One line per group in which ranks wait: who waits in which of its collectives, who has not
    come to it, and whether what they do there fits together."""
    groups: dict[str, dict[int, Collective]] = {}
    for rank in sorted(found):
        for one in found[rank].collectives:
            groups.setdefault(one.group, {})[rank] = one
    return [
        _difference(group, members, sorted(found))
        for group, members in groups.items()
        if any(one.pending for one in members.values())
    ]


def _difference(group: str, members: Mapping[int, Collective], ranks: Sequence[int]) -> str:
    pending = {rank: one for rank, one in members.items() if one.pending}
    waits: dict[str, list[int]] = {}
    for rank, one in pending.items():
        waits.setdefault(f"{one.op} (its collective {one.number})", []).append(rank)
    is_default = any(one.default for one in members.values())
    parts = []
    for text, who in waits.items():
        seconds = max(pending[rank].seconds for rank in who)
        wait = "waits" if len(who) == 1 else "wait"
        parts.append(f"[{format_ranks(who)}] {wait} in {text} for {seconds:.0f} s")
    begun: dict[int, list[int]] = {}
    for rank in ranks:
        # Only of the default group is it known here that all ranks belong to it.
        if rank not in pending and (rank in members or is_default):
            begun.setdefault(members[rank].number if rank in members else 0, []).append(rank)
    for number, who in begun.items():
        has = "has" if len(who) == 1 else "have"
        state = f"{has} done {number} and begun no other" if number else f"{has} begun none here"
        parts.append(f"[{format_ranks(who)}] {state}")
    name = "the default group" if is_default else f"group {group}"
    return f"{name}: " + "; ".join(parts) + _mismatch(pending)


def _mismatch(pending: Mapping[int, Collective]) -> str:
    kinds = {(one.op, one.number) for one in pending.values()}
    if len(kinds) > 1:
        return "; these do not fit together"
    shapes: dict[tuple[int, ...], list[int]] = {}
    for rank, one in pending.items():
        if one.op not in ("send", "recv", "gather", "scatter"):
            shapes.setdefault(one.shape, []).append(rank)
    if len(shapes) < 2:
        return ""
    told = ", ".join(f"[{format_ranks(who)}] {list(shape)}" for shape, who in shapes.items())
    return f"; their shapes differ: {told}"
