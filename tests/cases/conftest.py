"""Small notebooks, run in our kernel as a person would: one kernel for all that leave it well."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support import kernel_client
from tests.support.kernel_client import TestKernel
from tests.support.notebook import PREAMBLE, Notebook

ENV = {"SERVERLESS_GPU_ACCELERATOR": "cpu", "SERVERLESS_GPU_MLFLOW": "off"}


@pytest.fixture(scope="session", autouse=True)
def spec(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Our kernelspec, and a machine without GPUs, for whatever starts kernels by name."""
    before = dict(os.environ)
    folder = kernel_client.install_spec(tmp_path_factory.mktemp("jupyter"))
    ipython = str(tmp_path_factory.mktemp("ipython"))
    found = {"JUPYTER_PATH": str(folder), "IPYTHONDIR": ipython}
    os.environ.update(kernel_client.kernel_env({**ENV, **found}))
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="session")
def kernel(spec: None) -> Iterator[TestKernel]:
    with kernel_client.running(ENV) as kernel:
        yield kernel


@pytest.fixture(scope="session")
def shared(kernel: TestKernel) -> Notebook:
    return Notebook(kernel)


@pytest.fixture
def notebook(shared: Notebook) -> Iterator[Notebook]:
    """The shared notebook; whatever a case did, the next call works and finds no session."""
    shared.ok(PREAMBLE)
    yield shared
    assert shared.kernel.manager.is_alive()
    shared.ok("import serverless_gpu; serverless_gpu.session().stop()")
    shared.ok(
        """
        @distributed(gpus=2)
        def _works():
            pg(); x = torch.ones(1); dist.all_reduce(x); return x.item()
        assert _works.distributed() == [2.0, 2.0]
        """
    )
