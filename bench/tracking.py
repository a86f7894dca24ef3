"""Row: what logging a metric costs the rank that logs it, and whether all of them are stored."""

from __future__ import annotations

import json
import sqlite3
import statistics
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from kernels import OURS, BenchError, Kernel, program
from table import Figure, Line, figure
from workplace import RANKS, Workplace, torchrun

_OURS, _PLAIN = 2000, 30  # metrics of each rank
_GOAL_S = 20e-6
_STORED_LIMIT_S = 60.0


def metrics(place: Workplace) -> Iterator[Line]:
    """8 x 2,000 mlflow.log_metric: seconds of one in a rank, and how many are in the store."""
    with Kernel(OURS) as kernel:
        store = kernel.folder / "mlflow.db"
        kernel.run(f"%env MLFLOW_TRACKING_URI=sqlite:///{store}")
        kernel.run(program("log_metrics.py"))
        kernel.value("metrics.distributed(10)")
        busy: list[float] = []
        spaced: list[float] = []
        counts: list[int] = []
        for _ in range(place.times(5)):
            for count, work, seconds in ((_OURS, 0, busy), (200, 200, spaced)):
                of_ranks = kernel.value(f"metrics.distributed({count}, {work})")
                seconds += [statistics.median(of_rank) for of_rank in of_ranks]
                stored = _stored(store)
                if count == _OURS:
                    counts.append(stored)
    plain, queued = _plain("waiting"), _plain("async")
    expected = RANKS * _OURS
    all_there = set(counts) == {expected}
    mine = figure(busy, note=f"stored of {expected}: {min(counts)}")
    yield Line(
        "8 x 2,000 log_metric, medians of ranks",
        mine,
        {f"plain MLflow, 8 x {_PLAIN}": plain, f"its async logging, 8 x {_PLAIN}": queued},
        "<= 20 µs, all stored",
        mine.median <= _GOAL_S and all_there,
    )
    yield Line("8 x 200 log_metric between matrix products", figure(spaced))


def _stored(store: Path) -> int:
    """Metrics of the newest run, once it has ended: everything of it is written then."""
    deadline = time.monotonic() + _STORED_LIMIT_S
    while time.monotonic() < deadline:
        with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as database:
            newest = "select run_uuid, status from runs order by start_time desc limit 1"
            run, status = database.execute(newest).fetchone()
            if status == "FINISHED":
                counted = database.execute(
                    "select count(*) from metrics where run_uuid = ? and key like 'bench%'", [run]
                ).fetchone()
                return int(counted[0])
        time.sleep(0.05)
    raise BenchError(f"the run had not ended {_STORED_LIMIT_S:g} s after the call")


def _plain(how: str) -> Figure:
    with TemporaryDirectory(prefix="sgpu-bench-") as folder:
        store = Path(folder) / "mlflow.db"
        _, text = torchrun("plain_metrics.py", f"sqlite:///{store}", str(_PLAIN), how)
        medians = [
            statistics.median(json.loads(line.removeprefix("seconds ")))
            for line in text.splitlines()
            if line.startswith("seconds ")
        ]
        return figure(medians, note=f"stored of {RANKS * _PLAIN}: {_stored(store)}")
