"""Ranks on real GPUs: NCCL groups, training, failures and ends. Skipped where there is no GPU."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

pytest.importorskip("torch")
import torch.distributed as dist

from serverless_gpu import DistributedTimeoutError, accelerator, distributed, pool, session

GPUS = accelerator.detect().count
pytestmark = [
    pytest.mark.skipif(GPUS == 0, reason="no GPU here"),
    pytest.mark.timeout(240),
]
several = pytest.mark.skipif(GPUS < 2, reason="one GPU here")


@pytest.fixture(autouse=True, scope="module")
def no_tracking() -> Iterator[None]:
    os.environ["SERVERLESS_GPU_MLFLOW"] = "off"
    yield
    pool.stop()


def memory_used() -> list[int]:
    """MiB in use, by GPU."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return [int(n) for n in subprocess.check_output(query, text=True).split()]


def press_stop(after: float) -> None:
    threading.Timer(after, os.kill, (os.getpid(), signal.SIGINT)).start()


@distributed(gpus=GPUS or 1)
def total() -> float:
    import torch

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    x = torch.full((1024,), float(dist.get_rank() + 1), device="cuda")
    dist.all_reduce(x)
    return float(x[0].item())


EXPECTED = [GPUS * (GPUS + 1) / 2] * GPUS


def test_nccl_reduces_over_all_gpus_again_and_again() -> None:
    for _ in range(3):
        assert total.distributed() == EXPECTED


def test_cuda_tensors_come_back_on_the_cpu() -> None:
    @distributed(gpus=GPUS)
    def make():  # type: ignore[no-untyped-def]
        import torch

        rank = int(os.environ["LOCAL_RANK"])
        return {"t": torch.full((3,), rank, device=f"cuda:{rank}")}

    for rank, value in enumerate(make.distributed()):
        assert value["t"].device.type == "cpu"
        assert value["t"].tolist() == [rank] * 3


def test_data_parallel_training_learns_and_ranks_agree() -> None:
    @distributed(gpus=GPUS)
    def train(steps: int) -> tuple[float, float, float]:
        import torch
        from torch.nn.parallel import DistributedDataParallel

        rank = int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        torch.manual_seed(0)
        net = DistributedDataParallel(torch.nn.Linear(16, 1).cuda(), device_ids=[rank])
        optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
        losses = []
        for _ in range(steps):
            x = torch.randn(64, 16, device="cuda")
            loss = ((net(x) - x.sum(1, keepdim=True)) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        dist.destroy_process_group()
        return losses[0], losses[-1], float(net.module.weight.sum().item())

    results = train.distributed(steps=100)
    assert all(last < first / 10 for first, last, _ in results)
    assert len({round(weight, 4) for _, _, weight in results}) == 1


@several
def test_a_failing_rank_is_named_while_the_others_wait_in_nccl_and_the_session_goes_on() -> None:
    ranks = session()
    ranks.run(
        "import os, torch, torch.distributed as dist\n"
        "rank = int(os.environ['RANK']); torch.cuda.set_device(rank)\n"
        "dist.init_process_group('nccl'); x = torch.ones(4, device='cuda') * (rank + 1)\n"
        "y = x.clone(); dist.all_reduce(y); torch.cuda.synchronize(); kept = 'kept'",
        gpus=GPUS,
    )
    before = [rank["pid"] for rank in ranks.status()["ranks"]]
    with pytest.raises(ValueError, match="bad batch") as caught:
        ranks.run(
            "if rank == 1: raise ValueError('bad batch')\n"
            "dist.all_reduce(y); torch.cuda.synchronize()"
        )
    assert caught.value.rank == 1  # type: ignore[attr-defined]
    assert ranks.pull("kept") == ["kept"] * GPUS
    ranks.run("y = x.clone(); dist.all_reduce(y); value = y[0].item()")
    assert ranks.pull("value") == EXPECTED
    assert [rank["pid"] for rank in ranks.status()["ranks"]] == before
    ranks.stop()


@several
def test_stop_frees_ranks_that_wait_for_a_gpu() -> None:
    @distributed(gpus=GPUS)
    def stuck() -> None:
        import torch

        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl")
        x = torch.ones(1, device="cuda")
        dist.all_reduce(x)
        if dist.get_rank() == 0:
            dist.all_reduce(x)
            torch.cuda.synchronize()
        time.sleep(600)

    total.distributed()
    press_stop(6.0)
    with pytest.raises(KeyboardInterrupt):
        stuck.distributed()
    assert total.distributed() == EXPECTED


@several
def test_a_timeout_shows_where_each_rank_is() -> None:
    @distributed(gpus=GPUS, timeout=8)
    def stuck() -> None:
        import torch

        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl")
        x = torch.ones(1, device="cuda")
        dist.all_reduce(x)
        if dist.get_rank() == 0:
            dist.all_reduce(x)
            torch.cuda.synchronize()
        time.sleep(600)

    with pytest.raises(DistributedTimeoutError, match="synchronize"):
        stuck.distributed()


def test_a_killed_rank_gives_its_memory_back_and_the_next_call_works() -> None:
    base = memory_used()

    @distributed(gpus=GPUS)
    def die() -> None:
        import torch

        rank = int(os.environ["LOCAL_RANK"])
        x = torch.ones(1 << 28, device=f"cuda:{rank}")  # 1 GiB
        x.add_(1)
        torch.cuda.synchronize(rank)
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(RuntimeError, match="SIGKILL"):
        die.distributed()
    assert total.distributed() == EXPECTED
    assert all(now < before + 900 for now, before in zip(memory_used(), base, strict=True))


NOTEBOOK = """
import os, time
os.environ["SERVERLESS_GPU_MLFLOW"] = "off"
from serverless_gpu import distributed
@distributed(gpus=%d)
def hold():
    import torch
    x = torch.ones(1 << 28, device="cuda:" + os.environ["LOCAL_RANK"]); torch.cuda.synchronize()
    print("pid", os.getpid(), flush=True); time.sleep(600)
hold.distributed()
"""


def test_a_killed_notebook_leaves_no_rank_and_no_memory() -> None:
    base = memory_used()
    notebook = subprocess.Popen(
        [sys.executable, "-c", NOTEBOOK % GPUS], stdout=subprocess.PIPE, text=True
    )
    assert notebook.stdout is not None
    pids = [int(notebook.stdout.readline().split()[-1]) for _ in range(GPUS)]
    handles = [os.pidfd_open(pid) for pid in pids]
    notebook.kill()
    started = time.monotonic()
    for handle in handles:
        assert select.select([handle], [], [], 20)[0], f"one of {pids} is left"
    print(f"ranks gone after {time.monotonic() - started:.2f} s")
    limit = time.monotonic() + 20
    while any(now > before + 300 for now, before in zip(memory_used(), base, strict=True)):
        assert time.monotonic() < limit, f"memory in use: {memory_used()}, before: {base}"
    print(f"memory back after {time.monotonic() - started:.2f} s")


def test_many_calls_leak_no_memory() -> None:
    total.distributed()
    before = memory_used()
    for _ in range(5):
        total.distributed()
    assert all(now < then + 300 for now, then in zip(memory_used(), before, strict=True))
