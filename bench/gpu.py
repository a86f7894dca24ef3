"""Rows: our ranks on GPUs against torchrun, with the same code. One line without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kernels import PROGRAMS, BenchError
from processes import descendants, wait_until_quiet
from table import Figure, Line, figure
from workplace import Workplace, alternate, folder_of

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
    try:
        yield from _starts(place, gpus)
        yield from _work(place, gpus)
    finally:
        pool.stop()


def _starts(place: Workplace, gpus: int) -> Iterator[Line]:
    import gpu_work

    from serverless_gpu import distributed, pool

    cold_parts: list[dict[str, float]] = []
    their_parts: list[dict[str, float]] = []

    def measured(arguments: list[str], parts: list[dict[str, float]]) -> list[float]:
        seconds, found = _program(arguments)
        parts.append(_slowest(found))
        return [seconds]

    cold, theirs = alternate(
        2,
        lambda: measured([str(PROGRAMS / "gpu_script.py")], cold_parts),
        lambda: measured(_torchrun(gpus, "start"), their_parts),
    )

    first = distributed(gpus=gpus)(gpu_work.start)
    first.distributed()
    parts: list[dict[str, float]] = []

    def call() -> list[float]:
        began = time.perf_counter()
        found = first.distributed()
        seconds = time.perf_counter() - began
        parts.append(_slowest([{"start": one} for one in found]))
        return [seconds]

    warm: list[float] = []
    for _ in range(place.times(6)):
        wait_until_quiet([os.getpid(), *descendants(os.getpid())])
        warm += call()
    warm_parts, parts = parts, []
    busy = figure(s for _ in range(place.times(6)) for s in call())
    rivals: dict[str, Figure | str] = {"torchrun, from its start": theirs}
    yield Line("warm call -> first NCCL all-reduce done", figure(warm), rivals)
    yield Line("the same, calls back to back", busy, rivals)
    yield Line("new script -> first NCCL all-reduce done", cold, rivals)
    for name in warm_parts[0]:
        yield Line(
            f"... of it in the rank: {name}",
            figure(one[name] for one in warm_parts),
            {
                "without a context ahead": figure(one[name] for one in cold_parts),
                "torchrun": figure(one[name] for one in their_parts),
            },
        )
    imports = pool.get().import_seconds()
    yield Line("imports, once, in the fork server", figure([imports]))


def _work(place: Workplace, gpus: int) -> Iterator[Line]:
    import gpu_work

    from serverless_gpu import distributed

    def in_ranks() -> Any:
        gpu_work.start()
        return gpu_work.work()

    ours_found: list[Any] = []
    their_found: list[Any] = []
    call = distributed(gpus=gpus)(in_ranks)
    for _ in range(2):
        ours_found += call.distributed()
        their_found += _program(_torchrun(gpus, "all"))[1]

    def both(of: Callable[[Any], list[float]], unit: str) -> tuple[Figure, Figure]:
        ours = figure((v for one in ours_found for v in of(one)), unit)
        return ours, figure((v for one in their_found for v in of(one)), unit)

    for key, work in (
        ("transformer", "training step, transformer in bf16"),
        ("small", "training step, small network, loss read"),
    ):
        mine, theirs = both(lambda one, key=key: one[key], "s")  # type: ignore[misc]
        rate = theirs.median / mine.median
        rivals: dict[str, Figure | str] = {"torchrun": theirs, "our rate": f"{rate:.3f}x"}
        yield Line(work, mine, rivals, f">= {_RATE_GOAL}x torchrun", rate >= _RATE_GOAL)
    for size in map(str, gpu_work.SIZES):
        mine, theirs = both(lambda one, size=size: [one["bandwidth"][size]], "B/s")  # type: ignore[misc]
        share = f"{mine.median / theirs.median:.3f}x" if gpus > 1 else "one GPU: no links"
        name = f"all_reduce of {int(size) >> 20} MiB, bus bandwidth"
        yield Line(name, mine, {"torchrun": theirs, "ours": share})


def _torchrun(gpus: int, what: str) -> list[str]:
    run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(gpus)]
    return [*run, str(PROGRAMS / "gpu_torchrun.py"), what]


def _program(arguments: Sequence[str]) -> tuple[float, list[Any]]:
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
        raise BenchError(f"{arguments[-2]} ended with {process.returncode}: {text[-300:]!r}")
    return seconds, found


def _slowest(found: Sequence[Any]) -> dict[str, float]:
    """Of each step, the seconds of the rank that took longest."""
    return {name: max(one["start"][name] for one in found) for name in found[0]["start"]}
