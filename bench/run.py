"""Measures ours and its rivals side by side and prints one table; `./dev bench` runs it.

A row that fails says why and the others go on. Nothing is asserted: figures are medians, with the
90th percentile and the number of samples.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import calls
import data
import ends
import gpu
import notebook
import tracking
import training
from table import Line, render
from workplace import Workplace

from serverless_gpu import accelerator

Row = Callable[[Workplace], Iterator[Line]]
ROWS: dict[str, Row] = {
    "call": calls.calls,
    "cell": notebook.cells,
    "start": notebook.starts,
    "cold": notebook.cold,
    "lines": data.lines,
    "delay": data.delay,
    "argument": data.argument,
    "results": data.results,
    "refill": ends.refill,
    "faults": ends.faults,
    "sigkill": ends.sigkill,
    "memory": ends.memory,
    "metrics": tracking.metrics,
    "training": training.training,
    "gpu": gpu.gpu,
}
_PACKAGES = (
    *("torch", "mlflow-skinny", "ipython", "ipykernel", "ipyparallel", "jupyter_client", "pyzmq"),
    "serverless-gpu-kernel",
)


def main() -> int:
    options = _options()
    conditions = _conditions()
    print("\n".join(f"{name}: {value}" for name, value in conditions.items()), flush=True)
    place = Workplace(options.quick, options.full)
    lines: list[Line] = []
    try:
        for name in options.only:
            lines += _measured(name, place)
    except KeyboardInterrupt:
        print("interrupted: what there is so far", file=sys.stderr)
    finally:
        place.close()
    print("\n" + render(lines))
    conditions["load average at the end"] = _load()
    print(f"\nload average at the end: {conditions['load average at the end']}")
    if options.json:
        table = {"conditions": conditions, "lines": [line.to_json() for line in lines]}
        options.json.write_text(json.dumps(table, indent=1) + "\n")
    return 0


def _measured(name: str, place: Workplace) -> list[Line]:
    began = time.monotonic()
    print(f"{name} …", end=" ", file=sys.stderr, flush=True)
    lines: list[Line] = []
    try:
        for line in ROWS[name](place):
            lines.append(line)
    except Exception as error:
        if os.environ.get("SGPU_BENCH_TRACEBACK"):
            traceback.print_exc()
        reason = (str(error).splitlines() or [""])[0]
        lines.append(Line(name, f"failed: {type(error).__name__}: {reason}"))
        place.close()
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return lines


def _options() -> argparse.Namespace:
    rows = "; ".join(f"{name}: {_first_line(row)}" for name, row in ROWS.items())
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__, epilog=rows)
    parser.add_argument("--only", metavar="ROW,...", type=_names, default=list(ROWS))
    parser.add_argument("--quick", action="store_true", help="fewer samples")
    parser.add_argument("--full", action="store_true", help="also what takes minutes")
    parser.add_argument("--json", metavar="FILE", type=Path, help="every sample, as JSON")
    return parser.parse_args()


def _names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in ROWS]:
        raise argparse.ArgumentTypeError(f"no row {unknown[0]!r}; there are {', '.join(ROWS)}")
    return names


def _first_line(row: Row) -> str:
    return (row.__doc__ or "").splitlines()[0].rstrip(".")


def _conditions() -> dict[str, str]:
    return {
        "python": f"{platform.python_version()} on {platform.platform()}",
        "packages": ", ".join(f"{name} {_version(name)}" for name in _PACKAGES),
        "machine": f"{len(os.sched_getaffinity(0))} cores of {_processor()}, {_memory()}",
        "GPUs": accelerator.describe(),
        "load average at the start": _load(),
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _memory() -> str:
    return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.0f} GB"


def _load() -> str:
    return " ".join(f"{load:.2f}" for load in os.getloadavg())


if __name__ == "__main__":
    sys.exit(main())
