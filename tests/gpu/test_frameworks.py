"""Ways of training that need GPUs: sharded models, compiled code, DeepSpeed."""

from __future__ import annotations

import importlib.util
import os
import time

import pytest

pytest.importorskip("torch")
import torch.distributed as dist

from serverless_gpu import distributed
from tests.support.gpu_ranks import join
from tests.support.gpus import GPUS, Measured, needs_gpu

pytestmark = needs_gpu


def test_a_fully_sharded_model_learns_and_each_rank_holds_its_part() -> None:
    @distributed(gpus=GPUS)
    def train(steps: int) -> tuple[float, float, int]:
        import torch
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        from torch.distributed.tensor import DTensor

        join()
        torch.manual_seed(0)
        layers = [torch.nn.Linear(256, 256) for _ in range(4)]
        model = torch.nn.Sequential(*layers).cuda()
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for layer in model:
            fully_shard(layer, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        x = torch.randn(64, 256, device="cuda")
        losses = []
        for _ in range(steps):
            loss = (model(x).float() - x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        weight = model[0].weight
        assert isinstance(weight, DTensor)
        return losses[0], losses[-1], weight.to_local().shape[0]

    results = train.distributed(steps=50)
    assert all(last < first / 4 for first, last, _ in results), results
    assert sum(rows for _, _, rows in results) == 256


def test_compiled_code_runs_in_ranks(measured: Measured) -> None:
    @distributed(gpus=GPUS)
    def compare() -> float:
        import torch

        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))

        def plain(x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.gelu(x * 2 + 1).sum(dim=1)

        x = torch.randn(128, 512, device="cuda")
        return float((torch.compile(plain)(x) - plain(x)).abs().max().item())

    started = time.perf_counter()
    assert max(compare.distributed()) < 1e-2
    measured("call with a first torch.compile", time.perf_counter() - started, "s")


def test_deepspeed_shards_the_optimizer() -> None:
    if importlib.util.find_spec("deepspeed") is None:
        pytest.skip("DeepSpeed is not installed here")

    @distributed(gpus=GPUS)
    def train(steps: int) -> tuple[float, float, str]:
        import deepspeed  # type: ignore[import-not-found,unused-ignore]
        import torch

        join()
        torch.manual_seed(0)
        model = torch.nn.Linear(256, 256)
        # torch's optimizer: DeepSpeed's own would be compiled now.
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        config = {
            "train_micro_batch_size_per_gpu": 64,
            "bf16": {"enabled": True},
            "zero_optimization": {"stage": 2},
            "zero_allow_untested_optimizer": True,
        }
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
        x = torch.randn(64, 256, device="cuda", dtype=torch.bfloat16)
        losses = []
        for _ in range(steps):
            loss = (engine(x) - x).float().square().mean()
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
        assert dist.get_world_size() == GPUS
        return losses[0], losses[-1], type(engine.optimizer).__name__

    results = train.distributed(steps=50)
    assert all(last < first / 2 for first, last, _ in results), results
    assert all("Zero" in optimizer for _, _, optimizer in results), results
