"""Ranks on real GPUs: NCCL groups in all their forms, values, training, many calls."""

from __future__ import annotations

import os
import time

import pytest

pytest.importorskip("torch")
import torch.distributed as dist

from serverless_gpu import _core, distributed, pool
from tests.support.gpu_ranks import join
from tests.support.gpus import (
    EXPECTED,
    GPUS,
    Measured,
    Reduce,
    await_memory,
    memory_used,
    needs_gpu,
)

pytestmark = needs_gpu

#: Seconds for ranks to go and for spares to come.
LIMIT_S = 30.0


def test_nccl_reduces_over_all_gpus_again_and_again(reduce_all: Reduce, measured: Measured) -> None:
    for number in range(3):
        started = time.perf_counter()
        assert reduce_all() == EXPECTED
        measured(
            f"call {number}: NCCL group and first all-reduce", time.perf_counter() - started, "s"
        )


def test_one_group_for_both_kinds_of_tensors() -> None:
    @distributed(gpus=GPUS)
    def both() -> tuple[float, float]:
        import torch

        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("cpu:gloo,cuda:nccl")
        here = torch.ones(1) * (dist.get_rank() + 1)
        there = here.cuda()
        dist.all_reduce(here)
        dist.all_reduce(there)
        return here.item(), there.item()

    assert both.distributed() == list(zip(EXPECTED, EXPECTED, strict=True))


def test_a_group_that_is_connected_at_once_by_its_device_id() -> None:
    @distributed(gpus=GPUS)
    def eager() -> float:
        import torch

        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl", device_id=device)
        part = dist.new_group(list(range(GPUS)))  # split off the connected one
        x = torch.ones(1, device=device) * (dist.get_rank() + 1)
        dist.all_reduce(x, group=part)
        return float(x.item())

    assert eager.distributed() == EXPECTED


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

        rank = join()
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


def test_twenty_calls_leak_neither_memory_nor_processes_nor_descriptors(
    no_contexts_ahead: None, reduce_all: Reduce, measured: Measured
) -> None:
    def held() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(_core.descendants(os.getpid()))

    reduce_all()
    core = pool.get().core
    limit = time.monotonic() + LIMIT_S
    while len(core.pids()["children"]) != GPUS + 1:  # the spares and the rendezvous
        assert time.monotonic() < limit, core.pids()
        time.sleep(0.02)
    before, memory = held(), memory_used()
    started = time.perf_counter()
    for _ in range(20):
        assert reduce_all() == EXPECTED
    measured("one of 20 NCCL calls in a row", (time.perf_counter() - started) / 20, "s")
    await_memory(memory)
    limit = time.monotonic() + LIMIT_S
    while (after := held())[0] > before[0] or after[1] > before[1]:
        assert time.monotonic() < limit, f"(descriptors, processes): {after}, before: {before}"
        time.sleep(0.02)
