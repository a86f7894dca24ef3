"""What CUDA and NCCL mean by their errors: one line before the traceback."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import gpu_events

if TYPE_CHECKING:
    from ._core import Occupant

_GIB = 1 << 30


@dataclass(frozen=True)
class GpuState:
    """The GPU of a rank just after it has failed. Bytes; None where the driver does not tell.

    holders: who has memory there ("rank 2 of the session", "pid 7 (alice, python)") and how much.
    """

    name: str  # "GPU 3 (H100)"
    problem: str = ""  # what the driver says of a GPU that does not answer
    free: int | None = None
    total: int | None = None
    holders: Sequence[tuple[str, int | None]] = ()
    ecc_errors: int = 0
    xids: Sequence[int] = ()  # errors that the driver has told of a moment ago


#: Words that tell an error of GPUs from others: only then is the driver asked.
_SIGNS = ("CUDA", "cuda", "NCCL", "nccl", "NVIDIA", "CUBLAS", "CUDNN", "cuDNN", "cudaError")

_NO_MEMORY = ("CUDA out of memory", "CUDA error: out of memory", "ALLOC_FAILED", "OutOfMemoryError")
_MEMORY_BROKEN = re.compile(r"uncorrectable ECC|ECC_UNCORRECTABLE|Xid \d+", re.IGNORECASE)
_LOST = re.compile(
    r"GPU is lost|fallen off the bus|unspecified launch failure|CUDA error: unknown error|"
    r"hardware error|NVLink error|uncorrectable NVLink",
    re.IGNORECASE,
)

#: What else can be told by the text alone: sign, what it means, what to do. The first that fits.
_MEANINGS: tuple[tuple[str, str], ...] = (
    (
        r"Duplicate GPU detected",
        "Two ranks use the same GPU: call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) "
        "before the process group is made.",
    ),
    (
        r"invalid device ordinal",
        "The rank asked for a GPU that it does not see: cuda:N counts the GPUs of "
        "CUDA_VISIBLE_DEVICES, and LOCAL_RANK is this rank's.",
    ),
    (
        r"Cannot re-initialize CUDA in forked subprocess|CUDA error: initialization error",
        "A process that was forked after its parent used CUDA cannot use it: start workers with "
        "multiprocessing_context='spawn', or keep CUDA out of datasets.",
    ),
    (
        r"device-side assert",
        "A kernel found a value out of its range, mostly an index (a label, a token): env="
        "{'CUDA_LAUNCH_BLOCKING': '1'} shows the line. CUDA is of no more use in this rank: "
        "%distributed restart.",
    ),
    (
        r"illegal memory access|misaligned address",
        "A kernel wrote or read outside of its memory: env={'CUDA_LAUNCH_BLOCKING': '1'} shows the "
        "line. CUDA is of no more use in this rank: %distributed restart.",
    ),
    (
        r"driver version is insufficient|NVIDIA driver on your system is too old",
        "The driver is older than the CUDA of this torch: upgrade it, or install a torch for an "
        "older CUDA; `serverless-gpu doctor` names both.",
    ),
    (
        r"no kernel image is available",
        "This torch was not built for this type of GPU: install a newer torch, or build the "
        "extension that raised for it (TORCH_CUDA_ARCH_LIST).",
    ),
    (
        r"busy or unavailable|all CUDA-capable devices",
        "The GPU lets one process in and has it, or none (compute mode): `nvidia-smi -c 0` opens "
        "it; `serverless-gpu doctor` shows who is on it.",
    ),
    (
        r"no CUDA GPUs are available|No CUDA GPUs|no CUDA-capable device|NVML: Driver",
        "The rank sees no GPU: see CUDA_VISIBLE_DEVICES and `serverless-gpu doctor`.",
    ),
    (
        r"not compiled with CUDA|without CUDA",
        "This torch is a build without CUDA: install one for this driver, see `serverless-gpu "
        "doctor`.",
    ),
    (
        r"Mismatched NCCL version|NCCL version mismatch|ncclInvalidUsage.*version",
        "Ranks have loaded different NCCLs: see LD_LIBRARY_PATH and LD_PRELOAD, and `pip list | "
        "grep nccl`.",
    ),
    (
        r"Watchdog caught collective operation timeout|NCCL.*timed? ?out|NCCL.*timeout",
        "A rank did not come to a collective that the others wait in: they must all call the same "
        "ones in the same order; the stacks say who was elsewhere.",
    ),
    (
        r"ncclRemoteError|remote process exited",
        "Another rank has left a collective, mostly by an error of its own that came first.",
    ),
    (
        r"No space left on device.*/dev/shm|/dev/shm.*No space left|creating shared memory segment",
        "NCCL found no room in /dev/shm: give the container more (docker run --shm-size=8g).",
    ),
    (
        r"ncclSystemError|ncclInternalError|ncclUnhandledCudaError|unhandled (system|cuda) error",
        "NCCL says more with env={'NCCL_DEBUG': 'INFO'}; `serverless-gpu doctor` tries an "
        "all-reduce.",
    ),
)


def concerns_gpus(kind: str, message: str) -> bool:
    """Whether an exception may be one of GPUs."""
    return any(sign in kind or sign in message for sign in _SIGNS)


def explain(kind: str, message: str, rank: int, gpu: GpuState | None) -> str:
    """What the exception that `rank` raised means and what to do; "" if there is nothing to add.

    Pure. `gpu`: the rank's, as the driver sees it now.
    """
    if not concerns_gpus(kind, message):
        return ""
    text = f"{kind}: {message}"
    if any(sign in text for sign in _NO_MEMORY):
        return _out_of_memory(message, rank, gpu)
    told = gpu_events.describe(gpu.xids) if gpu is not None else ""
    if gpu is not None and gpu.problem:
        why = f"{gpu.problem}; {told}" if told else gpu.problem
        return (
            f"{gpu.name} of rank {rank} does not answer any more ({why}): see `dmesg | "
            "grep -i xid`; it needs a reset (`nvidia-smi -r`) or the machine a restart."
        )
    if gpu is not None and gpu_events.of_machine(gpu.xids):
        return (
            f"{gpu.name} of rank {rank} has failed, not the program ({told}): see `dmesg | grep -i "
            "xid`, reset the GPU when it is idle, or leave it out with CUDA_VISIBLE_DEVICES."
        )
    said = _meaning(text, rank, gpu)
    return f"{said} The driver reports {told}." if said and told else said


def _meaning(text: str, rank: int, gpu: GpuState | None) -> str:
    """What can be told by the text of the exception."""
    where = gpu.name if gpu is not None else "its GPU"
    if _MEMORY_BROKEN.search(text) or (gpu is not None and gpu.ecc_errors and _LOST.search(text)):
        return (
            f"The memory of {where} of rank {rank} has failed (not the program): see `dmesg | grep "
            "-i xid`, reset the GPU when it is idle, or leave it out with CUDA_VISIBLE_DEVICES."
        )
    if _LOST.search(text):
        return (
            f"{where} of rank {rank} failed in a way that is mostly not the program's: see `dmesg "
            "| grep -i xid` and `serverless-gpu doctor`; %distributed restart gives new ranks."
        )
    for sign, meaning in _MEANINGS:
        if re.search(sign, text, re.DOTALL):
            return meaning
    return ""


def _out_of_memory(message: str, rank: int, gpu: GpuState | None) -> str:
    asked = re.search(r"Tried to allocate ([\d.]+ [KMGT]iB)", message)
    want = f", which asked for {asked[1]}" if asked else ""
    if gpu is None:
        return f"Rank {rank} is out of GPU memory{want}: use a smaller batch or model part."
    free = ""
    if gpu.free is not None and gpu.total is not None:
        free = f" {_size(gpu.free)} of {_size(gpu.total)} are free"
    held = [f"{who} has {_size(size)}" if size else who for who, size in gpu.holders]
    holds = (":" if free else "") + " " + ", ".join(held) if held else ""
    others = [who for who, _ in gpu.holders if not who.startswith(f"rank {rank} ")]
    advice = (
        "End what does not belong there (%distributed stop ends the session)"
        if others
        else "Use a smaller batch, activation checkpointing, or sharding (FSDP)"
    )
    comma = "," if want else ""
    return f"{gpu.name} of rank {rank}{want}{comma} is full.{free}{holds}. {advice}."


def _size(count: int) -> str:
    return f"{count / _GIB:.1f} GiB"


# --- The edge -------------------------------------------------------------------------------------


def advice(kind: str, message: str, rank: int, pid: int) -> str:
    """`explain` with the rank's GPU as it is now. Asks the driver only for errors of GPUs."""
    if not concerns_gpus(kind, message):
        return ""
    return explain(kind, message, rank, state_of(rank, pid))


