"""How a call ended: values, failures and deaths, and the one exception that is made of them."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import Any

from . import pool, serialize
from .errors import (
    DistributedTimeoutError,
    RankDeath,
    RankFailure,
    ResultError,
    build_error,
    build_timeout,
    capture_failure,
    format_ranks,
)


class CallInterrupted(KeyboardInterrupt):
    """The user pressed Stop; all ranks have ended what they did."""

    def _render_traceback_(self) -> list[str]:
        return [f"KeyboardInterrupt: {self}"]


CallInterrupted.__name__ = CallInterrupted.__qualname__ = "KeyboardInterrupt"


@dataclass(frozen=True)
class Ended:
    """How a call ended: what `run` returns or raises is made of it."""

    values: dict[int, Any]
    failures: dict[int, RankFailure]
    deaths: dict[int, RankDeath]
    unsound: bool  # ranks were stopped in the middle: their groups are not to be used again
    error: BaseException | None


def collect(
    owner: pool.Pool,
    ticket: Any,
    world: int,
    timeout: float | None,
    stopped: bool,
    began_ns: int,
) -> Ended:
    """Reads the outcomes of a call that is over. Never raises for what ranks have done.

    `stopped`: the user pressed Stop. `began_ns`: when the call began, by time.monotonic_ns().
    """
    view = ticket.view()
    reports = _Reports()
    for one in ticket.outcomes():
        reports.add(one, began_ns)
    unsound = view["cause"] in ("stop", "deadline") or reports.pressed or bool(reports.deaths)
    return Ended(
        reports.values,
        reports.failures,
        reports.deaths,
        unsound,
        _error(owner, view, reports, world, timeout, stopped),
    )


class _Reports:
    """What the ranks of one call have reported, sorted."""

    def __init__(self) -> None:
        self.values: dict[int, Any] = {}
        self.failures: dict[int, RankFailure] = {}
        self.deaths: dict[int, RankDeath] = {}
        self.pressed = False  # a rank ended only because we made it
        #: (whether it is a consequence, seconds, rank) of every rank that gave no value.
        self._order: list[tuple[bool, float, int]] = []

    def add(self, one: dict[str, Any], began_ns: int) -> None:
        rank, consequence = one["rank"], one["consequence"]
        self.pressed = self.pressed or consequence
        if one["state"] == "died":
            self.deaths[rank] = _death(one)
            self._order.append((consequence, one["seconds"], rank))
            return
        try:
            loaded = serialize.load(one["frames"], one["fd"])
        except BaseException as problem:
            error = ResultError(rank, f"it cannot be unpickled here: {problem!r}")
            self.failures[rank] = capture_failure(error)
            self._order.append((False, one["seconds"], rank))
            return
        if one["state"] == "returned":
            self.values[rank] = loaded
        elif not (consequence and (_is_abort(loaded) or _follows(loaded))):
            # One clock for all processes: the time of raising, not that of arriving here.
            when = (one["raised_ns"] - began_ns) / 1e9
            self.failures[rank] = loaded
            self._order.append((consequence or _follows(loaded), when, rank))

    def first(self) -> int | None:
        """The rank that failed first, by itself; None if none did. Of ranks that failed alike it is
        the lowest: which of them was quicker says nothing."""
        if not self._order:
            return None
        first = min(self._order)[2]
        failure = self.failures.get(first)
        if failure is None:
            return first
        same = (failure.kind, failure.message)
        return min(r for r, f in self.failures.items() if (f.kind, f.message) == same)


def _is_abort(failure: RankFailure) -> bool:
    return failure.kind.rpartition(".")[2] in ("CallAborted", "KeyboardInterrupt")


def _follows(failure: RankFailure) -> bool:
    """Whether an exception speaks of another rank's end: it then is not the first cause, whatever
    the order of arrival."""
    text = f"{failure.kind}: {failure.message}"
    return failure.kind.rpartition(".")[2] in ("DistNetworkError", "DistBackendError") or any(
        sign in text for sign in ("Connection closed by peer", "Connection reset by peer", "gloo/")
    )


def _death(one: dict[str, Any]) -> RankDeath:
    code = one["status"]
    if not one["exit_known"]:
        return RankDeath(one["pid"], signal=signal.SIGKILL)
    if os.WIFSIGNALED(code):
        return RankDeath(one["pid"], signal=os.WTERMSIG(code))
    return RankDeath(one["pid"], exit_code=os.waitstatus_to_exitcode(code))


def _error(
    owner: pool.Pool,
    view: dict[str, Any],
    reports: _Reports,
    world: int,
    timeout: float | None,
    stopped: bool,
) -> BaseException | None:
    if view["cause"] == "deadline":
        assert timeout is not None
        return build_timeout(timeout, view["stacks"], reports.failures, reports.values)
    first = reports.first()
    if view["cause"] == "stop" or (stopped and first is None):
        killed = sorted(reports.deaths)
        word = "rank" if len(killed) == 1 else "ranks"
        forced = f"; {word} {format_ranks(killed)} had to be killed" if killed else ""
        return CallInterrupted("stopped" + forced)
    if first is None:
        return None
    death = reports.deaths.get(first)
    if death is not None and (owner.core.broken or not death.pid):
        why = owner.why_dead() or "out of processes"
        return pool.PoolError(f"rank {first} could not run: {why}. The next call starts anew")
    return build_error(reports.failures, reports.deaths, reports.values, first, world)


def final_words(ended: Ended) -> tuple[str, str, str]:
    """The mark, the word before the seconds, and what failed."""
    error = ended.error
    if error is None:
        return "✓", "done in", ""
    if isinstance(error, KeyboardInterrupt):
        return "■", "stopped after", ""
    if isinstance(error, DistributedTimeoutError):
        return "✗", "timeout after", ""
    rank = getattr(error, "rank", -1)
    if rank in ended.failures:
        return "✗", "failed after", f"rank {rank}: {ended.failures[rank].kind}"
    return "✗", "failed after", f"rank {rank} died" if rank in ended.deaths else ""
