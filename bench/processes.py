"""Processes seen from outside: trees, memory, ends, and who carries a mark."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterable
from pathlib import Path

#: A variable that every process below a kernel of ours inherits; its value names the kernel.
MARK = "SGPU_BENCH_MARK"


def descendants(root: int) -> list[int]:
    """Pids of all processes below `root`."""
    children: dict[int, list[int]] = {}
    for pid in _pids():
        parent = _parent(pid)
        if parent is not None:
            children.setdefault(parent, []).append(pid)
    found: list[int] = []
    waiting = [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def marked(mark: str) -> list[int]:
    """Pids of the processes that inherited this value of MARK, wherever they hang in the tree."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for pid in _pids():
        try:
            if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
        except OSError:
            continue
    return found


def pss(pids: Iterable[int]) -> int:
    """Bytes of memory of these processes; a page that n processes share counts 1/n in each."""
    total = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        total += sum(int(s.split()[1]) for s in text.splitlines() if s.startswith("Pss:"))
    return total * 1024


def users_of(library: str) -> set[int]:
    """Pids of the processes that have mapped a file whose path contains this."""
    found = set()
    for pid in _pids():
        try:
            if library in Path(f"/proc/{pid}/maps").read_text():
                found.add(pid)
        except OSError:
            continue
    return found


def peak_memory(pid: int) -> int:
    """The most bytes that the process has had in memory at once."""
    text = Path(f"/proc/{pid}/status").read_text()
    line = next(s for s in text.splitlines() if s.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def wait_until_quiet(pids: Iterable[int], limit_s: float = 60.0) -> None:
    """Until none of the processes has used processor time for 0.2 s.

    Raises TimeoutError after `limit_s`.
    """
    watched = list(pids)
    deadline = time.monotonic() + limit_s
    before, quiet = -1, 0
    while quiet < 4:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(watched)} processes did not come to rest in {limit_s:g} s")
        time.sleep(0.05)
        now = sum(map(_ticks, watched))
        quiet = quiet + 1 if now == before else 0
        before = now


class Watch:
    """Sees processes end, through pidfds: no polling, and no other process taken for them."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._fds: dict[int, int] = {}
        for pid in pids:
            try:
                self._fds[os.pidfd_open(pid)] = pid
            except ProcessLookupError:
                continue

    def ends(self, limit_s: float) -> dict[int, float]:
        """The time.monotonic() at which each was seen to have ended. Blocks until all have, or for
        `limit_s`; those that are still there then are absent."""
        poller = select.poll()
        for fd in self._fds:
            poller.register(fd, select.POLLIN)
        seen: dict[int, float] = {}
        deadline = time.monotonic() + limit_s
        while len(seen) < len(self._fds) and time.monotonic() < deadline:
            for fd, _ in poller.poll(1000 * max(0.0, deadline - time.monotonic())):
                seen[self._fds[fd]] = time.monotonic()
                poller.unregister(fd)
        return seen

    def kill(self) -> None:
        """SIGKILL to those that are still there."""
        for fd in self._fds:
            try:
                signal.pidfd_send_signal(fd, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def close(self) -> None:
        for fd in self._fds:
            os.close(fd)
        self._fds = {}


def _pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def _fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the name, which may hold anything; [] if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _parent(pid: int) -> int | None:
    fields = _fields(pid)
    return int(fields[1]) if fields else None


def _ticks(pid: int) -> int:
    fields = _fields(pid)
    return int(fields[11]) + int(fields[12]) if fields else 0