def state_of(rank: int, pid: int) -> GpuState | None:
    """The GPU of the rank whose process is `pid`; None where it cannot be told."""
    from . import _core, accelerator
    from .sessions import session

    try:
        devices = accelerator.detect().devices
    except (accelerator.GpuError, ValueError) as error:
        return GpuState("the GPU", problem=str(error))
    driver = accelerator.machine().driver
    if driver is None or rank >= len(devices):
        return None
    device = devices[rank]
    reading = driver.read(device.index)
    name = f"GPU {device.index} ({device.type})"
    xids = gpu_events.recent(device.index)
    if reading.problem:
        return GpuState(name, problem=reading.problem, xids=xids)
    free = None
    if reading.total_bytes is not None and reading.used_bytes is not None:
        free = reading.total_bytes - reading.used_bytes
    ranks = {p: f"rank {number} of the session" for number, p in enumerate(session().pids())}
    ranks[pid] = f"rank {rank} itself"
    holders = _named(_core.occupants(reading), ranks)
    return GpuState(name, "", free, reading.total_bytes, holders, reading.ecc_errors or 0, xids)


def _named(
    occupants: Sequence[Occupant], ranks: Mapping[int, str]
) -> tuple[tuple[str, int | None], ...]:
    def name(one: Occupant) -> str:
        place = f" ({one.user}, {one.name})" if one.user else ""
        return ranks.get(one.pid, f"pid {one.pid}{place}")

    return tuple((name(one), one.bytes) for one in occupants)
