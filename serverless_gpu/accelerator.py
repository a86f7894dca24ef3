"""What the ranks run on: the machine's GPUs, or CPU cores where there is none."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass

from . import _core
from .errors import AcceleratorMismatchError, ArgumentsError, OptionError, format_ranks
from .gpu_type import GPUType

#: NVIDIA's management library; tests name another.
LIBRARY = "libnvidia-ml.so.1"
#: How CUDA counts GPUs in ranks. Its own way, the fastest first, depends on what only it knows.
DEVICE_ORDER = "PCI_BUS_ID"
DEFAULT_CPU_RANKS = 8
#: CPU ranks share cores, so their number is bounded by memory and patience only.
MAX_CPU_RANKS = 128


class GpuError(RuntimeError):
    """GPUs of this machine cannot be used as they are. Nothing was started."""

    def _render_traceback_(self) -> list[str]:
        return [f"GpuError: {self}"]


@dataclass(frozen=True)
class Device:
    """One GPU as CUDA counts them in this notebook: its place in `Accelerator.devices` is the
    number in `cuda:N`."""

    index: int  # as nvidia-smi counts
    uuid: str  # "GPU-…" or, for a slice of one, "MIG-…"; "" if the GPU does not answer
    name: str  # "NVIDIA H100 80GB HBM3"
    type: str  # "H100"
    memory_bytes: int
    problem: str = ""  # what the driver says of a GPU that does not answer
    prohibited: bool = False  # its compute mode lets no process in
    exclusive: bool = False  # its compute mode lets one process in


@dataclass(frozen=True)
class Accelerator:
    """`count` GPUs of type `name`; or count 0: CPU ranks."""

    count: int
    name: str
    devices: tuple[Device, ...] = ()

    @property
    def is_gpu(self) -> bool:
        return self.count > 0

    @property
    def default_ranks(self) -> int:
        return self.count or DEFAULT_CPU_RANKS

    @property
    def label(self) -> str:
        return self.name


@dataclass(frozen=True)
class Machine:
    """The GPUs of the machine, whether this notebook sees them or not."""

    state: str  # "ready", "absent" or "broken"
    problem: str
    driver: _core.GpuDriver | None
    gpus: tuple[_core.GpuInfo, ...]


def machine() -> Machine:
    """What the driver tells. Asked once: only a driver that does not work is asked again."""
    found = _ask_driver(LIBRARY, os.getpid())
    if found.state == "broken":
        _ask_driver.cache_clear()
    return found


@functools.lru_cache(maxsize=1)
def _ask_driver(library: str, _pid: int) -> Machine:
    state, problem, driver = _core.find_gpu_driver(library)
    return Machine(state, problem, driver, tuple(driver.gpus()) if driver is not None else ())


def _choice() -> str:
    choice = os.environ.get("SERVERLESS_GPU_ACCELERATOR", "").strip().lower()
    if choice not in ("", "cpu", "gpu"):
        raise OptionError(f"SERVERLESS_GPU_ACCELERATOR is 'cpu' or 'gpu', not {choice!r}")
    return choice


def detect() -> Accelerator:
    """The visible GPUs. `SERVERLESS_GPU_ACCELERATOR=cpu` chooses CPU ranks on purpose.

    Raises ValueError for another value of that variable than `cpu` and `gpu`, GpuError for a driver
    that does not work, and for `gpu` where there is none.
    """
    choice = _choice()
    if choice == "cpu":
        return Accelerator(0, "CPU")
    found = machine()
    if found.state == "broken":
        raise GpuError(
            f"{found.problem}. SERVERLESS_GPU_ACCELERATOR=cpu in os.environ chooses CPU ranks"
        )
    here = _visible(found, os.environ.get("CUDA_VISIBLE_DEVICES"))
    if choice == "gpu" and not here.is_gpu:
        raise GpuError(f"SERVERLESS_GPU_ACCELERATOR=gpu, but there is no GPU: {_attached(here)}")
    return here


@functools.lru_cache(maxsize=8)
def _visible(found: Machine, variable: str | None) -> Accelerator:
    by_index = {gpu.index: gpu for gpu in found.gpus}
    devices = tuple(
        _device(by_index[one.gpu], one) for one in _core.visible_gpus(variable, found.gpus)
    )
    if devices:
        return Accelerator(len(devices), _types(devices), devices)
    if found.gpus and variable is not None:
        return Accelerator(0, f"CPU ({_gpus(len(found.gpus))} hidden by CUDA_VISIBLE_DEVICES)")
    return Accelerator(0, "CPU")


def _device(gpu: _core.GpuInfo, seen: _core.VisibleGpu) -> Device:
    memory = gpu.memory_bytes
    if seen.slice:
        memory = next(part.memory_bytes for part in gpu.slices if part.uuid == seen.uuid)
    kind = _core.gpu_type_of(gpu.name) + (" (MIG)" if seen.slice else "")
    return Device(
        gpu.index,
        seen.uuid,
        gpu.name,
        kind,
        memory,
        gpu.problem,
        gpu.prohibited,
        gpu.exclusive,
    )


def _types(devices: Sequence[Device]) -> str:
    """`H100`, or `H100 and A10` where there are several."""
    return " and ".join(dict.fromkeys(device.type for device in devices if device.type)) or "GPU"


def _gpus(count: int) -> str:
    return f"{count} {'GPU' if count == 1 else 'GPUs'}"


def _attached(here: Accelerator) -> str:
    if not here.is_gpu:
        hidden = here.name.removeprefix("CPU").strip(" ()")
        return hidden or "a machine without a GPU"
    kinds = [device.type for device in here.devices]
    return ", ".join(f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds))


def check(gpus: int | None, gpu_type: str | GPUType | None) -> tuple[int, Accelerator]:
    """The number of ranks of a call, and what they run on.

    Raises TypeError or ValueError for a number that cannot be, AcceleratorMismatchError for a type
    that is not attached, GpuError for GPUs that do not work. Nothing has been started then.
    """
    __tracebackhide__ = True
    here = detect()
    ranks = here.default_ranks if gpus is None else _check_number(gpus, here)
    if gpu_type is not None:
        _check_type(gpu_type, here, ranks)
    for device in here.devices[:ranks]:
        _check_device(device, here)
    return ranks, here


def _check_number(gpus: int, here: Accelerator) -> int:
    most = here.count or MAX_CPU_RANKS
    if isinstance(gpus, bool) or not isinstance(gpus, int):
        raise ArgumentsError(f"gpus takes a whole number from 1 to {most}, got {gpus!r}")
    if not 1 <= gpus <= most:
        found = f"{_gpus(here.count)} found" if here.is_gpu else f"CPU ranks are at most {most}"
        variable = os.environ.get("CUDA_VISIBLE_DEVICES")
        if here.is_gpu and variable is not None and len(machine().gpus) > here.count:
            found += f" of {len(machine().gpus)}, by CUDA_VISIBLE_DEVICES={variable}"
        raise OptionError(f"gpus={gpus}: takes 1 to {most} ({found})")
    return gpus


def _check_type(gpu_type: str | GPUType, here: Accelerator, ranks: int) -> None:
    name = gpu_type.value if isinstance(gpu_type, GPUType) else str(gpu_type)
    short = _core.gpu_type_of(name)
    kinds = [device.type.removesuffix(" (MIG)") for device in here.devices]
    fitting = [kind.casefold() == short.casefold() for kind in kinds]
    if not any(fitting):
        GPUType.parse(gpu_type)  # a name that nobody knows is an error of its own
        if _choice() == "cpu":
            return
        raise AcceleratorMismatchError(
            f"gpu_type={short!r}, but this notebook is attached to {_attached(here)}. "
            "Leave gpu_type out to take what is there"
            + ("" if here.is_gpu else ", or set SERVERLESS_GPU_ACCELERATOR=cpu for CPU ranks")
        )
    if not all(fitting[:ranks]):
        chosen = [d.index for d, fits in zip(here.devices, fitting, strict=True) if fits]
        raise AcceleratorMismatchError(
            f"gpu_type={short!r}, but of {_attached(here)} the first {ranks} are not all {short}. "
            f"Set CUDA_VISIBLE_DEVICES={','.join(map(str, chosen))} in os.environ to use "
            f"GPU {format_ranks(chosen)}"
        )


def _check_device(device: Device, here: Accelerator) -> None:
    if device.problem:
        # By UUID: the numbers that CUDA gives to the others may have moved.
        others = ",".join(d.uuid[:12] for d in here.devices if not d.problem)
        raise GpuError(
            f"GPU {device.index} does not answer ({device.problem}): it needs a reset or the "
            f"machine a restart, see `nvidia-smi` and `dmesg`"
            + (f". CUDA_VISIBLE_DEVICES={others} leaves it out" if others else "")
        )
    if device.prohibited:
        raise GpuError(
            f"GPU {device.index} lets no process in (compute mode Prohibited): "
            f"`sudo nvidia-smi -i {device.index} -c 0` opens it"
        )


def describe() -> str:
    """What ranks run on, in words: `8 x H100`; also what keeps them from it."""
    try:
        here = detect()
    except GpuError as error:
        return str(error)
    return _attached(here) if here.is_gpu else f"no GPU: {here.name} ranks"


def rank_environment() -> dict[str, str]:
    """What ranks get besides the notebook's variables, and before them. CPU ranks that were chosen
    on a machine with GPUs see none: `torch.cuda.is_available()` decides in most programs, and there
    are more ranks than GPUs."""
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if _choice() == "cpu" else {}
    return {"CUDA_DEVICE_ORDER": DEVICE_ORDER, **hidden}


def warm_ranks() -> int:
    """Ranks that are kept warm: one per GPU, fewer for none that could work."""
    try:
        return detect().default_ranks
    except (GpuError, ValueError):
        return 0  # the first call says what is wrong


def threads_per_rank(ranks: int) -> int:
    """Cores this process may use, divided among the ranks; at least 1."""
    return max(1, len(os.sched_getaffinity(0)) // ranks)
