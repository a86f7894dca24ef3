"""Critical errors of GPUs, by the numbers under which the driver logs them: "Xid 79"."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from . import _core, accelerator

#: Seconds for which an error counts as the cause of what ranks raise.
RECENT_S = 30.0

#: What the numbers mean where a program is at fault, and where the machine is.
_OF_PROGRAMS = {
    13: "a kernel failed",
    31: "a kernel touched memory that is not its own",
    43: "a kernel was stopped",
}
_OF_MACHINES = {
    48: "a memory error that could not be corrected",
    61: "the GPU's micro-controller has stopped",
    62: "the GPU's micro-controller has halted",
    63: "a bad memory row is to be replaced",
    64: "a bad memory row could not be replaced",
    74: "an NVLink has failed",
    79: "the GPU has fallen off the bus",
    92: "many memory errors",
    94: "a memory error, contained in one process",
    95: "a memory error that may have hit every process",
    119: "the GPU's own processor does not answer",
    120: "the GPU's own processor has failed",
}
#: A context that is torn down because of another error, or with its process.
_CONSEQUENCE = 45


@dataclass
class _Watch:
    driver: _core.GpuDriver
    events: _core.GpuEvents
    seen: list[tuple[float, int, int]] = field(default_factory=list)  # when, GPU, Xid


_watch: _Watch | None = None


def begin() -> None:
    """Has the driver keep what happens from now on. Costs something only the first time, and
    nothing while calls run. Does nothing without a GPU."""
    global _watch
    driver = accelerator.machine().driver
    if driver is None:
        _watch = None
    elif _watch is None or _watch.driver is not driver:
        _watch = _Watch(driver, driver.events())


def recent(gpu: int, clock: Callable[[], float] = time.monotonic) -> tuple[int, ...]:
    """The errors of a GPU (as nvidia-smi counts) in the last RECENT_S, each number once.

    Threads: one at a time, as `begin`.
    """
    if _watch is None:
        return ()
    now = clock()
    new = [(now, index, xid) for index, xid in _watch.events.take() if xid != _CONSEQUENCE]
    _watch.seen = [one for one in [*_watch.seen, *new] if now - one[0] <= RECENT_S]
    return tuple(dict.fromkeys(xid for _, index, xid in _watch.seen if index == gpu))


def of_machine(xids: Sequence[int]) -> list[int]:
    """Those that no program causes."""
    return [xid for xid in xids if xid in _OF_MACHINES]


def describe(xids: Sequence[int]) -> str:
    """`Xid 79: the GPU has fallen off the bus`; several after each other."""
    known = {**_OF_PROGRAMS, **_OF_MACHINES}
    return "; ".join(f"Xid {xid}" + (f": {known[xid]}" if xid in known else "") for xid in xids)
