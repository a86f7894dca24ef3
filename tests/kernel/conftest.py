"""Kernels for the tests in this folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support import kernel_client


@pytest.fixture(scope="session", autouse=True)
def spec(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The kernelspec of this tree, and its environment, for whatever starts kernels by name."""
    folder = kernel_client.install_spec(tmp_path_factory.mktemp("jupyter"))
    wanted = {**kernel_client.kernel_env(), "JUPYTER_PATH": str(folder)}
    wanted["IPYTHONDIR"] = str(tmp_path_factory.mktemp("ipython"))
    before = dict(os.environ)
    os.environ.update(wanted)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="module")
def shared() -> Iterator[kernel_client.TestKernel]:
    """One kernel for the tests of a file that leave it as it was."""
    with kernel_client.running() as kernel:
        yield kernel


@pytest.fixture
def kernel(shared: kernel_client.TestKernel) -> kernel_client.TestKernel:
    """The shared kernel, which the test before must have left alive and idle."""
    assert shared.alive(), "an earlier test ended the kernel"
    return shared


@pytest.fixture
def fresh() -> Iterator[kernel_client.TestKernel]:
    """A kernel of the test's own."""
    with kernel_client.running() as kernel:
        yield kernel
