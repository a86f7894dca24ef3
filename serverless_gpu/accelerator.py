"""What the ranks run on: the machine's GPUs, or CPU cores where there is none."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from .errors import AcceleratorMismatchError
from .gpu_type import GPUType

DRIVER = Path("/proc/driver/nvidia/gpus")
DEFAULT_CPU_RANKS = 8
#: CPU ranks share cores, so their number is bounded by memory and patience only.
MAX_CPU_RANKS = 128


@dataclass(frozen=True)
class Accelerator:
    """`count` GPUs of type `name`; or count 0: CPU ranks."""

    count: int
    name: str

    @property
    def is_gpu(self) -> bool:
        return self.count > 0

    @property
    def default_ranks(self) -> int:
        return self.count or DEFAULT_CPU_RANKS

    @property
    def label(self) -> str:
        return self.name if self.is_gpu else "CPU"


def detect() -> Accelerator:
    """The visible GPUs. `SERVERLESS_GPU_ACCELERATOR=cpu` chooses CPU ranks on purpose.

    Raises ValueError for another value of that variable.
    """
    choice = os.environ.get("SERVERLESS_GPU_ACCELERATOR", "").strip().lower()
    if choice not in ("", "cpu", "gpu"):
        raise ValueError(f"SERVERLESS_GPU_ACCELERATOR is 'cpu' or 'gpu', not {choice!r}")
    if choice == "cpu" or not DRIVER.is_dir():
        return Accelerator(0, "CPU")
    models = [_model(gpu) for gpu in sorted(DRIVER.iterdir())]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = len(models)
    if visible is not None:
        count = min(count, len([v for v in visible.split(",") if v.strip() not in ("", "-1")]))
    return Accelerator(count, models[0] if count else "CPU")


def _model(gpu: Path) -> str:
    try:
        for line in (gpu / "information").read_text().splitlines():
            key, _, value = line.partition(":")
            if key == "Model":
                return value.strip().removeprefix("NVIDIA ").strip()
    except OSError:
        pass
    return "GPU"


def check(gpus: int | None, gpu_type: str | GPUType | None) -> tuple[int, Accelerator]:
    """The number of ranks of a call, and what they run on.

    Raises TypeError or ValueError for a number that cannot be, AcceleratorMismatchError for a type
    that is not attached. Nothing has been started then.
    """
    __tracebackhide__ = True
    here = detect()
    on_purpose = os.environ.get("SERVERLESS_GPU_ACCELERATOR", "").strip().lower() == "cpu"
    if gpu_type is not None and not on_purpose:
        wanted = GPUType.parse(gpu_type)
        attached = GPUType.parse(here.name) if here.is_gpu else None
        if wanted is not attached:
            raise AcceleratorMismatchError(
                f"gpu_type={wanted.value!r}, but this notebook is attached to "
                + (f"{here.count} x {here.name}" if here.is_gpu else "a machine without a GPU")
                + ". Leave gpu_type out to take what is there"
                + ("" if here.is_gpu else ", or set SERVERLESS_GPU_ACCELERATOR=cpu for CPU ranks")
            )
    elif gpu_type is not None:
        GPUType.parse(gpu_type)
    if gpus is None:
        return here.default_ranks, here
    most = here.count or MAX_CPU_RANKS
    if isinstance(gpus, bool) or not isinstance(gpus, int):
        raise TypeError(f"gpus takes a whole number from 1 to {most}, got {gpus!r}")
    if not 1 <= gpus <= most:
        found = f"{here.count} GPUs found" if here.is_gpu else f"CPU ranks are at most {most}"
        raise ValueError(f"gpus={gpus}: takes 1 to {most} ({found})")
    return gpus, here


def threads_per_rank(ranks: int) -> int:
    """Cores this process may use, divided among the ranks; at least 1."""
    return max(1, len(os.sched_getaffinity(0)) // ranks)
