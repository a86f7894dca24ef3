"""The thread of a rank that aborts NCCL communicators."""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import threading
from typing import Any

_runs = False


def start() -> None:
    """A thread that aborts NCCL communicators when the agent says so: a signal alone frees nothing
    that waits on a GPU, and the main thread waits without the GIL. Started with the first group."""
    global _runs
    from .. import rank

    if _runs or rank.current is None:
        return
    _runs = True
    # Non-blocking: somebody may have taken the notification before.
    descriptor = os.dup(rank.current.agent.cut_fd)
    threading.Thread(target=_abort_when_told, args=(descriptor,), daemon=True).start()


def _abort_when_told(descriptor: int) -> None:
    ready = select.poll()
    ready.register(descriptor, select.POLLIN)
    while True:
        ready.poll()
        with contextlib.suppress(BlockingIOError):
            os.read(descriptor, 8)
            _abort_nccl()


def _abort_nccl() -> None:
    torch: Any = importlib.import_module("torch")
    c10d: Any = importlib.import_module("torch.distributed.distributed_c10d")
    for group in list(c10d._world.pg_map):
        # A group without a CUDA backend has nothing to abort; a broken one must not keep others.
        with contextlib.suppress(Exception):
            group._get_backend(torch.device("cuda")).abort()
