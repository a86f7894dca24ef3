"""Rows: what a call costs that does nothing."""

from __future__ import annotations

from collections.abc import Iterator

from kernels import Kernel
from table import Figure, Line, figure
from workplace import NO_PEER, Workplace, alternate, torchrun

_SESSION_GOAL_S, _CLEAN_GOAL_S, _TORCHRUN_RATIO = 1.5e-3, 8e-3, 1000


def calls(place: Workplace) -> Iterator[Line]:
    """A function call that does nothing, with 8 results, seen from the cell that makes it."""
    ours, peer = place.ours(), place.peer()
    rounds, each = place.times(10), 30
    tracked, untracked, *rival = alternate(
        rounds,
        lambda: ours.value(f"measure(in_session, {each})"),
        lambda: ours.value(f"measure(in_session_untracked, {each})"),
        *([lambda: peer.value(f"measure({each // 3})")] if peer else []),
    )
    launcher = figure(torchrun("noop.py")[0] for _ in range(place.times(5)))
    rivals: dict[str, Figure | str] = {
        "ipyparallel": rival[0] if rival else NO_PEER,
        "torchrun, no results": launcher,
    }
    for work, mine in (
        ("call in the session", tracked),
        ("call in the session, MLflow off", untracked),
    ):
        times = launcher.median / mine.median
        met = (
            mine.median <= _SESSION_GOAL_S
            and times >= _TORCHRUN_RATIO
            and all(mine.median < other.median for other in rival)
        )
        goal = "<= 1.5 ms, first, >= 1000x torchrun"
        yield Line(work, mine, {**rivals, "ratio to torchrun": f"{times:.0f}x"}, goal, met)
    yield from _clean(place, ours, rivals)


def _clean(place: Workplace, ours: Kernel, rivals: dict[str, Figure | str]) -> Iterator[Line]:
    for work, name in (
        ("call on clean ranks (default)", "on_clean_ranks"),
        ("call on clean ranks, MLflow off", "on_clean_ranks_untracked"),
    ):
        seconds: list[float] = []
        for _ in range(place.times(20)):
            ours.rest()
            seconds += ours.value(f"measure({name}, 1)")
        mine = figure(seconds)
        yield Line(work, mine, rivals, "<= 8 ms", mine.median <= _CLEAN_GOAL_S)
    ours.rest()
    busy = figure(ours.value(f"measure(on_clean_ranks, {place.times(20)})"))
    yield Line("call on clean ranks, back to back", busy, rivals)
