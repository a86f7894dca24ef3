"""Rows: our ranks on GPUs against torchrun, with the same code. One line without a GPU."""

from __future__ import annotations

import json
import operator
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kernels import PROGRAMS, BenchError
from processes import descendants, wait_until_quiet
from table import Figure, Line, figure
from workplace import Workplace, folder_of

_DONE = "first all-reduce done"
_RATE_GOAL = 0.99
_LIMIT_S = 120.0


def gpu(place: Workplace) -> Iterator[Line]:
    """Starts, training steps and bandwidth on all GPUs, MLflow off."""
    from serverless_gpu import accelerator, pool

    gpus = accelerator.detect().count
    if gpus == 0:
        yield Line("on GPUs", "no GPU here")
        return
    os.environ["SERVERLESS_GPU_MLFLOW"] = "off"
    sys.path.append(str(PROGRAMS))
    script, launcher = [str(PROGRAMS / "gpu_script.py")], _torchrun(gpus)
    try:
        # In turns, so that what else the machine does hits all of them alike.
        runs = [
            (_program(script), _program(launcher), _in_our_ranks(gpus))
            for _ in range(place.times(5))
        ]
        cold, theirs, ours = ([run[i] for run in runs] for i in range(3))
        yield from _starts(_calls(place, gpus), cold, theirs)
        yield from _work(gpus, ours, [one for _, found in theirs for one in found])
    finally:
        pool.stop()


def _in_our_ranks(gpus: int) -> list[Any]:
    """What each rank has measured of its work."""
    import gpu_start
    import gpu_work

    from serverless_gpu import distributed

    def in_rank() -> Any:
        gpu_start.start()
        return gpu_work.work()

    return distributed(gpus=gpus)(in_rank).distributed()


@dataclass(frozen=True)
class Calls:
    """Warm calls to a first all-reduce. parts: of the slowest rank in each call."""

    rested: Figure
    parts: list[dict[str, float]]
    back_to_back: Figure


def _calls(place: Workplace, gpus: int) -> Calls:
    import gpu_start

    from serverless_gpu import distributed

    first = distributed(gpus=gpus)(gpu_start.start)
    parts: list[dict[str, float]] = []

    def call() -> float:
        began = time.perf_counter()
        found = first.distributed()
        seconds = time.perf_counter() - began
        parts.append(_slowest([{"start": one} for one in found]))
        return seconds

    call()
    parts.clear()
    rested = []
    for _ in range(place.times(6)):
        wait_until_quiet([os.getpid(), *descendants(os.getpid())])
        rested.append(call())
    return Calls(figure(rested), parts[:], figure(call() for _ in range(place.times(6))))


Run = tuple[float, list[Any]]  # of a program: seconds to its first all-reduce, what ranks found


def _starts(warm: Calls, cold: Sequence[Run], theirs: Sequence[Run]) -> Iterator[Line]:
    from serverless_gpu import pool

    rivals: dict[str, Figure | str] = {"torchrun, from its start": figure(s for s, _ in theirs)}
    yield Line("warm call -> first NCCL all-reduce done", warm.rested, rivals)
    yield Line("the same, calls back to back", warm.back_to_back, rivals)
    from_nothing = figure(seconds for seconds, _ in cold)
    yield Line("new script -> first NCCL all-reduce done", from_nothing, rivals)
    for name in warm.parts[0]:
        yield Line(
            f"... of it in the rank: {name}",
            figure(one[name] for one in warm.parts),
            {
                "without a context ahead": figure(_slowest(found)[name] for _, found in cold),
                "torchrun": figure(_slowest(found)[name] for _, found in theirs),
            },
        )
    owner = pool.running()
    if owner is not None:
        yield Line("imports, once, in the fork server", figure([owner.import_seconds()]))


def _work(gpus: int, ours: Sequence[Any], theirs: Sequence[Any]) -> Iterator[Line]:
    import gpu_work

    mine_found = [one for found in ours for one in found]

    def both(of: Callable[[Any], list[float]], unit: str) -> tuple[Figure, Figure]:
        mine = figure((v for one in mine_found for v in of(one)), unit)
        return mine, figure((v for one in theirs for v in of(one)), unit)

    for key, work in (
        ("transformer", "training step, transformer in bf16"),
        ("small", "training step, small network, loss read"),
    ):
        mine, other = both(operator.itemgetter(key), "s")
        rate = other.median / mine.median
        rivals: dict[str, Figure | str] = {"torchrun": other, "our rate": f"{rate:.3f}x"}
        yield Line(work, mine, rivals, f">= {_RATE_GOAL}x torchrun", rate >= _RATE_GOAL)
    if gpus == 1:
        yield Line("all_reduce, bus bandwidth", "one GPU: no links")
        return
    for size in gpu_work.SIZES:
        mine, other = both(lambda one, size=str(size): [one["bandwidth"][size]], "B/s")  # type: ignore[misc]
        share = f"{mine.median / other.median:.3f}x"
        name = f"all_reduce of {size >> 20} MiB, bus bandwidth"
        yield Line(name, mine, {"torchrun": other, "ours": share})


def _torchrun(gpus: int) -> list[str]:
    run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(gpus)]
    return [*run, str(PROGRAMS / "gpu_torchrun.py")]


def _program(arguments: Sequence[str]) -> Run:
    """Runs Python: seconds until all ranks' first all-reduce was done, as seen from here, and what
    the ranks have found. Raises BenchError if it fails."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **folder_of(PROGRAMS)},
    )
    seconds, found, text = 0.0, [], ""
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            text += line
            if _DONE in line:
                seconds = time.perf_counter() - began
            if line.startswith("found "):
                found = json.loads(line.removeprefix("found "))
        process.wait(_LIMIT_S)
    if process.returncode != 0 or not seconds:
        raise BenchError(f"{arguments[-1]} ended with {process.returncode}: {text[-300:]!r}")
    return seconds, found


def _slowest(found: Sequence[Any]) -> dict[str, float]:
    """Of each step, the seconds of the rank that took longest."""
    return {name: max(one["start"][name] for one in found) for name in found[0]["start"]}
