"""The processes that user code starts in a rank: they end with it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from typing import Any

from .. import _core

_PR_SET_CHILD_SUBREAPER = 36
#: Looks for new ones; a process that forks all the time is left to the guard after that.
_ROUNDS = 20


def adopt() -> None:
    """From now on those whose parent ends become this process's own, daemons too."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_all() -> None:
    """Kills all that descends from this process, whatever group or session it has made."""
    tracker = _resource_tracker()
    kept = {os.getpid(), getattr(tracker, "_pid", None)}
    for _ in range(_ROUNDS):
        if not _has_children():
            break
        living = [pid for pid, _, state in _core.descendants(os.getpid()) if state != "Z"]
        mine = [pid for pid in living if pid not in kept]
        if not mine:
            break
        for pid in mine:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
    if tracker is not None:
        tracker._stop()  # it unlinks the shared memory that was forgotten


def _has_children() -> bool:
    """Cheaper than a look at all processes of the machine, and the answer is no as a rule."""
    own = "/proc/self/task"
    if not os.path.exists(f"{own}/{os.getpid()}/children"):
        return True  # this kernel does not say
    for task in os.listdir(own):
        # The thread may have ended.
        with contextlib.suppress(FileNotFoundError), open(f"{own}/{task}/children") as f:
            if f.read():
                return True
    return False


def _resource_tracker() -> Any:
    """multiprocessing's own helper, if it runs."""
    module = sys.modules.get("multiprocessing.resource_tracker")
    tracker = getattr(module, "_resource_tracker", None)
    return tracker if getattr(tracker, "_pid", None) is not None else None
