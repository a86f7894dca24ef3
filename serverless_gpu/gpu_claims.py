"""GPUs that a call takes: locked against other notebooks, and looked at for who else is there."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import _core, accelerator, gpu_events
from .accelerator import Device, GpuError
from .errors import OptionError, format_ranks

if TYPE_CHECKING:
    from .pool import Pool

#: Seconds that a call waits for GPUs of another notebook; SERVERLESS_GPU_WAIT and `wait=` differ.
WAIT_S = 30.0
#: The share of a GPU's memory that must be free; SERVERLESS_GPU_MIN_FREE differs.
MIN_FREE = 0.2
#: A session that leaves less than this share free is mentioned to function calls beside it.
SHORT = 0.5
#: Ranks of the call before, on their way out, are waited for while more than this share is in use.
LEAVING_SHARE = 0.1
#: Seconds that ranks on their way out get to free their memory.
SETTLE_S = 5.0
POLL_S = 0.1


class GpuBusyError(GpuError):
    """The GPUs are in use by somebody else. Nothing was started."""

    def _render_traceback_(self) -> list[str]:
        return [f"GpuBusyError: {self}"]


@dataclass(frozen=True)
class Claim:
    """GPUs that are this notebook's until `give_back`. `note`: what its user should know."""

    uuids: tuple[str, ...] = ()
    note: str = ""

    def give_back(self) -> None:
        if self.uuids and _locks is not None:
            _locks.give_back(self.uuids)


@dataclass(frozen=True)
class Look:
    """One GPU at a moment. Bytes; None where the driver does not tell."""

    device: Device
    used: int | None
    total: int | None
    occupants: Sequence[_core.Occupant]

    @property
    def free_share(self) -> float:
        """1.0 where it is not known."""
        return 1.0 if self.used is None or not self.total else 1 - self.used / self.total


def take(
    devices: Sequence[Device], wait: float | None, owner: Pool, session: Collection[int] = ()
) -> Claim:
    """Takes the devices for this notebook; waits for other notebooks, `wait` seconds at most.

    `session`: pids of the session's ranks, which may share them. Raises GpuBusyError if another
    notebook keeps them, or if less than the stated share of their memory is free;
    SERVERLESS_GPU_ALLOW_BUSY=1 lets both pass, with a note. KeyboardInterrupt ends the wait.
    """
    if not devices:
        return Claim()
    uuids = tuple(device.uuid for device in devices)
    notes = [*_order(), *_lock(devices, wait_limit(wait))]
    try:
        gpu_events.begin()
        looks = _settled(devices, owner)
        ours = _descendants() if any(look.occupants for look in looks) else frozenset[int]()
        notes += [line for look in looks if (line := _who(look, ours, session))]
        short = [line for look in looks if (line := _too_full(look, ours))]
        if short and not allow_busy():
            raise GpuBusyError(
                f"{'; '.join(short)}. Wait for them, choose other GPUs with CUDA_VISIBLE_DEVICES "
                "in os.environ, or go on with SERVERLESS_GPU_ALLOW_BUSY=1"
            )
    except BaseException:
        Claim(uuids).give_back()
        raise
    return Claim(uuids, "; ".join(notes))


def wait_limit(wait: float | None) -> float:
    """Seconds to wait. Raises ValueError for what is no number of at least 0."""
    given: object = os.environ.get("SERVERLESS_GPU_WAIT", WAIT_S) if wait is None else wait
    with suppress(TypeError, ValueError):
        seconds = float(given)  # type: ignore[arg-type]
        if seconds >= 0:
            return seconds
    name = "SERVERLESS_GPU_WAIT" if wait is None else "wait"
    raise OptionError(f"{name} takes seconds of at least 0, got {given!r}")


def allow_busy() -> bool:
    return os.environ.get("SERVERLESS_GPU_ALLOW_BUSY", "").strip() not in ("", "0")


def min_free() -> float:
    text = os.environ.get("SERVERLESS_GPU_MIN_FREE", str(MIN_FREE))
    with suppress(ValueError):
        if 0 <= float(text) <= 1:
            return float(text)
    raise OptionError(f"SERVERLESS_GPU_MIN_FREE is a share from 0 to 1, not {text!r}")


def _order() -> list[str]:
    """A note if GPUs are counted otherwise than the notebook's environment asks for."""
    order = os.environ.get("CUDA_DEVICE_ORDER", accelerator.DEVICE_ORDER)
    if order == accelerator.DEVICE_ORDER or len({g.name for g in accelerator.machine().gpus}) < 2:
        return []
    return [f"CUDA_DEVICE_ORDER={order} does not count here: cuda:N goes by {_LIKE_SMI}"]


_LIKE_SMI = "PCI bus, as nvidia-smi's numbers do; CUDA_VISIBLE_DEVICES chooses others first"


# --- Locks ----------------------------------------------------------------------------------------

_locks: _core.GpuLocks | None = None


def _held_locks() -> _core.GpuLocks:
    global _locks
    if _locks is None:
        folder = os.environ.get("SERVERLESS_GPU_LOCKS")
        _locks = _core.GpuLocks(folder) if folder else _core.GpuLocks()
        os.register_at_fork(after_in_child=_locks.forget)
    return _locks


