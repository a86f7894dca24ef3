"""Kernels that are restarted, killed and shut down in a row: nothing of any of them stays."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support import scripts
from tests.support.kernel_client import PATIENCE, TestKernel, running

pytestmark = pytest.mark.timeout(240)

#: Inherited by all that a kernel starts.
MARK = "STORM_TEST"

CALL = """
from serverless_gpu import distributed, pool
@distributed(gpus=2)
def wait():
    import time
    print("waiting", flush=True)
    time.sleep(600)
print("folder", pool.get().core.folder, flush=True)
wait.distributed()
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    runtime = tmp_path / "runtime"  # the pools' folders lie here, and nothing else
    runtime.mkdir()
    return {
        "SERVERLESS_GPU_ACCELERATOR": "cpu",
        "SERVERLESS_GPU_MLFLOW": "off",
        "XDG_RUNTIME_DIR": str(runtime),
        MARK: str(tmp_path),
    }


def nothing_is_left(env: dict[str, str]) -> None:
    assert scripts.wait_until_none(f"{MARK}={env[MARK]}", PATIENCE) == []
    assert os.listdir(env["XDG_RUNTIME_DIR"]) == []


def test_a_restart_during_a_call_ends_its_ranks(env: dict[str, str]) -> None:
    with running(env=env) as kernel:
        kernel.send(CALL)
        kernel.wait_for_text("waiting")
        kernel.manager.restart_kernel(now=False)
        kernel.client.wait_for_ready(timeout=PATIENCE)
        kernel.run("from serverless_gpu import distributed")
        run = kernel.run("distributed(gpus=2)(lambda: 1).distributed()")
        assert run.value == "[1, 1]", run.content
    nothing_is_left(env)


def test_ten_restarts_in_a_row_leave_one_kernel(env: dict[str, str]) -> None:
    with running(env={**env, "SERVERLESS_GPU_WARM": "1"}) as kernel:
        for turn in range(10):
            kernel.manager.restart_kernel(now=turn % 2 == 1)
        kernel.client.wait_for_ready(timeout=PATIENCE)
        kernel.run("from serverless_gpu import distributed")
        run = kernel.run("distributed(gpus=2)(lambda: 1).distributed()")
        assert run.value == "[1, 1]", run.content
    nothing_is_left(env)


def end(kernel: TestKernel, how: str) -> None:
    if how == "killed":
        os.kill(kernel.pid, signal.SIGKILL)
    else:
        kernel.control("shutdown_request", {"restart": False})
    kernel.manager.provisioner.process.wait(PATIENCE)


def test_kernels_that_are_killed_or_shut_down_while_they_warm_up_leave_nothing(
    env: dict[str, str],
) -> None:
    for turn in range(20):
        with running(env={**env, "SERVERLESS_GPU_WARM": "1"}) as kernel:
            end(kernel, ("killed", "shut down")[turn % 2])
    nothing_is_left(env)
