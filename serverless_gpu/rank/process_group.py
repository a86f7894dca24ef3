"""torch.distributed in a rank: a store that no rank's death takes along, and groups that can be
aborted and made anew.

`arrange` runs once, in the fork server; `enter` before each call. What it changes: rendezvous by
env://, tcp:// and file:// meets in the pool's own TCPStore under a fresh prefix; gloo binds to an
address of its own per rank, so that the agent recognises its sockets; `init_process_group` may be
called again, `destroy_process_group` too.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from .. import rank as rank_module
from . import nccl_aborter, startup

#: Loopback addresses with this prefix belong to the store and to gloo's sockets.
NET = "127.77."
STORE_HOST = NET + "0.1"

#: What a rank waits for the store's process to come up, in seconds.
STORE_LIMIT = 60.0
#: One attempt to connect; what has died is refused until it is replaced.
_CONNECT_LIMIT = timedelta(seconds=2)
_DEFAULT_TIMEOUT = timedelta(minutes=30)  # torch's own, for waits in the store
_LOADER_HURRY = 0.1
_LOADER_CALM = 5.0  # torch's own value


@dataclass
class _State:
    epoch: str = ""
    rank: int = 0
    world: int = 1
    store_file: str = ""
    groups: int = 0  # made in this epoch
    clients: dict[int, Any] = field(default_factory=dict)  # port to TCPStore
    backend: Any = None  # of the group that an abort took away
    fresh: bool = True  # no group was made here yet


_state = _State()


#: Of the store file that was read last: what names its content, and the port in it.
_known: tuple[tuple[int, int], int] | None = None


def store_address(store_file: str) -> tuple[str, int]:
    """Host and port of the pool's store; waits for it.

    A store that has died is replaced by one on another port, which the file then has. Raises
    TimeoutError after STORE_LIMIT seconds, RuntimeError once the file says why there is none, and
    KeyboardInterrupt if the call is ended meanwhile: no signal comes before user code has begun.
    """
    global _known
    limit = time.monotonic() + STORE_LIMIT
    while time.monotonic() < limit:
        try:
            found = os.stat(store_file)
            name = (found.st_ino, found.st_mtime_ns)
            if _known is None or _known[0] != name:
                with open(store_file) as f:
                    told = json.load(f)
                if "refused" in told:
                    raise RuntimeError(told["refused"])
                _known = (name, int(told["port"]))
            return STORE_HOST, _known[1]
        except (FileNotFoundError, json.JSONDecodeError):
            _end_if_unwanted()
            time.sleep(0.002)
    raise TimeoutError(f"the rendezvous process did not come up within {STORE_LIMIT:.0f} s")


def _end_if_unwanted() -> None:
    process = rank_module.current
    if process is not None and process.agent.unwanted(process.call):
        raise KeyboardInterrupt


def rehearse() -> None:
    """What each call does here, in a rank that is a spare (environment.prepare)."""
    with open(os.memfd_create("store"), "w") as store:
        store.write('{"port": 0}')
        store.flush()
        store_address(f"/proc/self/fd/{store.fileno()}")
    calm()


def enter(epoch: str, rank: int, world: int, store_file: str) -> None:
    """A new epoch: ranks may be at different places, so groups of the old one are given up."""
    if _state.epoch and _state.epoch != epoch:
        reset()
    _state.rank, _state.world, _state.store_file = rank, world, store_file
    if _state.epoch != epoch:
        _state.epoch, _state.groups = epoch, 0


def reset() -> None:
    """Destroys the group. The next use of a collective makes one with the same backend."""
    dist: Any = importlib.import_module("torch.distributed")
    c10d: Any = importlib.import_module("torch.distributed.distributed_c10d")

    _state.clients.clear()  # an abort has shut their sockets
    if dist.is_initialized():
        backend = dist.get_backend()
        dist.destroy_process_group()
        _state.backend = backend
        _note_backend(backend)
    c10d._world.group_count = 0  # a failed init counts on some ranks only; names must agree again


def _session_key() -> str:
    """Where a session's ranks note the backend of their group: the epoch without its number."""
    return f"backend/{_state.epoch.rpartition('.')[0]}"


def _client() -> Any:
    """The client of the pool's store: one for the life of the rank, since each new one costs a
    reverse look-up. Waits for a store that is being replaced.

    Raises TimeoutError after STORE_LIMIT seconds.
    """
    dist: Any = importlib.import_module("torch.distributed")
    limit = time.monotonic() + STORE_LIMIT
    while True:
        host, port = store_address(_state.store_file)
        if port in _state.clients:
            return _state.clients[port]
        try:
            client = dist.TCPStore(
                host, port, is_master=False, wait_for_workers=False, timeout=_CONNECT_LIMIT
            )
        except (dist.DistError, RuntimeError) as error:
            if time.monotonic() > limit:
                raise TimeoutError(
                    f"the rendezvous process did not answer within {STORE_LIMIT:.0f} s"
                ) from error
            continue
        client.set_timeout(_DEFAULT_TIMEOUT)
        _state.clients[port] = client
        return client


