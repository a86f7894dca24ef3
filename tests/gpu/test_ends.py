"""Processes that are killed on real GPUs, and notebooks that want the same ones."""

from __future__ import annotations

import io
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

from serverless_gpu import distributed
from serverless_gpu.gpu_claims import GpuBusyError
from tests.support import scripts
from tests.support.gpus import (
    EXPECTED,
    GPUS,
    Measured,
    Reduce,
    await_memory,
    memory_used,
    needs_gpu,
)

pytestmark = needs_gpu

#: Holds a GiB on each GPU until it is killed.
HOLDER = """
import os, time
os.environ["SERVERLESS_GPU_MLFLOW"] = "off"
from serverless_gpu import distributed
@distributed(gpus=%d)
def hold():
    import torch
    x = torch.ones(1 << 28, device="cuda:" + os.environ["LOCAL_RANK"]); torch.cuda.synchronize()
    print("pid", os.getpid(), flush=True); time.sleep(600)
hold.distributed()
"""


def test_a_killed_rank_gives_its_memory_back_and_the_next_call_works(
    no_contexts_ahead: None, reduce_all: Reduce, measured: Measured
) -> None:
    before = memory_used()

    @distributed(gpus=GPUS)
    def die() -> None:
        import torch

        x = torch.ones(1 << 28, device="cuda:" + os.environ["LOCAL_RANK"])  # 1 GiB
        x.add_(1).sum().item()
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(RuntimeError, match="SIGKILL"):
        die.distributed()
    measured("ranks SIGKILLed: memory back, after the prompt", await_memory(before), "s")
    started = time.perf_counter()
    assert reduce_all() == EXPECTED
    measured("... and the next NCCL call", time.perf_counter() - started, "s")


def test_a_killed_notebook_leaves_no_rank_and_no_memory(
    no_contexts_ahead: None, measured: Measured
) -> None:
    before = memory_used()
    notebook = subprocess.Popen(
        [sys.executable, "-c", HOLDER % GPUS], stdout=subprocess.PIPE, text=True
    )
    with notebook:
        assert notebook.stdout is not None
        pids = [int(notebook.stdout.readline().split()[-1]) for _ in range(GPUS)]
        handles = [os.pidfd_open(pid) for pid in pids]
        notebook.kill()
        started = time.perf_counter()
        for handle in handles:
            assert select.select([handle], [], [], 20)[0], f"one of {pids} is left"
            os.close(handle)
        measured("notebook SIGKILLed: ranks gone", time.perf_counter() - started, "s")
        await_memory(before)
        measured("notebook SIGKILLed: memory back", time.perf_counter() - started, "s")


class _Stderr(io.StringIO):
    """Does something once a text is written."""

    def __init__(self, text: str, then: Callable[[], None]) -> None:
        super().__init__()
        self._text, self._then = text, then

    def write(self, text: str) -> int:
        written = super().write(text)
        if self._text in text:
            self._then()
        return written


def test_a_second_notebook_is_told_who_has_the_gpus_and_gets_them_at_his_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @distributed(gpus=GPUS, wait=0)
    def at_once() -> int:
        return 1

    @distributed(gpus=GPUS, wait=60)
    def patient() -> int:
        return 1

    with scripts.running(HOLDER % GPUS, tmp_path) as other:
        for _ in range(GPUS):
            other.wait_for("pid")
        holder = f"in use by script.py (pid {other.process.pid})"
        with pytest.raises(GpuBusyError, match=re.escape(holder)):
            at_once.distributed()
        said = _Stderr("Waiting up to 60 s", other.process.kill)
        monkeypatch.setattr(sys, "stderr", said)
        assert patient.distributed() == [1] * GPUS
    assert holder in said.getvalue()
