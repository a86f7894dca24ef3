"""What a machine that is short of something has to do with an error: limits, and words for them."""

from __future__ import annotations

import os
import resource
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .failure import RankFailure

_GIB = 1 << 30
_MIB = 1 << 20
#: A larger /dev/shm is hardly what ran out.
_SMALL_SHM = 8 * _GIB

_NO_SHM = (
    "Bus error",
    "unable to write to file </torch",
    "unable to allocate shared memory",
    "unable to resize file",
    "out of shared memory",
)
_NO_FILES = ("Too many open files", "received 0 items of ancdata", "[Errno 24]")
_NO_THREADS = ("can't start new thread", "Thread creation failed")
_NO_PROCESSES = ("[Errno 11]",)  # of other calls, too: it counts if the call was a fork
_NO_MEMORY = ("MemoryError", "can't allocate memory", "Cannot allocate memory", "[Errno 12]")
_NO_DISK = ("No space left on device", "[Errno 28]", "Disk quota exceeded")


@dataclass(frozen=True)
class Limits:
    """Limits of this process, which its ranks have inherited. In bytes or numbers; 0: none."""

    memory: int = 0  # address space or data segment, the smaller
    files: int = 0
    processes: int = 0
    shm: int = 0  # size of /dev/shm

    @classmethod
    def now(cls) -> Limits:
        """Those of this moment; what cannot be read counts as none."""

        def soft(name: int, which: int = 0) -> int:
            limit = resource.getrlimit(name)[which]
            return 0 if limit == resource.RLIM_INFINITY else limit

        memory = [m for m in (soft(resource.RLIMIT_AS), soft(resource.RLIMIT_DATA)) if m]
        try:
            place = os.statvfs("/dev/shm")
            shm = place.f_frsize * place.f_blocks
        except OSError:
            shm = 0
        files = soft(resource.RLIMIT_NOFILE, 1)  # ranks use the hard limit
        return cls(min(memory, default=0), files, soft(resource.RLIMIT_NPROC), shm)


NO_LIMITS = Limits()


def size(count: int) -> str:
    """``1.7 GiB`` or ``300 MiB``."""
    return f"{count / _GIB:.1f} GiB" if count >= _GIB else f"{count / _MIB:.0f} MiB"


def of_death(signum: int, limits: Limits) -> str:
    """What a signal other than SIGKILL may have to do with a limit: a sentence, or nothing."""
    if signum == signal.SIGBUS and 0 < limits.shm < _SMALL_SHM:
        return f"A bus error comes when shared memory is used up: {_more_shm(limits)}"
    if signum in (signal.SIGSEGV, signal.SIGABRT) and limits.memory:
        return f"An allocation may have failed: {_more_memory(limits)}"
    if signum == signal.SIGXCPU:
        return "It used up its processor time (ulimit -t)."
    return ""


def of_failure(failure: RankFailure, limits: Limits, out_of_memory: bool, memory_limit: int) -> str:
    """The same for an exception. ``out_of_memory``: whether the system killed a process of the
    notebook during the call, one that a rank had started."""
    text = f"{failure.kind}: {failure.message}"
    if out_of_memory:
        limit = f" (cgroup limit {size(memory_limit)})" if memory_limit else ""
        return (
            f"The system was out of memory{limit} and killed a process that a rank had started, "
            "such as a DataLoader worker: use fewer workers, a smaller batch, or fewer ranks."
        )
    if any(sign in text for sign in _NO_SHM) and limits.shm:
        return f"Shared memory is used up: {_more_shm(limits)}"
    if any(sign in text for sign in _NO_FILES):
        return (
            f"A rank may open {limits.files} files (ulimit -Hn): open fewer at a time, or raise "
            "that before the notebook starts."
        )
    forked = "fork" in failure.traceback and any(sign in text for sign in _NO_PROCESSES)
    if forked or any(sign in text for sign in _NO_THREADS):
        most = f" is {limits.processes}" if limits.processes else ""
        return (
            f"Processes and threads are used up (ulimit -u{most}; see also the cgroup's pids.max): "
            "use fewer workers, fewer ranks, or a smaller OMP_NUM_THREADS."
        )
    if any(sign in text for sign in _NO_MEMORY) and limits.memory:
        return _more_memory(limits)
    if any(sign in text for sign in _NO_DISK):
        return "A disk is full: see df -h; the ranks' own files are in TMPDIR."
    return ""


def _more_shm(limits: Limits) -> str:
    return (
        f"/dev/shm holds {size(limits.shm)}. In a container, start it with --shm-size=8g; "
        "else use fewer DataLoader workers."
    )


def _more_memory(limits: Limits) -> str:
    return (
        f"A process may have {size(limits.memory)} of address space (ulimit -v, ulimit -d); "
        "raise that before the notebook starts."
    )
