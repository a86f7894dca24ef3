"""Small notebooks, run in our kernel as a person would: one kernel for all that leave it well."""

from __future__ import annotations

import os
import re
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support import kernel_client
from tests.support.kernel_client import Run, TestKernel

PREAMBLE = """
import os, time, torch, torch.distributed as dist
from serverless_gpu import distributed
def pg():
    if not dist.is_initialized(): dist.init_process_group("gloo")
"""
ENV = {"SERVERLESS_GPU_ACCELERATOR": "cpu", "SERVERLESS_GPU_MLFLOW": "off"}


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


class Notebook:
    """A notebook whose first cell has run."""

    def __init__(self, kernel: TestKernel) -> None:
        self.kernel = kernel
        self.ok(PREAMBLE)

    def run(self, cell: str) -> Run:
        return self.kernel.run(textwrap.dedent(cell).strip("\n"))

    def ok(self, cell: str) -> str:
        """Runs a cell that must succeed; what it printed on stdout, without colours."""
        run = self.run(cell)
        assert run.status == "ok", "\n".join(run.content["traceback"])
        return plain(run.out)

    def error(self, cell: str) -> str:
        """Runs a cell that must fail; the error as shown."""
        run = self.run(cell)
        assert run.status == "error", plain(run.out)
        return self.shown(run)

    @staticmethod
    def shown(run: Run) -> str:
        return plain("\n".join([*run.content["traceback"], run.content["evalue"]]))

    def stop(self, cell: str, at: str, times: int = 1) -> Run:
        """Runs a cell and presses Stop each time that a line with `at` comes."""
        sent = self.kernel.send(textwrap.dedent(cell).strip("\n"))
        run, deadline = Run(), time.monotonic() + kernel_client.PATIENCE
        for message in self.kernel.published(deadline, f"the end of a cell stopped at {at!r}"):
            if message["parent_header"].get("msg_id") != sent:
                continue
            run.messages.append(message)
            if times and at in message["content"].get("text", ""):
                times -= 1
                self.kernel.interrupt()
            if message["content"].get("execution_state") == "idle":
                break
        run.reply = self.kernel.reply(sent)
        return run


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
