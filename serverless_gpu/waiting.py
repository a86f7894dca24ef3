"""Sees that ranks wait for one that has failed, so that nobody waits for their grace."""

from __future__ import annotations

import time
from typing import Any

from . import _core
from .whereabouts import ask, running_of, waits_for_all

#: Seconds between two looks: whoever is in the same collective at both does not get on.
_BETWEEN = 0.5


class FailedPeerWatch:
    """Watches one call. Threads: the one that waits for the call.

    After a failure the other ranks may end by themselves. If all that run sit in a collective of
    the default group, to which the failed rank belongs, none of them can.
    """

    def __init__(self, core: _core.RankPool, members: list[tuple[int, int]], call: int) -> None:
        self._core = core
        self._members = members
        self._call = call
        self._next = 0.0
        self._before: dict[int, int] = {}

    def look(self, view: dict[str, Any]) -> None:
        """To be called a few times a second. Costs nothing unless a rank has failed."""
        now = time.monotonic()
        if view["cause"] != "failure" or view["pressure"] != "none" or now < self._next:
            return
        self._next = now + _BETWEEN
        running = running_of(self._members, view)
        answers = ask(self._core, running, stack=False)
        waits = {rank: waits_for_all(found) for rank, found in answers.items()}
        if waits == self._before and waits.keys() == running.keys() and all(waits.values()):
            self._core.cut_short(self._call)
        self._before = waits
