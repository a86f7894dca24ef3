"""Makes a rank's surroundings those of the notebook: environment, folder, path, seeds."""

from __future__ import annotations

import importlib
import os
import random
import sys
from typing import Any

from . import process_group

#: What the notebook had at the last call. A session's rank takes over what has changed since, so
#: what its own cells have set stays.
_last: dict[str, Any] = {}


def apply(context: dict[str, Any], rank: int, world: int) -> None:
    """Called before user code of each call.

    `context` holds `env`, `cwd`, `path`, `threads`, `seed` (int or None), `store_file`, `epoch`,
    `tracking` (a dict per rank, or None), `session` (bool).
    Raises FileNotFoundError if the notebook's folder is gone.
    """
    first = not _last
    _environment(context["env"], first)
    os.environ.update(_rank_variables(context, rank, world))
    if context["cwd"] != _last.get("cwd"):
        try:
            os.chdir(context["cwd"])
        except OSError as error:
            raise type(error)(
                error.errno,
                f"{error.strerror}: the notebook's folder; change to one that exists with %cd",
                context["cwd"],
            ) from None
    if context["path"] != _last.get("path"):
        sys.path[:] = context["path"]
    importlib.invalidate_caches()
    _last.update(env=context["env"], cwd=context["cwd"], path=context["path"])
    process_group.enter(context["epoch"], rank, world, context["store_file"])
    if first:
        _threads(context)
        _seeds(context["seed"], rank)
    if context["tracking"] is not None:
        from ..tracking import rank as tracking

        tracking.activate(context["tracking"][rank])


def after_call() -> None:
    tracking = sys.modules.get("serverless_gpu.tracking.rank")
    if tracking is not None:
        tracking.deactivate()


def _environment(wanted: dict[str, str], first: bool) -> None:
    known = dict(os.environ) if first else _last["env"]
    for name in known.keys() - wanted.keys():
        if not name.startswith("SERVERLESS_GPU_POOL"):  # the mark of the pool's processes
            os.environ.pop(name, None)
    for name, value in wanted.items():
        if known.get(name) != value:
            os.environ[name] = value


def _rank_variables(context: dict[str, Any], rank: int, world: int) -> dict[str, str]:
    """What torchrun sets, for one machine."""
    host, port = process_group.store_address(context["store_file"])
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "NODE_RANK": "0",
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_RANK": str(rank),
        "ROLE_NAME": "default",
        "ROLE_WORLD_SIZE": str(world),
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": str(context["epoch"]),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR"),
        "OMP_NUM_THREADS": context["env"].get("OMP_NUM_THREADS", str(context["threads"])),
        # All ranks are on this machine: NCCL's bootstrap need not ask its network cards.
        "NCCL_SOCKET_IFNAME": context["env"].get("NCCL_SOCKET_IFNAME", "lo"),
        "SERVERLESS_GPU_RANK": str(rank),
    }


def _threads(context: dict[str, Any]) -> None:
    import torch

    try:
        torch.set_num_threads(max(1, int(os.environ["OMP_NUM_THREADS"])))
    except ValueError:
        torch.set_num_threads(context["threads"])


def _seeds(seed: int | None, rank: int) -> None:
    """Different on every rank: forked children would otherwise all draw the same numbers."""
    import numpy
    import torch

    mine = int.from_bytes(os.urandom(4), "little") if seed is None else (seed + rank) % 2**32
    random.seed(mine)
    numpy.random.seed(mine)
    torch.manual_seed(mine)