def _lost_backend() -> Any:
    """The backend of a group that this rank should have: an abort took it away, or the rank is new
    in the place of one that had it."""
    if _state.backend is None and _state.fresh and "." in _state.epoch:
        client = _client()
        if client.check([_session_key()]):
            _state.backend = client.get(_session_key()).decode() or None
    return _state.backend


def _note_backend(backend: str) -> None:
    if "." in _state.epoch and _state.rank == 0:
        _client().set(_session_key(), backend)


def hurry() -> None:
    """A DataLoader that unwinds joins its workers; it shall not take seconds for it."""
    _set_loader_interval(_LOADER_HURRY)


def calm() -> None:
    _set_loader_interval(_LOADER_CALM)


def _set_loader_interval(seconds: float) -> None:
    data = sys.modules.get("torch.utils.data")
    if data is not None:
        data._utils.MP_STATUS_CHECK_INTERVAL = seconds


def _rendezvous(url: str, timeout: Any = None, **_: Any) -> Iterator[tuple[Any, int, int]]:
    dist: Any = importlib.import_module("torch.distributed")

    query = sys.modules["torch.distributed.rendezvous"]._query_to_dict(url.partition("?")[2])
    client = _client()
    if timeout is not None:
        client.set_timeout(timeout)
    _state.groups += 1
    yield (
        dist.PrefixStore(f"{_state.epoch}/{_state.groups}", client),
        int(query.get("rank", _state.rank)),
        int(query.get("world_size", _state.world)),
    )


def _gloo_address(rank: int) -> str:
    return f"{NET}{1 + rank // 250}.{1 + rank % 250}"


def _gloo_class(base: Any) -> Any:
    class Gloo(base):  # type: ignore[misc]
        """gloo on this rank's own address."""

        def __init__(self, store: Any, rank: int, size: int, timeout: Any = None) -> None:
            options = base._Options()
            if timeout is not None:
                options._timeout = timeout
            options._threads = 2
            options._devices = [base.create_device(hostname=_gloo_address(_state.rank))]
            super().__init__(store, rank, size, options)

    Gloo.__name__ = Gloo.__qualname__ = base.__name__
    return Gloo


def _backend_for_here(backend: Any) -> Any:
    """gloo in place of nccl where there is no GPU; says so."""
    import torch

    if not isinstance(backend, str) or "nccl" not in backend.lower() or torch.cuda.is_available():
        return backend
    warnings.warn("no GPU here: these are CPU ranks, which use gloo instead of nccl", stacklevel=3)
    return "gloo" if ":" not in backend else "cpu:gloo"


def _group_name(backend: Any) -> str:
    """What makes the group, as people call it. With no backend given torch takes NCCL for GPUs."""
    import torch

    name = "" if backend in (None, "undefined") else str(backend).lower()
    name = name or ("nccl" if torch.cuda.is_available() else "gloo")
    return startup.NCCL if "nccl" in name else name.rpartition(":")[2]


def arrange() -> None:
    """Puts all of it in place, in the fork server. Starts no thread and opens no socket."""
    dist: Any = importlib.import_module("torch.distributed")
    c10d: Any = importlib.import_module("torch.distributed.distributed_c10d")

    rendezvous: Any = importlib.import_module("torch.distributed.rendezvous")
    torch: Any = importlib.import_module("torch")
    for scheme in ("env", "tcp", "file"):
        rendezvous._rendezvous_handlers[scheme] = _rendezvous
    if hasattr(c10d, "ProcessGroupGloo"):
        c10d.ProcessGroupGloo = _gloo_class(c10d.ProcessGroupGloo)
    init, destroy, default = (
        c10d.init_process_group,
        c10d.destroy_process_group,
        c10d._get_default_group,
    )

    @functools.wraps(init)
    def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> None:
        backend = _backend_for_here(backend)
        if dist.is_initialized():
            if backend in (None, dist.get_backend()):
                return  # a second call keeps the group
            destroy()
        _state.backend, _state.fresh = None, False
        if torch.cuda.is_available():
            nccl_aborter.start()
        name = _group_name(backend)
        with startup.timed(name):
            init(backend, *args, **kwargs)
        startup.group_made(name)
        _note_backend(dist.get_backend())

    @functools.wraps(destroy)
    def destroy_process_group(group: Any = None) -> None:
        if group is None:
            _state.backend, _state.fresh = None, False
            _note_backend("")
        if group is not None or dist.is_initialized():
            destroy(group)

    @functools.wraps(default)
    def get_default_group() -> Any:
        if not dist.is_initialized() and _lost_backend() is not None:
            init_process_group(_state.backend)
        return default()

    for module in (dist, c10d):
        module.init_process_group = init_process_group
        module.destroy_process_group = destroy_process_group
    c10d._get_default_group = get_default_group
