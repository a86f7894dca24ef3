"""What tests on real GPUs have ranks do. Ranks import this: it must cost them nothing."""

from __future__ import annotations

import os


def join() -> int:
    """The NCCL group and the rank's own GPU. Returns the rank."""
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    return dist.get_rank()


def total() -> float:
    """An all-reduce in a new NCCL group; `gpus.EXPECTED` is what ranks get."""
    import torch
    import torch.distributed as dist

    x = torch.full((1024,), float(join() + 1), device="cuda")
    dist.all_reduce(x)
    return float(x[0].item())


def say_ready(path: str) -> None:
    """Tells the test's `stopping.Ready(path)`."""
    with open(path, "w") as ready:
        ready.write("r")
