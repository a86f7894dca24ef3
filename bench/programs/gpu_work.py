"""What is measured on GPUs: the same code in our ranks and under torchrun."""

from __future__ import annotations

import time
from typing import Any

SIZES = (1 << 20, 64 << 20, 1 << 30)
_WARM_UP, _TIMES = 5, 20  # of nccl-tests
_STEPS, _SMALL_STEPS, _REPEATS = 60, 300, 3


def work() -> dict[str, Any]:
    """After `start`: seconds per training step, and bytes per second over each link by size."""
    return {
        "transformer": _repeated(_transformer(), _STEPS),
        "small": _repeated(_small_network(), _SMALL_STEPS),
        "bandwidth": {str(size): _bandwidth(size) for size in SIZES},
    }


def _repeated(step: Any, steps: int) -> list[float]:
    import torch
    import torch.distributed as dist

    seconds = []
    for _ in range(_REPEATS + 1):
        torch.cuda.synchronize()
        dist.barrier(device_ids=[torch.cuda.current_device()])
        began = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        seconds.append((time.perf_counter() - began) / steps)
    return seconds[1:]  # the first compiles and tunes


def _transformer() -> Any:
    """A step of some milliseconds in bf16, whose gradients are 200 MB."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    layer = torch.nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True, dropout=0.0)
    model = DistributedDataParallel(torch.nn.TransformerEncoder(layer, 4).cuda())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x = torch.randn(16, 256, 1024, device="cuda")

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _small_network() -> Any:
    """A step of a millisecond that reads its loss: what it takes is the CPU's work."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    layers = [torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers).cuda())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x, y = torch.randn(64, 64, device="cuda"), torch.randn(64, 1, device="cuda")

    def step() -> float:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def _bandwidth(size: int) -> float:
    """Bus bandwidth of an all-reduce in place, as nccl-tests counts it: many in a row, and each
    byte crosses a link 2 (n - 1) / n times."""
    import torch
    import torch.distributed as dist

    x = torch.zeros(size // 4, device="cuda")
    for _ in range(_WARM_UP):
        dist.all_reduce(x)
    torch.cuda.synchronize()
    dist.barrier(device_ids=[torch.cuda.current_device()])
    began = time.perf_counter()
    for _ in range(_TIMES):
        dist.all_reduce(x)
    torch.cuda.synchronize()
    n = dist.get_world_size()
    return size / ((time.perf_counter() - began) / _TIMES) * 2 * (n - 1) / n
