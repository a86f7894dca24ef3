"""Rows: whether training runs as fast in our ranks as under torchrun, and as fast with a metric of
every rank in each step."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from kernels import OURS, BenchError, Kernel, program
from table import Line
from workplace import Workplace, alternate, torchrun

_GOAL_RATIO, _LOGGED_RATIO = 0.99, 0.95
_STEPS, _LOGGED_STEPS = 400, 40  # plain MLflow is too slow for more


def training(place: Workplace) -> Iterator[Line]:
    """Seconds of a step of the loop of examples/02_train_mlp.ipynb, on 8 ranks."""
    with Kernel(OURS) as kernel:
        kernel.run(program("train_loop.py"))
        kernel.run(program("train_ours.py"))
        kernel.value("of_ranks.distributed(5, False)")

        def ours(steps: int, log: bool) -> list[float]:
            return [max(kernel.value(f"of_ranks.distributed({steps}, {log})", timeout_s=300))]

        rounds = place.times(5)
        mine, long_logged, theirs = alternate(
            rounds,
            lambda: ours(_STEPS, False),
            lambda: ours(_STEPS, True),
            lambda: _torchrun(_STEPS, False),
        )
        logged, plain = alternate(
            2, lambda: ours(_LOGGED_STEPS, True), lambda: _torchrun(_LOGGED_STEPS, True)
        )
    ratio = theirs.median / mine.median
    yield Line(
        "training step, nothing logged",
        mine,
        {"torchrun": theirs, "our rate": f"{ratio:.2f}x"},
        ">= 0.99x torchrun",
        ratio >= _GOAL_RATIO,
    )
    yield Line(
        "training step, log_metric in each",
        logged,
        {"torchrun, plain MLflow": plain, "our rate": f"{plain.median / logged.median:.2f}x"},
    )
    rate = mine.median / long_logged.median
    yield Line(
        f"the same, {_STEPS} steps",
        long_logged,
        {
            "ours, nothing logged": mine,
            "torchrun, nothing logged": theirs,
            "our rate": f"{rate:.2f}x ours without",
        },
        f">= {_LOGGED_RATIO}x nothing logged",
        rate >= _LOGGED_RATIO,
    )


def _torchrun(steps: int, log: bool) -> list[float]:
    with TemporaryDirectory(prefix="sgpu-bench-") as folder:
        store = f"sqlite:///{Path(folder) / 'mlflow.db'}" if log else ""
        _, text = torchrun("train_torchrun.py", str(steps), store)
    for line in text.splitlines():
        if line.startswith("steps "):
            return [max(json.loads(line.removeprefix("steps ")))]
    raise BenchError("torchrun's loop printed no figure")
