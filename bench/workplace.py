"""What rows share: settings, and kernels that several rows use one after the other."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kernels import IPYKERNEL, OURS, PROGRAMS, BenchError, Kernel, environment, program
from table import Figure, figure

NO_PEER = "not installed (pip install ipyparallel)"
RANKS = 8
_SCRIPT_LIMIT_S = 600.0


@dataclass
class Workplace:
    """`quick`: fewer samples. `full`: also what takes minutes. Owns the kernels it lends."""

    quick: bool = False
    full: bool = False
    _lent: dict[str, Kernel] = field(default_factory=dict)

    def times(self, count: int) -> int:
        """How often to measure what is measured `count` times at leisure."""
        return max(2, count // 5) if self.quick else count

    def ours(self) -> Kernel:
        """Our kernel with a session of 8 ranks and the functions of ours_calls.py."""
        if OURS not in self._lent:
            kernel = self._lent[OURS] = Kernel(OURS)
            kernel.run(program("ours_calls.py"))
            kernel.run("measure(in_session, 1); measure(on_clean_ranks, 1)")
        return self._lent[OURS]

    def peer(self) -> Kernel | None:
        """ipykernel with 8 engines of ipyparallel; None if that is not installed."""
        if not has_peer():
            return None
        if IPYKERNEL not in self._lent:
            kernel = self._lent[IPYKERNEL] = Kernel(IPYKERNEL)
            kernel.run(program("peer_calls.py"), timeout_s=300)
            kernel.run("measure(3)")
        return self._lent[IPYKERNEL]

    def close(self) -> None:
        """Ends the kernels; the next row gets new ones."""
        while self._lent:
            self._lent.popitem()[1].close()


def has_peer() -> bool:
    return importlib.util.find_spec("ipyparallel") is not None


def build(target: str) -> Path:
    """Builds a C++ program of programs/ and returns its path. Raises BenchError if that fails."""
    root = PROGRAMS.parents[1]
    folder = root / "build" / "bench"
    settings = ["-DCMAKE_BUILD_TYPE=Release", "-DSGPU_EXTENSIONS=OFF"]
    for command in (
        ["cmake", "-S", str(root), "-B", str(folder), "-G", "Ninja", *settings],
        ["cmake", "--build", str(folder), "--target", target],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise BenchError(f"{target} was not built: {done.stdout[-300:]}{done.stderr[-300:]}")
    return folder / target


def torchrun(
    script: str, *arguments: str, seen: Callable[[str], bool] | None = None
) -> tuple[float, str]:
    """Runs a file of programs/ on 8 processes: seconds from the start of torchrun to its end, or
    to the first line of which `seen` is true; and its output.

    Raises BenchError if it fails.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS)]
    began = time.perf_counter()
    with subprocess.Popen(
        [*command, "--standalone", str(PROGRAMS / script), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(),
    ) as process:
        assert process.stdout is not None
        seconds = 0.0
        text = ""
        for line in process.stdout:
            text += line
            if seen is not None and not seconds and seen(line):
                seconds = time.perf_counter() - began
        process.wait(_SCRIPT_LIMIT_S)
    seconds = seconds or time.perf_counter() - began
    if process.returncode != 0:
        errors = [line.strip() for line in text.splitlines() if "Error: " in line]
        reason = (errors or ["no error shown"])[0]
        raise BenchError(f"torchrun {script}: exit {process.returncode}: {reason}")
    return seconds, text


def alternate(rounds: int, *measures: Callable[[], list[float]]) -> list[Figure]:
    """Measures in turns, so that what else the machine does hits all of them alike."""
    values: list[list[float]] = [[] for _ in measures]
    for _ in range(rounds):
        for measure, mine in zip(measures, values, strict=True):
            mine += measure()
    return [figure(v) for v in values]


def folder_of(path: Path) -> dict[str, str]:
    """The environment with another Python path in front."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(path), os.environ.get("PYTHONPATH")]))}
