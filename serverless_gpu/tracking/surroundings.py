"""Where a call ran: the commit of the notebook's folder, and the machine with what is installed."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from typing import Any

FILE = "serverless_gpu/environment.json"

_GIT_S = 2.0
_GIT_FRESH_S = 5.0  # for quick calls in a row


@functools.lru_cache(maxsize=16)
def _commit(folder: str, _when: int) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", folder, "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=_GIT_S,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def commit(folder: str) -> str | None:
    """The commit that is checked out there; None if there is none, or no git."""
    return _commit(folder, int(time.monotonic() / _GIT_FRESH_S))


def environment() -> str:
    """The machine and the installed packages as JSON."""
    facts = {
        "machine": _machine(),
        "gpus": _gpus(),
        "python": sys.version,
        "packages": _packages(tuple(sys.path)),
    }
    global _told
    # To make indented JSON of some hundred packages takes a millisecond.
    if _told is None or _told[0] != facts:
        _told = facts, json.dumps(facts, indent=1)
    return _told[1]


_told: tuple[dict[str, Any], str] | None = None


def _machine() -> dict[str, Any]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "host": platform.node(),
        "system": platform.platform(),
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": memory,
    }


@functools.cache
def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            names = (line.partition(":")[2].strip() for line in lines if "model name" in line)
            return next(names, platform.machine())
    except OSError:
        return platform.machine()


def _gpus() -> dict[str, Any]:
    from serverless_gpu import accelerator

    machine = accelerator.machine()
    if machine.driver is None:
        return {"state": machine.state, **({"problem": machine.problem} if machine.problem else {})}
    return {
        "driver": machine.driver.version,
        "cuda": machine.driver.cuda_version,
        "gpus": [
            {"index": gpu.index, "name": gpu.name, "memory_bytes": gpu.memory_bytes}
            for gpu in machine.gpus
        ],
    }


@functools.lru_cache(maxsize=1)
def _packages(_path: tuple[str, ...]) -> dict[str, str]:
    found = ((one.metadata["Name"], one.version) for one in importlib.metadata.distributions())
    return dict(sorted((name, version) for name, version in found if name))
