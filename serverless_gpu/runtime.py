"""Helpers for code that runs in ranks. Outside of ranks they speak of a world of one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = [
    "get_device",
    "get_global_rank",
    "get_local_rank",
    "get_local_world_size",
    "get_node_rank",
    "get_world_size",
    "init_process_group",
]


def get_global_rank() -> int:
    """This rank's number in the world, from RANK."""
    return int(os.environ.get("RANK", "0"))


def get_local_rank() -> int:
    """This rank's number on its machine, from LOCAL_RANK."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def get_world_size() -> int:
    """The number of ranks, from WORLD_SIZE."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def get_local_world_size() -> int:
    """The number of ranks on this machine, from LOCAL_WORLD_SIZE."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def get_node_rank() -> int:
    """This machine's number, from NODE_RANK."""
    return int(os.environ.get("NODE_RANK", "0"))


def get_device() -> torch.device:
    """`cuda:LOCAL_RANK`, made current; `cpu` where there is no GPU."""
    import torch

    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", get_local_rank())
    torch.cuda.set_device(device)
    return device


def init_process_group(backend: str | None = None, **kwargs: Any) -> torch.device:
    """`torch.distributed.init_process_group`, nccl on GPUs and gloo on CPUs; returns the device.

    May be called again: the group is kept. `kwargs` go to torch.
    """
    import torch
    import torch.distributed as dist

    device = get_device()
    if not dist.is_initialized():
        dist.init_process_group(
            backend or ("nccl" if torch.cuda.is_available() else "gloo"), **kwargs
        )
    return device
