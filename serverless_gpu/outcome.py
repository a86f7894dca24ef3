"""How a call ended: values, failures and deaths, and the one exception that is made of them."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import gpu_errors, pool, serialize, stops
from .errors import (
    DistributedTimeoutError,
    RankDeath,
    RankFailure,
    ResultError,
    build_error,
    build_timeout,
    capture_failure,
    format_ranks,
    pressure,
)
from .errors.failure import Link
from .serialize import hints
from .stops import CallInterrupted
from .variables import Variables, from_frame
from .whereabouts import differences, read


@dataclass(frozen=True)
class Ended:
    """How a call ended: what `run` returns or raises is made of it."""

    values: dict[int, Any]
    failures: dict[int, RankFailure]
    deaths: dict[int, RankDeath]
    unsound: bool  # ranks were stopped in the middle: their groups are not to be used again
    error: BaseException | None
    variables: dict[int, Variables]  # of ranks of a session that have told them
    began: float | None  # seconds until user code had begun on the last rank, as far as it is told
    startup: dict[str, float]  # seconds that first uses took in user code, as of "CUDA" and "NCCL"


def collect(
    owner: pool.Pool,
    ticket: Any,
    world: int,
    timeout: float | None,
    presses: stops.Stops,
) -> Ended:
    """Reads the outcomes of a call that is over. Never raises for what ranks have done.

    `presses`: of Stop until now; one that comes while values are read ends the reading.
    """
    view = ticket.view()
    reports = _Reports()
    outcomes = ticket.outcomes()
    began = max((one["began"] for one in outcomes), default=0.0) or None
    startup = _startup([one["startup"] for one in outcomes])
    try:
        with presses.raising():
            while outcomes:
                reports.add(outcomes.pop(0))
    except KeyboardInterrupt:
        for one in outcomes:
            if one["fd"] >= 0:
                os.close(one["fd"])
    unsound = view["cause"] in ("stop", "deadline") or reports.pressed or bool(reports.deaths)
    return Ended(
        reports.values,
        reports.failures,
        reports.deaths,
        unsound,
        _error(owner, view, reports, world, timeout, presses.pressed, ticket.id),
        reports.variables,
        began,
        startup,
    )


def _startup(told: list[dict[str, float]]) -> dict[str, float]:
    """Each rank begins CUDA for itself, so the slowest one counts. A group is made by all of them
    together: who came last has not waited for the others, and took the time that it takes."""
    names = {name for one in told for name in one}
    choose = {"CUDA": max}
    return {
        name: choose.get(name, min)([one[name] for one in told if name in one])
        for name in sorted(names)
    }


class _Reports:
    """What the ranks of one call have reported, sorted."""

    def __init__(self) -> None:
        self.values: dict[int, Any] = {}
        self.failures: dict[int, RankFailure] = {}
        self.deaths: dict[int, RankDeath] = {}
        self.variables: dict[int, Variables] = {}
        self.pressed = False  # a rank ended only because we made it
        self.never_up: set[int] = set()  # of those that died
        self._ends: list[_End] = []  # of ranks that gave no value

    def add(self, one: dict[str, Any]) -> None:
        rank, consequence, seconds = one["rank"], one["consequence"], one["seconds"]
        self.pressed = self.pressed or consequence
        if consequence and one["state"] == "died" and not one["pid"]:
            return  # it had not even been forked
        if one["state"] == "died":
            self.deaths[rank] = death_of(one)
            if not one["came_up"]:
                self.never_up.add(rank)
            self._ends.append(_End(rank, seconds, consequence))
            return
        if len(one["frames"]) > 2:
            self.variables[rank] = from_frame(one["frames"][2])
        try:
            loaded = serialize.load(one["frames"], one["fd"])
        except KeyboardInterrupt:
            raise
        except BaseException as problem:
            error = ResultError(rank, f"it cannot be unpickled here: {problem!r}\n{hints.MADE_OF}")
            self.failures[rank] = capture_failure(error)
            self._ends.append(_End(rank, seconds))
            return
        if one["state"] == "returned":
            self.values[rank] = loaded
        elif not (consequence and (_is_abort(loaded) or _by_a_peer(loaded))):
            self.failures[rank] = _advised(loaded, one)
            self._ends.append(_End(rank, seconds, consequence, _by_a_peer(loaded)))

    def first(self) -> int | None:
        """The rank that failed first, by itself; None if none did. Of ranks that failed alike it is
        the lowest: which of them was quicker says nothing."""
        ends = [end for end in self._ends if not end.consequence] or self._ends
        if not ends:
            return None
        earliest = min(end.seconds for end in ends)
        own = [e for e in ends if not e.by_a_peer and e.seconds <= earliest + _SAME_EVENT_S]
        first = min(own or ends, key=lambda end: (end.seconds, end.rank)).rank
        failure = self.failures.get(first)
        if failure is None:
            return first
        same = (failure.kind, failure.message)
        return min(r for r, f in self.failures.items() if (f.kind, f.message) == same)


#: What the pool says when `%distributed stop`, or the notebook's end, has ended it.
_STOPPED = "the notebook has ended the rank processes"
#: Ranks see a peer's end before it is known here, and before a peer that unwinds has come to say
#: what it raised. A failure of communication within so many seconds before one that is none is the
#: consequence of it; one that is older stands by itself.
_SAME_EVENT_S = 2.0


@dataclass(frozen=True)
class _End:
    """How a rank came to give no value. seconds: since the call's begin, by one clock for all.

    consequence: it ended after we had begun to end it. by_a_peer: a failure of communication.
    """

    rank: int
    seconds: float
    consequence: bool = False
    by_a_peer: bool = False


def _is_abort(failure: RankFailure) -> bool:
    return failure.kind.rpartition(".")[2] in ("CallAborted", "KeyboardInterrupt")


def _by_a_peer(failure: RankFailure) -> bool:
    """Whether an exception, or what it came out of, is a failure of communication: by its type or
    by where it was raised; those of the backward pass by what gloo and NCCL say."""
    return any(_of_communication(link) for link in failure.chain)


def _of_communication(link: Link) -> bool:
    name = link.kind.rpartition(".")[2]
    if name in ("DistNetworkError", "DistBackendError", "DistStoreError"):
        return True
    if name != "RuntimeError":
        return False
    where = link.frames[-1].filename if link.frames else ""
    return f"{os.sep}torch{os.sep}distributed{os.sep}" in where or any(
        sign in link.message for sign in ("gloo/transport/", "NCCL error", "ncclRemoteError")
    )


def death_of(one: Mapping[str, Any]) -> RankDeath:
    """How a process ended: `pid`, `status`, `exit_known`, `program` and `memory` as the pool tells
    them."""
    code, memory = one["status"], one["memory"]
    if not one["exit_known"]:
        return RankDeath(one["pid"], signal=signal.SIGKILL)
    if not os.WIFSIGNALED(code):
        end = os.waitstatus_to_exitcode(code)
        return RankDeath(one["pid"], exit_code=end, program=one["program"])
    return RankDeath(
        one["pid"],
        signal=os.WTERMSIG(code),
        out_of_memory={"yes": True, "no": False}.get(memory["verdict"]),
        machine_out_of_memory=memory["verdict"] == "likely",
        memory_limit=memory["limit"],
        memory_peak=memory["peak"],
        limits=pressure.Limits.now(),
        program=one["program"],
    )


def how_they_ended(ends: Mapping[int, Mapping[str, Any]]) -> str:
    """A sentence for each rank that ended between two cells."""
    text = ""
    for rank, end in ends.items():
        death = death_of(end)
        advice = f" {death.advice()}" if death.out_of_memory else ""
        text += f" Rank {rank} {death.describe()}.{advice}" if end["exit_known"] else ""
    return text


def _advised(failure: RankFailure, one: dict[str, Any]) -> RankFailure:
    memory = one["memory"]
    out = memory["verdict"] == "yes"
    advice = gpu_errors.advice(failure.kind, failure.message, one["rank"], one["pid"])
    advice = advice or pressure.of_failure(failure, pressure.Limits.now(), out, memory["limit"])
    return dataclasses.replace(failure, advice=advice) if advice else failure


def _error(
    owner: pool.Pool,
    view: dict[str, Any],
    reports: _Reports,
    world: int,
    timeout: float | None,
    stopped: bool,
    call: int,
) -> BaseException | None:
    if view["cause"] == "deadline":
        assert timeout is not None
        found = {rank: read(answer) for rank, answer in view["stacks"].items()}
        where = {rank: one.stack for rank, one in found.items()}
        waits = "\n".join(differences(found))
        return build_timeout(timeout, where, reports.failures, reports.values, waits)
    first = reports.first()
    if view["cause"] == "stop" or (stopped and first is None):
        killed = _killed(reports.deaths)
        return CallInterrupted(f"stopped; {killed}" if killed else "stopped")
    if first is None:
        return None
    death = reports.deaths.get(first)
    if death is not None and (owner.core.broken or not death.pid):
        why = owner.why_dead() or "out of processes"
        anew = ". The next call starts anew" if owner.core.broken else ""
        if why == _STOPPED:
            return pool.PoolError(f"the call was ended: {why}{anew}")
        return pool.PoolError(f"rank {first} could not run: {why}{anew}")
    log = str(owner.core.log_path(call, first)) if death is not None else ""
    written = log if os.path.exists(log) else ""
    if death is not None and death.exit_code is not None and first in reports.never_up:
        why = pool.last_line(written) or f"it ended with exit code {death.exit_code}"
        return pool.PoolError(f"rank {first} could not start: {why}")
    return build_error(reports.failures, reports.deaths, reports.values, first, world, written)


def _killed(deaths: dict[int, RankDeath]) -> str:
    """What is said of ranks that Stop had to end by force; "" if there are none."""
    word = "rank" if len(deaths) == 1 else "ranks"
    return f"{word} {format_ranks(deaths)} had to be killed" if deaths else ""


def final_words(ended: Ended) -> tuple[str, str, str]:
    """The mark, the word before the seconds, and what failed."""
    error = ended.error
    if error is None:
        return "✓", "done in", ""
    if isinstance(error, KeyboardInterrupt):
        return "■", "stopped after", _killed(ended.deaths)
    if isinstance(error, DistributedTimeoutError):
        return "✗", "timeout after", ""
    rank = getattr(error, "rank", -1)
    if rank in ended.failures:
        return "✗", "failed after", f"rank {rank}: {ended.failures[rank].kind}"
    if isinstance(error, pool.PoolError):
        return "✗", "failed after", str(error).partition(":")[0]
    return "✗", "failed after", f"rank {rank} died" if rank in ended.deaths else ""