def _lock(devices: Sequence[Device], limit: float) -> list[str]:
    """Locks them all. Returns notes: that it could not be done, or that they are shared."""
    uuids = [device.uuid for device in devices]
    started, told = time.monotonic(), False
    try:
        while held := _held_locks().try_take(uuids, notebook_name()):
            who = _holders(held, devices)
            if allow_busy():
                return [f"shared: {who}"]
            if time.monotonic() - started >= limit:
                raise GpuBusyError(
                    f"{who}; it was not free within {limit:g} s. Wait longer with wait=, choose "
                    "other GPUs with CUDA_VISIBLE_DEVICES in os.environ, or share them with "
                    "SERVERLESS_GPU_ALLOW_BUSY=1"
                )
            if not told:
                print(f"Waiting up to {limit:g} s: {who}.", file=sys.stderr, flush=True)
                told = True
            time.sleep(POLL_S)  # the system tells nobody when a lock is released
    except OSError as error:
        return [f"not locked against other notebooks: {error.strerror or error}"]
    return [f"waited {time.monotonic() - started:.0f} s for other notebooks"] if told else []


def held_by_others(devices: Sequence[Device]) -> bool:
    """Whether another notebook has one of them now. Raises OSError if that cannot be told."""
    uuids = [device.uuid for device in devices]
    if _held_locks().try_take(uuids, notebook_name()):
        return True
    _held_locks().give_back(uuids)
    return False


def _holders(held: Sequence[_core.HeldGpu], devices: Sequence[Device]) -> str:
    """`GPU 0-1 in use by train.ipynb (pid 12)`."""
    index = {device.uuid: device.index for device in devices}
    by_holder: dict[str, list[int]] = {}
    for one in held:
        name = one.notebook or "another notebook"
        who = f"{name} (pid {one.pid})" if one.pid else name
        by_holder.setdefault(who, []).append(index[one.uuid])
    return ", ".join(f"GPU {format_ranks(gpus)} in use by {who}" for who, gpus in by_holder.items())


def notebook_name() -> str:
    """What other notebooks are told: the notebook's file, the program, or its folder."""
    shell = sys.modules.get("IPython")
    user_ns = getattr(shell.get_ipython() if shell is not None else None, "user_ns", {})
    name = os.environ.get("JPY_SESSION_NAME") or user_ns.get("__vsc_ipynb_file__") or sys.argv[0]
    short = os.path.basename(str(name))
    if short in ("", "-c", "__main__.py", "ipykernel_launcher.py"):
        return f"a notebook in {os.environ.get('PWD', '?')}"
    return short


# --- Memory ---------------------------------------------------------------------------------------

#: Children that the last function call has left, until they are gone: they still have its memory.
_leaving: set[int] = set()


def leave(children: Collection[int], claim: Claim) -> None:
    """A function call is over: its ranks are ending, and what they had is free after them."""
    if claim.uuids:
        _leaving.update(children)
    claim.give_back()


def look(devices: Sequence[Device]) -> list[Look]:
    """Asks the driver now. Nothing where there is none."""
    driver = accelerator.machine().driver
    if driver is None:
        return []
    readings = [driver.read_memory(device.index) for device in devices]
    return [
        Look(device, reading.used_bytes, reading.total_bytes, _core.occupants(reading))
        for device, reading in zip(devices, readings, strict=True)
    ]


def _settled(devices: Sequence[Device], owner: Pool) -> list[Look]:
    """A look once those who are on their way out have left; SETTLE_S at most."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        looks = look(devices)
        _leaving.intersection_update(owner.core.pids()["children"])
        full = any(1 - one.free_share > LEAVING_SHARE for one in looks)
        # A process that has just been killed is known to the driver a little longer, by a number
        # that the system has forgotten; or, in a container, only its memory is known.
        going = any(_full(one) and (not _all_known(one) or _one_ends(one)) for one in looks)
        if not ((_leaving and full) or going) or time.monotonic() >= deadline:
            return looks
        time.sleep(POLL_S)  # the driver tells nobody when memory is freed


def _full(one: Look) -> bool:
    return one.free_share < min_free()


def _all_known(look: Look) -> bool:
    return bool(look.occupants) and all(one.user for one in look.occupants)


def _one_ends(look: Look) -> bool:
    """Whether a process on the GPU has ended but for its memory: that takes the driver seconds."""
    for one in look.occupants:
        try:
            os.readlink(f"/proc/{one.pid}/exe")
        except FileNotFoundError:
            return True
        except OSError:
            continue  # another user's
    return False


def _descendants() -> frozenset[int]:
    return frozenset(pid for pid, _, _ in _core.descendants(os.getpid()))


def _who(look: Look, ours: Collection[int], session: Collection[int]) -> str:
    """Who else is on the GPU, for the status line; "" if nobody is."""
    gpu = f"GPU {look.device.index}"
    others = [one for one in look.occupants if one.pid not in ours]
    if others:
        return f"{gpu} also in use by {_names(others)}"
    held = sum(one.bytes or 0 for one in look.occupants if one.pid in session)
    if held and look.free_share < SHORT:
        return f"{gpu}: this notebook's session holds {gb(held)}; %distributed stop frees it"
    return ""


def _too_full(look: Look, ours: Collection[int]) -> str:
    """That others leave too little of the GPU; "" if there is enough, or it is ours."""
    if not _full(look) or look.used is None or look.total is None:
        return ""
    own = sum(one.bytes or 0 for one in look.occupants if one.pid in ours)
    if 1 - (look.used - own) / look.total >= min_free():
        return ""
    others = [one for one in look.occupants if one.pid not in ours]
    who = _names(others) if others else "processes that the driver does not show here"
    gpu = f"GPU {look.device.index} ({look.device.type})"
    return f"{gpu} has {gb(look.total - look.used)} of {gb(look.total)} free, in use by {who}"


def _names(occupants: Sequence[_core.Occupant]) -> str:
    """`pid 12 (alice, python, 3.1 GB) and 2 more`."""
    first, more = occupants[0], len(occupants) - 1
    place = [first.user, first.name] if first.user else ["outside of this container, or ended"]
    size = [gb(first.bytes)] if first.bytes is not None else []
    return f"pid {first.pid} ({', '.join([*place, *size])})" + (f" and {more} more" if more else "")


def gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"
