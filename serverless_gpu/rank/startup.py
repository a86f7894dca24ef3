"""How long CUDA's first use and the making of process groups took in this rank.

`arrange` runs once, in the fork server. What is watched costs nothing once it has happened.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

CUDA, NCCL = "CUDA", "NCCL"

#: The first of these that a rank calls makes the communicator, while it waits for its peers.
_COLLECTIVES = (
    "all_reduce",
    "broadcast",
    "barrier",
    "reduce",
    "scatter",
    "gather",
    "all_gather",
    "all_gather_into_tensor",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "all_to_all",
    "all_to_all_single",
    "all_gather_object",
    "broadcast_object_list",
    "gather_object",
    "monitored_barrier",
    "_verify_params_across_processes",  # DistributedDataParallel's
)

_seconds: dict[str, float] = {}  # since the last take(), by name
_within = 0.0  # seconds of what was timed inside of what is being timed


@contextlib.contextmanager
def timed(name: str) -> Iterator[None]:
    """Adds the time of its block to `name`'s, but for what is timed inside of it."""
    global _within
    began, before = time.monotonic(), _within
    try:
        yield
    finally:
        spent = time.monotonic() - began
        _seconds[name] = _seconds.get(name, 0.0) + max(0.0, spent - (_within - before))
        _within = before + spent


def take() -> dict[str, float]:
    """Seconds by name since the last time: of this call."""
    found = dict(_seconds)
    _seconds.clear()
    return found


def arrange() -> None:
    """Watches the first use of CUDA, if torch is here."""
    cuda = sys.modules.get("torch.cuda")
    if cuda is not None:
        watch(CUDA, [cuda], ("_lazy_init", "set_device"), lambda: bool(cuda.is_initialized()))


def group_made(backend: str) -> None:
    """A process group is there, and no communicator of it yet if it is NCCL's."""
    if NCCL.lower() in backend.lower():
        dist: Any = importlib.import_module("torch.distributed")
        c10d: Any = importlib.import_module("torch.distributed.distributed_c10d")
        watch(NCCL, [dist, c10d], _COLLECTIVES, lambda: True)


def watch(
    name: str, modules: list[Any], functions: tuple[str, ...], happened: Callable[[], bool]
) -> None:
    """Times calls of these functions until `happened` is true after one; then they are what they
    were."""
    changed: list[tuple[Any, str, Any, Any]] = []  # module, function's name, before, now

    def restore() -> None:
        for module, function, before, now in changed:
            if getattr(module, function) is now:
                setattr(module, function, before)
        changed.clear()

    def timing(before: Any) -> Any:
        @functools.wraps(before)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not changed:
                return before(*args, **kwargs)
            with timed(name):
                value = before(*args, **kwargs)
            if happened():
                restore()
            return value

        return call

    for function in functions:
        for module in modules:
            before = getattr(module, function, None)
            if callable(before):
                now = timing(before)
                setattr(module, function, now)
                changed.append((module, function, before, now))
