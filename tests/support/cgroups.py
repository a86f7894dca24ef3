"""Cgroups for tests: a child of the one that the test runs in, gone afterwards."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_TREE = Path("/sys/fs/cgroup")
#: What version 1 and version 2 call the same limit.
_FILES = {"memory": ("memory.limit_in_bytes", "memory.max"), "pids": ("pids.max", "pids.max")}


@contextmanager
def limited(controller: str, limit: int) -> Iterator[str]:
    """A new cgroup with this limit; a shell command that joins it. Skips where none can be made."""
    parent, version_2 = _own(controller)
    folder = parent / f"sgpu-test-{uuid.uuid4().hex[:8]}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error.strerror}")
    try:
        try:
            (folder / _FILES[controller][version_2]).write_text(str(limit))
        except OSError as error:
            pytest.skip(f"the cgroup's {controller} limit cannot be set: {error.strerror}")
        yield f"echo $$ > {folder}/cgroup.procs"
    finally:
        _remove(folder)


def _own(controller: str) -> tuple[Path, bool]:
    """The cgroup of this process that has the controller, and whether it is of version 2."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, names, path = line.split(":", 2)
        if controller in names.split(","):
            return _TREE / controller / path.strip("/"), False
        if number == "0" and (_TREE / "cgroup.controllers").exists():
            return _TREE / path.strip("/"), True
    pytest.skip(f"no {controller} cgroup here")


def _remove(folder: Path) -> None:
    # Its processes have ended; the system may still be about to let go of the last of them.
    for pid in folder.joinpath("cgroup.procs").read_text().split():
        try:
            handle = os.pidfd_open(int(pid))
        except ProcessLookupError:
            continue
        import select

        select.select([handle], [], [], 10.0)
        os.close(handle)
    folder.rmdir()
