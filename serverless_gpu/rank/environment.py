"""Makes a rank's surroundings those of the notebook: environment, folder, path, seeds."""

from __future__ import annotations

import os
import pickle
import random
import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .. import environ, serialize
from . import display, process_group, streams


@dataclass(frozen=True)
class _Taken:
    """What was taken over from the notebook at the last call. A session's rank takes over what has
    changed since, so what its own cells have set stays."""

    packed: bytes
    env: dict[str, str]
    cwd: str
    path: list[str]
    processes: int  # limit of them, -1: none


_taken: _Taken | None = None
_first = True  # no call has had its surroundings here


def apply(context: dict[str, Any], rank: int, world: int) -> None:
    """Called before user code of each call.

    `context` holds `surroundings` (a pickle of `env`, `cwd`, `path`, `processes`), `threads`,
    `store_file`, `epoch`, `tracking` (None, or rank 0's: all but the number is equal), `session`
    (bool).
    Raises FileNotFoundError if the notebook's folder is gone.
    """
    global _taken, _first
    if _taken is None or _taken.packed != context["surroundings"]:
        _taken = _take_over(context["surroundings"], _taken)
    environ.put(_rank_variables(context, _taken.env, rank, world))
    _forget_folders(sys.path if _first else _watched_folders())
    process_group.enter(context["epoch"], rank, world, context["store_file"])
    if _first:
        _threads(context)
        _first = False
    if context["tracking"] is not None:
        from ..tracking import rank as tracking

        tracking.activate({**context["tracking"], "rank": rank})


def after_call() -> None:
    tracking = sys.modules.get("serverless_gpu.tracking.rank")
    if tracking is not None:
        tracking.deactivate()


def _take_over(packed: bytes, before: _Taken | None) -> _Taken:
    new = _Taken(packed, *pickle.loads(packed))
    known = dict(os.environ) if before is None else before.env
    for name in known.keys() - new.env.keys():
        if not name.startswith(_OURS):
            os.environ.pop(name, None)
    for name, value in new.env.items():
        if known.get(name) != value:
            os.environ[name] = value
    if before is None or new.cwd != before.cwd:
        try:
            os.chdir(new.cwd)
        except OSError as error:
            raise type(error)(
                error.errno,
                f"{error.strerror}: the notebook's folder; change to one that exists with %cd",
                new.cwd,
            ) from None
    if before is None or new.path != before.path:
        sys.path[:] = new.path
    if before is None or new.processes != before.processes:
        follow_process_limit(new.processes)
    return new


def follow_process_limit(soft: int) -> None:
    """Takes over the notebook's limit of processes (ulimit -u; -1: none), as far as the hard one
    allows: raising it there is enough."""
    own, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    wanted = soft if hard == -1 or 0 <= soft < hard else hard
    if wanted != own:
        resource.setrlimit(resource.RLIMIT_NPROC, (wanted, hard))


#: What torchrun sets and is the same in every call on one machine, and what is right there for
#: NCCL, whose bootstrap need not ask the network cards. The notebook's own values win.
_SAME_FOR_ALL = {
    "NODE_RANK": "0",
    "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "1",
    "ROLE_NAME": "default",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_MAX_RESTARTS": "0",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "NCCL_SOCKET_IFNAME": "lo",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # cuda:N is then the GPU that nvidia-smi and we count so
}
_OURS = ("SERVERLESS_GPU_POOL", *_SAME_FOR_ALL)


#: What `_rank_variables` gives.
_OF_RANKS = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "OMP_NUM_THREADS"),
    "SERVERLESS_GPU_RANK",
)


def prepare() -> None:
    """What can be done while the rank is a spare, so that its call finds it done."""
    os.environ.update(_SAME_FOR_ALL)
    _seed()
    _rehearse()


def _rehearse() -> None:
    """Does what a call begins and ends with, for nobody. A forked process copies each page that it
    writes to first, and what it has not run yet is in no cache: of a quick call on a new rank that
    was two fifths of the work."""
    global _taken
    import torch

    processes = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    packed = pickle.dumps((dict(os.environ), "", [*sys.path], processes), 5)
    _taken = _Taken(packed, *pickle.loads(packed))  # in no folder, so the call's is entered
    environ.put(dict.fromkeys(_OF_RANKS, ""))
    _forget_folders(sys.path)
    torch.set_num_threads(torch.get_num_threads())
    process_group.rehearse()
    display.rehearse()
    streams.flush()
    function, args, kwargs = serialize.load(_rehearsal, -1)
    serialize.dump(function(*args, **kwargs), what="rehearsal").close()
    tracking = sys.modules.get("serverless_gpu.tracking.rank")
    if tracking is not None:
        tracking.rehearse()
    after_call()


def _call_of_nobody() -> list[bytes]:
    """A dumped call of a function that travels by value, as those of notebooks do."""
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec("def rehearsal(value):\n    return value\n", scope)
    return serialize.dump((scope["rehearsal"], (1,), {}), what="rehearsal").frames


_rehearsal = _call_of_nobody()  # made once, in the fork server


def _rank_variables(
    context: dict[str, Any], env: dict[str, str], rank: int, world: int
) -> dict[str, str]:
    """What torchrun sets, for one machine."""
    host, port = process_group.store_address(context["store_file"])
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(world),
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": str(context["epoch"]),
        "OMP_NUM_THREADS": env.get("OMP_NUM_THREADS", str(context["threads"])),
        "SERVERLESS_GPU_RANK": str(rank),
    }


def _threads(context: dict[str, Any]) -> None:
    import torch

    try:
        torch.set_num_threads(max(1, int(os.environ["OMP_NUM_THREADS"])))
    except ValueError:
        torch.set_num_threads(context["threads"])


def _forget_folders(folders: Sequence[str]) -> None:
    """Lets imports see files that were made a moment ago, and folders that were not there before.

    Installed packages are left out: their folders tell by their time that they have changed. A new
    rank has only `sys.path` to look at; merely touching all that the fork server has imported would
    copy hundreds of shared pages.
    """
    for folder in folders:
        finder = sys.path_importer_cache.get(folder)
        if finder is None:
            sys.path_importer_cache.pop(folder, None)
        elif not folder.startswith(_INSTALLED) and hasattr(finder, "invalidate_caches"):
            finder.invalidate_caches()


_INSTALLED = tuple({sys.prefix, sys.base_prefix})

#: The folders that imports had looked into, and those of them that `_forget_folders` is for.
_watched: tuple[list[str], list[str]] = ([], [])


def _watched_folders() -> list[str]:
    """What imports have looked into but for installed packages: there are hundreds of those."""
    global _watched
    known = list(sys.path_importer_cache)
    if _watched[0] != known:
        _watched = known, [name for name in known if not name.startswith(_INSTALLED)]
    return _watched[1]


def _seed() -> None:
    """Seeds random, numpy and torch anew: forked children would otherwise all draw the same
    numbers. Done while the rank is a spare: torch takes milliseconds for it."""
    import numpy
    import torch

    number = int.from_bytes(os.urandom(4), "little")
    random.seed(number)
    numpy.random.seed(number)
    torch.manual_seed(number)
