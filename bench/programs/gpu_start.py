"""What the GPU rows have every rank do first, timed."""

from __future__ import annotations

import itertools
import os
import time


def start() -> dict[str, float]:
    """Seconds of each step to a first all-reduce that is done on all GPUs."""
    times = [time.perf_counter()]
    import torch
    import torch.distributed as dist

    times.append(time.perf_counter())
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    x = torch.ones(1, device="cuda")
    torch.cuda.synchronize()
    times.append(time.perf_counter())
    dist.init_process_group("nccl")
    times.append(time.perf_counter())
    dist.all_reduce(x)
    torch.cuda.synchronize()
    times.append(time.perf_counter())
    assert x.item() == dist.get_world_size()
    names = ("import torch", "first use of the GPU", "process group", "first all-reduce")
    return dict(zip(names, (b - a for a, b in itertools.pairwise(times)), strict=True))
