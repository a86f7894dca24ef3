"""Rows: what is left and what comes back when processes are killed, and what idle ones hold."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

from kernels import OURS, BenchError, Kernel, environment, program
from processes import Watch, marked, pss, users_of
from table import Line, figure
from workplace import RANKS, Workplace

_REFILL_GOAL_S, _END_GOAL_S, _MEMORY_RATIO = 0.1, 0.5, 1.4
_LONGEST_END_S = 10.0
_BUSY = "rank is busy"


def refill(place: Workplace) -> Iterator[Line]:
    """A session's rank is SIGKILLed: seconds until a call has answered from 8 ranks again."""
    ours = place.ours()
    ours.run(program("ours_refill.py"))
    for work, call, goal_s in (
        ("a rank SIGKILLed -> 8 have answered", "until_eight(answer)", _REFILL_GOAL_S),
        ("a rank SIGKILLed -> known -> 8 in all-reduce", "once_known({pid}, all_reduce)", None),
    ):
        seconds: list[float] = []
        met_death = 0
        for i in range(place.times(10)):
            ours.value("until_eight(all_reduce)")
            ours.rest()
            pid = ours.value(f"rank_pid({i % RANKS})")
            os.kill(pid, signal.SIGKILL)
            began = time.perf_counter()
            met_death += ours.value(call.format(pid=pid)) - 1
            seconds.append(time.perf_counter() - began)
        mine = figure(seconds, note=f"{met_death} calls met the death")
        goal, met = ("<= 0.1 s", mine.median <= goal_s) if goal_s else ("", None)
        yield Line(work, mine, {}, goal, met)


#: What goes wrong, and what the ladder of interrupts allows for it, in seconds.
_FAULTS = {
    "raise": 2.0,
    "SIGKILL": 2.0,
    "os._exit": 2.0,
    "stop in sleep": 1.0,
    "stop in collective": 2.0,
    "stop in native code with the GIL": 12.0,
    "deadline": 2.0,
}


def faults(place: Workplace) -> Iterator[Line]:
    """A call on 8 ranks goes wrong, the others being in a collective: seconds to the prompt."""
    ours = place.ours()
    ours.run(program("ours_faults.py"))
    for fault, goal_s in _FAULTS.items():
        seconds = []
        for _ in range(place.times(5)):
            ours.rest()
            seconds.append(ours.value(f"seconds_to_prompt({fault!r})"))
        mine = figure(seconds)
        yield Line(f"{fault} -> prompt", mine, {}, f"<= {goal_s:g} s", mine.median <= goal_s)


def sigkill(place: Workplace) -> Iterator[Line]:
    """The kernel is SIGKILLed; its 8 busy ranks each have a DataLoader worker and a daemon."""
    last: list[float] = []
    before_last: list[float] = []
    left: list[int] = []
    count = 0
    for _ in range(place.times(10)):
        with Kernel(OURS) as kernel:
            ends, killed, remaining = _killed_while_busy(kernel)
        ordered = sorted(ends)
        last.append(ordered[-1] - killed)
        # The guard's two processes stay for as long as the tracker has something to write.
        before_last.append(ordered[-4] - killed)
        left.append(remaining)
        count = len(ends)
    note = f"{count} processes each time; left for ever: {sum(left)}"
    work = figure(before_last, note=note)
    met = work.median <= _END_GOAL_S and not any(left)
    yield Line("kernel SIGKILLed -> all gone but tracker and guard", work, {}, "<= 0.5 s", met)
    tracker = figure(last)
    yield Line("... and those", tracker, {}, "<= 2 s", tracker.median <= 2.0)


def _killed_while_busy(kernel: Kernel) -> tuple[list[float], float, int]:
    """Ends of all processes below the kernel, the time of its SIGKILL, and how many are left."""
    busy = 0

    def all_busy(text: str) -> bool:
        nonlocal busy
        busy += text.count(_BUSY)
        return busy >= RANKS

    kernel.run(program("busy.py"), seen=all_busy)
    below = kernel.below()
    if len(below) < 3 * RANKS:
        raise BenchError(
            f"only {len(below)} processes below the kernel: not what is to be measured"
        )
    watch = Watch(below)
    killed = time.monotonic()
    kernel.kill()
    ends = watch.ends(_LONGEST_END_S)
    remaining = len([pid for pid in marked(kernel.mark) if pid != kernel.pid])
    watch.kill()
    watch.close()
    return list(ends.values()), killed, remaining


def memory(place: Workplace) -> Iterator[Line]:
    """Memory (PSS) of 8 idle ranks, fork server and guard, against one process with the same
    imports."""
    with Kernel(OURS) as kernel:
        kernel.run("from serverless_gpu import pool; assert pool.get().ready.wait(120)")
        kernel.rest()
        spares = pss(kernel.below())
        note = _strangers_note(kernel)
        kernel.run(program("ours_calls.py"))
        kernel.run("measure(in_session, 3)")
        kernel.rest()
        used = pss(kernel.below())
        own = pss([kernel.pid])
    imports = "from serverless_gpu.rank import fork_server; fork_server.warm_up()"
    one = _memory_of([imports])
    plain = _memory_of(["import torch"])
    eight = _memory_of(["import torch"] * RANKS)
    ratio = spares / one
    yield Line(
        "memory: 8 spares, fork server, guard, rendezvous",
        figure([spares], "B", note),
        {
            "one process, same imports": figure([one], "B"),
            "ratio": f"{ratio:.2f}x",
            "one import torch": figure([plain], "B"),
            "8 x import torch": figure([eight], "B"),
        },
        "<= 1.4x",
        ratio <= _MEMORY_RATIO,
    )
    yield Line(
        "memory: the same, 8 used session ranks and the tracker more",
        figure([used], "B"),
        {"ratio": f"{used / one:.2f}x", "the kernel itself": figure([own], "B")},
    )


def _strangers_note(kernel: Kernel) -> str:
    """Pages of torch's libraries that others have mapped too make our share look smaller."""
    strangers = len(users_of("libtorch_cpu") - set(marked(kernel.mark)))
    return f"too low: {strangers} other processes share torch's pages" if strangers else ""


def _memory_of(codes: list[str]) -> int:
    """PSS of processes that run these and then wait, all at once."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", f"{code}\nprint(flush=True)\ninput()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
        )
        for code in codes
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise BenchError("a process to compare with ended early")
        return pss(process.pid for process in processes)
    finally:
        for process in processes:
            process.kill()
            process.communicate()
