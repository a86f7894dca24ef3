"""Kernels for the tests in this folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
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


class Shared:
    """One kernel for the tests of a file; a new one after a test that did not leave it usable."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._kernel: kernel_client.TestKernel | None = None

    def usable(self) -> kernel_client.TestKernel:
        if self._kernel is None or not self._kernel.answers():
            self.end()
            self._kernel = self._stack.enter_context(kernel_client.running())
        return self._kernel

    def end(self) -> None:
        self._kernel = None
        self._stack.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[Shared]:
    """The owner of the file's kernel."""
    owner = Shared()
    yield owner
    owner.end()


@pytest.fixture
def kernel(shared: Shared) -> kernel_client.TestKernel:
    """A kernel that other tests of the file used before, and left alive and idle."""
    return shared.usable()


@pytest.fixture
def fresh() -> Iterator[kernel_client.TestKernel]:
    """A kernel of the test's own."""
    with kernel_client.running() as kernel:
        yield kernel
