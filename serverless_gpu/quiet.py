"""Says where ranks are when nothing has happened for a while.

It does not claim that they hang: a long quiet computation is told apart by the CPU it uses and by
the collectives it goes through, and what is shown is what is known. While ranks print it costs
nothing but a look at a clock.
"""

from __future__ import annotations

import os
import re
import time
from typing import Any

from . import _core, stacks
from .errors.failure import format_ranks
from .report import Report
from .whereabouts import ask, differences, running_of

#: Seconds without output until ranks are asked: where they are if they do not compute either, else
#: only whether they wait in a collective for that long.
DEFAULT_LIMIT = 30.0
#: Seconds between two times that they are asked.
_AGAIN = 5.0
#: A report that says the same but for its seconds is not shown anew for so long: who has opened its
#: details is reading, and they close when it changes.
_SAME = 60.0
_SECONDS = re.compile(r"\d+ s\b")
#: Share of one core above which a rank counts as computing.
_BUSY = 0.2

_TICK = os.sysconf("SC_CLK_TCK")


def limit() -> float:
    """Seconds, from SERVERLESS_GPU_QUIET_S; ValueError if that is no number above 0."""
    text = os.environ.get("SERVERLESS_GPU_QUIET_S", "")
    if not text:
        return DEFAULT_LIMIT
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise ValueError(f"SERVERLESS_GPU_QUIET_S takes seconds above 0, got {text!r}")
    return seconds


class QuietWatch:
    """Watches one call. Threads: the one that waits for the call."""

    def __init__(self, core: _core.RankPool, members: list[tuple[int, int]]) -> None:
        self._core = core
        self._members = members
        self._limit = limit()
        now = time.monotonic()
        self._heard = self._worked = now  # when ranks last wrote; computed or wrote
        self._cpu: tuple[float, dict[int, float]] | None = None
        self._next = 0.0  # when ranks may be asked again
        self._found: Report | None = None
        self._found_at = 0.0
        self._clock = time.time() - now  # what monotonic times lack to those of the clock

    def look(self, view: dict[str, Any], last_output: float) -> Report | None:
        """To be called a few times a second. What to show, or None while all is well.

        `last_output` is the time (monotonic, seconds) at which ranks last wrote something.
        """
        now = time.monotonic()
        if last_output > self._heard:
            self._heard, self._found = last_output, None
        if now - self._heard < self._limit / 2:
            return None
        if not self._started():
            self._heard = self._worked = now
        if self._computing(now):
            self._worked = now
        if now - self._heard >= self._limit and now >= self._next:
            self._keep(self._ask(view, now), now)
        return self._found

    def _keep(self, found: Report | None, now: float) -> None:
        recent = now - self._found_at < _SAME
        if recent and _but_for_seconds(self._found) == _but_for_seconds(found):
            return
        self._found, self._found_at = found, now

    def _started(self) -> bool:
        alive = self._core.pids()["children"]
        return any(child in alive for _, child in self._members)

    def _computing(self, now: float) -> bool:
        """Whether a rank has used its CPU since the last look, a second ago or more."""
        if self._cpu is not None and now - self._cpu[0] < 1:
            return False
        pids = self._core.pids()["children"]
        used = {child: _cpu_seconds(pids[child]) for _, child in self._members if child in pids}
        before, self._cpu = self._cpu, (now, used)
        if before is None:
            return True
        seconds = now - before[0]
        if any(used[c] - before[1].get(c, used[c]) > _BUSY * seconds for c in used):
            return True
        # On a machine with too much to do it may get hardly any.
        return any(_wants_cpu(pids[child]) for _, child in self._members if child in pids)

    def _ask(self, view: dict[str, Any], now: float) -> Report | None:
        """Ranks that are idle are asked for all; of others it is only asked whether they wait in a
        collective, for those that wait for a GPU use their CPU too."""
        idle = now - max(self._worked, self._heard)
        if idle >= self._limit:
            self._next = now + _AGAIN
            since = self._time_of(max(self._worked, self._heard))
            return self._report(view, f"no output and no CPU used since {since}")
        running = running_of(self._members, view)
        answers = ask(self._core, running, stack=False)
        waiting = max((one.waiting() for one in answers.values()), default=0.0)
        if waiting < self._limit:
            self._next = now + self._limit / 2
            return None
        self._next = now + _AGAIN
        return self._report(view, f"no output since {self._time_of(self._heard)}")

    def _time_of(self, moment: float) -> str:
        return time.strftime("%H:%M:%S", time.localtime(self._clock + moment))

    def _report(self, view: dict[str, Any], what: str) -> Report:
        running = running_of(self._members, view)
        found = ask(self._core, running, stack=True)
        where = {rank: one.stack for rank, one in found.items()}
        parts = [stacks.summary(where)] if where else []
        silent = running.keys() - found.keys()
        if silent:
            parts.append(f"[{format_ranks(silent)}] stopped: not even its agent answers")
        ended = [rank for rank, _ in self._members if rank not in running]
        if ended:
            parts.append(f"[{format_ranks(ended)}] ended")
        waits = differences(found)
        return Report(
            "; ".join([f"{what}: {'; '.join(parts)}", *waits]), tuple(stacks.report(where))
        )


def _but_for_seconds(report: Report | None) -> tuple[str, ...]:
    if report is None:
        return ()
    return tuple(_SECONDS.sub("", text) for text in (report.line, *report.details))


def _wants_cpu(pid: int) -> bool:
    """Whether the main thread of a process runs or waits for its turn."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rpartition(")")[2].split()[0] == "R"
    except OSError:
        return False


def _cpu_seconds(pid: int) -> float:
    """User and system time of a process, its ended children's included."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            fields = f.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(int(n) for n in fields[11:15]) / _TICK
