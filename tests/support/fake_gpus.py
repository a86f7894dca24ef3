"""NVIDIA's libraries for machines without a GPU: compiled once per test run, chosen by name."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

#: The fixture of that name in tests/api/conftest.py.
Machine = Callable[..., None]
SOURCES = Path(__file__).resolve().parent


@functools.cache
def folder() -> Path:
    """Where `libnvidia-ml.so.1` and `libcuda.so.1` are, for LD_LIBRARY_PATH."""
    where = Path(tempfile.mkdtemp(prefix="serverless-gpu-fake-"))
    atexit.register(shutil.rmtree, where, ignore_errors=True)
    for source, library in (("fake_nvml", "libnvidia-ml.so.1"), ("fake_cuda", "libcuda.so.1")):
        if not (SOURCES / f"{source}.cpp").exists():
            continue
        command = [os.environ.get("CXX", "c++"), "-std=c++17", "-O1", "-shared", "-fPIC"]
        subprocess.run(
            [*command, "-o", str(where / library), str(SOURCES / f"{source}.cpp")],
            check=True,
            timeout=120,
        )
    return where


def nvml() -> str:
    """The path of the fake management library."""
    return str(folder() / "libnvidia-ml.so.1")


def environment(machine: str, use: str = "") -> dict[str, str]:
    """What makes a process see that machine; names and use as in fake_nvml.cpp."""
    return {
        "LD_LIBRARY_PATH": str(folder()),
        "SGPU_FAKE_NVML": machine,
        "SGPU_FAKE_NVML_USE": use,
    }
