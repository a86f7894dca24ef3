"""A real driver: what is seen of it, shared GPUs, contexts made ahead, errors, the doctor."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("torch")

from serverless_gpu import (
    _core,
    accelerator,
    distributed,
    doctor,
    gpu_claims,
    gpu_events,
    gpu_report,
    gpu_warm,
    pool,
    session,
)
from serverless_gpu.gpu_claims import GpuBusyError
from tests.support.gpus import GPUS, Measured, needs_gpu

pytestmark = needs_gpu

#: Holds a share of the memory of cuda:0 until its stdin is closed. An orphan: what descends from
#: the notebook counts as the notebook's own.
HOLDER = """
import os, sys
if os.fork(): os._exit(0)
import torch
free, total = torch.cuda.mem_get_info(0)
size = int(total * float(sys.argv[1]))
assert size < free, (size, free)
x = torch.empty(size, dtype=torch.uint8, device="cuda:0"); x.fill_(1); torch.cuda.synchronize()
print("held", flush=True); sys.stdin.read()
"""


@pytest.fixture
def stranger() -> Iterator[Callable[[], None]]:
    """A process of somebody else that has nearly all of the first GPU; called, it ends."""
    other = subprocess.Popen(
        [sys.executable, "-c", HOLDER, "0.85"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdout is not None and other.stdout.readline() == "held\n"

    def end() -> None:
        assert other.stdin is not None and other.stdout is not None
        other.stdin.close()
        assert other.stdout.read() == ""  # its end: nobody writes there any more

    with other:
        yield end


@distributed(gpus=GPUS or 1)
def uuids() -> list[str]:
    import torch

    count = torch.cuda.device_count()
    return [f"GPU-{torch.cuda.get_device_properties(i).uuid}" for i in range(count)]


def test_ranks_see_the_gpus_that_the_notebook_counts_in_the_same_order() -> None:
    here = accelerator.detect()
    assert uuids.distributed() == [[device.uuid for device in here.devices]] * GPUS
    total = subprocess.check_output(
        ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"], text=True
    )
    assert {round(d.memory_bytes / 2**20) for d in here.devices} <= set(map(int, total.split()))


def test_a_gpu_chosen_by_the_beginning_of_its_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    last = accelerator.detect().devices[-1]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", last.uuid[:14])

    @distributed
    def seen() -> list[str]:
        import torch

        return [str(torch.cuda.get_device_properties(0).uuid)]

    assert seen.distributed() == [[last.uuid.removeprefix("GPU-")]]


def test_a_gpu_that_a_stranger_has_filled_is_refused(
    stranger: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = accelerator.detect().devices[0].index
    with pytest.raises(GpuBusyError, match=f"GPU {first} ") as error:
        uuids.distributed()
    print(f"\n{error.value}")
    monkeypatch.setenv("SERVERLESS_GPU_ALLOW_BUSY", "1")
    assert len(uuids.distributed()) == GPUS
    monkeypatch.delenv("SERVERLESS_GPU_ALLOW_BUSY")
    stranger()
    assert len(uuids.distributed()) == GPUS, "its memory is waited for"


def test_calls_that_need_most_of_the_memory_follow_each_other() -> None:
    @distributed(gpus=1)
    def fill() -> int:
        import torch

        total = torch.cuda.get_device_properties(0).total_memory
        x = torch.empty(int(total * 0.7), dtype=torch.uint8, device="cuda:0")
        x.fill_(1)
        torch.cuda.synchronize()
        return 1

    for _ in range(3):
        assert fill.distributed() == [1]


def test_a_spare_makes_its_context_before_its_code_needs_it(measured: Measured) -> None:
    owner = pool.get()
    owner.core.set_spares(GPUS)
    gpu_warm.begin()

    @distributed(gpus=GPUS)
    def begun() -> tuple[bool, bool, float]:
        import torch

        from serverless_gpu import _core

        before = torch.cuda.is_initialized()
        limit = time.monotonic() + 60
        while not _core.cuda_in_use():
            assert time.monotonic() < limit, "CUDA was not begun ahead"
            time.sleep(0.01)
        start = time.perf_counter()
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        torch.ones(1, device="cuda").item()
        return before, torch.cuda.is_initialized(), time.perf_counter() - start

    results = begun.distributed()
    assert [(before, after) for before, after, _ in results] == [(False, True)] * GPUS
    measured("first use of a GPU in a warm rank", max(s for _, _, s in results), "s")
    gpu_warm.begin()
    limit = time.monotonic() + 60
    while len(owner.core.warm_spares()) < GPUS:
        assert time.monotonic() < limit, "new spares are not warm"
        time.sleep(0.05)
    print(gpu_warm.describe(owner))
    owner.core.cool()
    assert owner.core.warm_spares() == []


def test_out_of_memory_says_which_gpu_and_who_has_it() -> None:
    ranks = session()
    ranks.run(
        "import torch; kept = torch.ones(1 << 30, dtype=torch.uint8, device='cuda:0')", gpus=1
    )

    @distributed(gpus=1)
    def greedy() -> None:
        import torch

        torch.empty(1 << 50, dtype=torch.uint8, device="cuda:0")

    with pytest.raises(RuntimeError, match=r"GPU \d+ \(.*\) of rank 0, which asked for") as error:
        greedy.distributed()
    print(f"\n{error.value}")


def test_a_kernel_that_fails_is_explained_and_the_next_call_works() -> None:
    @distributed(gpus=1)
    def wrong() -> None:
        import torch

        x = torch.zeros(4, device="cuda:0")
        print(x[torch.tensor([9], device="cuda:0")])
        torch.cuda.synchronize()

    with pytest.raises(RuntimeError, match="out of its range, mostly an index") as error:
        wrong.distributed()
    print(f"\n{error.value}")  # with the driver's number, where it tells it
    assert len(uuids.distributed()) == GPUS


def test_the_report_shows_the_memory_that_is_in_use(measured: Measured) -> None:
    session().run(
        "import torch; kept = torch.ones(4 << 30, dtype=torch.uint8, device='cuda:0')", gpus=1
    )
    start = time.perf_counter()
    report = gpu_report.gpu_report(accelerator.detect().devices)
    measured("reading what GPUs do", time.perf_counter() - start, "s")
    assert report is not None
    print(f"\n{report.line}\n" + "\n".join(report.details))
    used = gpu_claims.look(accelerator.detect().devices)[0].used
    assert used is not None and used > 4 << 30


def test_a_claim_can_be_taken_and_given_back_many_times(measured: Measured) -> None:
    owner, devices = pool.get(), accelerator.detect().devices
    gpu_claims.take(devices, 0, owner).give_back()
    start = time.perf_counter()
    for _ in range(20):
        gpu_claims.take(devices, 0, owner).give_back()
    measured("a claim of all GPUs", (time.perf_counter() - start) / 20, "s")
    start = time.perf_counter()
    assert all(xid > 0 for device in devices for xid in gpu_events.recent(device.index))
    measured("asking the driver for errors", time.perf_counter() - start, "s")
    assert _core.GpuLocks().try_take([device.uuid for device in devices], "test") == []


def test_the_doctor_finds_this_machine_fit_for_ranks() -> None:
    checks = doctor.examine()
    print("\n" + doctor.report(checks))
    # Jupyter and MLflow need not be on a machine that runs these tests.
    others = ("kernelspec", "Jupyter", "MLflow")
    errors = [c for c in checks if c.level == "error" and c.name not in others]
    assert not errors
    assert [c.level for c in checks if c.name == "all-reduce"] in (["ok"], ["warning"])
    if GPUS > 1:
        links = next(c.text for c in checks if c.name == "topology")
        assert "GB/s each" in links
        reduced = next(c.text for c in checks if c.name == "all-reduce")
        assert "GB/s" in reduced
