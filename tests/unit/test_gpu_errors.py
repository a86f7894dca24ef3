"""What errors of CUDA and NCCL are said to mean."""

from __future__ import annotations

import pytest

from serverless_gpu.gpu_errors import GpuState, explain

GIB = 1 << 30
OOM = (
    "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 3 has a total capacity of 79.11 GiB of "
    "which 10.06 GiB is free."
)
MINE = GpuState("GPU 3 (H100)", "", 10 * GIB, 80 * GIB, [("rank 3 itself", 69 * GIB)])


def test_out_of_memory_names_rank_gpu_and_what_was_asked() -> None:
    assert explain("torch.OutOfMemoryError", OOM, 3, MINE) == (
        "GPU 3 (H100) of rank 3, which asked for 20.00 GiB, is full. 10.0 GiB of 80.0 GiB are "
        "free: rank 3 itself has 69.0 GiB. Use a smaller batch, activation checkpointing, or "
        "sharding (FSDP)."
    )


def test_out_of_memory_names_who_else_is_there() -> None:
    shared = GpuState(
        "GPU 0 (A10)",
        "",
        1 * GIB,
        24 * GIB,
        [("rank 0 of the session", 15 * GIB), ("pid 7 (alice, python)", 5 * GIB)],
    )
    said = explain("torch.OutOfMemoryError", OOM, 0, shared)
    assert "rank 0 of the session has 15.0 GiB, pid 7 (alice, python) has 5.0 GiB" in said
    assert "%distributed stop ends the session" in said


def test_out_of_memory_without_a_driver_still_says_which_rank() -> None:
    assert explain("RuntimeError", "CUDA error: out of memory", 2, None).startswith("Rank 2 is out")


def test_a_gpu_that_is_gone_is_the_cause_whatever_cuda_says() -> None:
    lost = GpuState("GPU 2 (H100)", problem="GPU is lost")
    for message in ("CUDA error: unspecified launch failure", "NCCL error: unhandled cuda error"):
        said = explain("RuntimeError", message, 2, lost)
        assert said.startswith("GPU 2 (H100) of rank 2 does not answer any more (GPU is lost)")


def test_memory_that_failed_is_not_the_programs_fault() -> None:
    said = explain("RuntimeError", "CUDA error: uncorrectable ECC error encountered", 1, MINE)
    assert said.startswith("The memory of GPU 3 (H100) of rank 1 has failed")


def test_what_the_driver_has_told_is_named_with_its_number() -> None:
    failed = GpuState("GPU 3 (H100)", xids=(31, 95))
    said = explain("RuntimeError", "CUDA error: unknown error", 3, failed)
    assert said.startswith("GPU 3 (H100) of rank 3 has failed, not the program (Xid 31: ")
    lost = GpuState("GPU 3 (H100)", problem="GPU is lost", xids=(79,))
    said = explain("RuntimeError", "NCCL error: unhandled cuda error", 3, lost)
    assert "(GPU is lost; Xid 79: the GPU has fallen off the bus)" in said
    wrong = GpuState("GPU 3 (H100)", xids=(31, 7))
    said = explain("RuntimeError", "CUDA error: an illegal memory access", 3, wrong)
    assert "outside of its memory" in said
    assert said.endswith("The driver reports Xid 31: a kernel touched memory that is not its own; "
                         "Xid 7.")  # fmt: skip


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ("ncclInvalidUsage: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000",
         "LOCAL_RANK"),
        ("CUDA error: invalid device ordinal", "CUDA_VISIBLE_DEVICES"),
        ("Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing",
         "spawn"),
        ("CUDA error: device-side assert triggered", "CUDA_LAUNCH_BLOCKING"),
        ("CUDA error: an illegal memory access was encountered", "outside of its memory"),
        ("The NVIDIA driver on your system is too old (found version 11040)", "upgrade it"),
        ("CUDA error: no kernel image is available for execution on the device", "newer torch"),
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", "compute mode"),
        ("No CUDA GPUs are available", "sees no GPU"),
        ("Torch not compiled with CUDA enabled", "without CUDA"),
        ("NCCL error: Mismatched NCCL version", "different NCCLs"),
        ("[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3)",
         "did not come to a collective"),
        ("NCCL error: remote process exited or there was a network error, ncclRemoteError",
         "Another rank has left"),
        ("NCCL error, ncclSystemError: Error while creating shared memory segment", "--shm-size"),
        ("NCCL error in: ncclUnhandledCudaError: Call to CUDA function failed.", "NCCL_DEBUG"),
        ("CUDA error: unspecified launch failure", "mostly not the program's"),
    ],
)  # fmt: skip
def test_each_meaning(message: str, says: str) -> None:
    assert says in explain("RuntimeError", message, 1, MINE)


@pytest.mark.parametrize("message", ["bad batch", "out of memory", "timeout", "CUDA is nice"])
def test_nothing_is_added_to_what_it_does_not_know(message: str) -> None:
    assert explain("ValueError", message, 1, MINE) == ""
