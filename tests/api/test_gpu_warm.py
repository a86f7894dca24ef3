"""CUDA contexts made ahead, on a made-up machine with a made-up driver."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from serverless_gpu import gpu_warm
from tests.support import fake_gpus

LIMIT_S = 120

#: `await_lines(pid)`: what the driver was told by a process, once it has a context.
START = """
import os, sys, time
LOG = os.environ["SGPU_FAKE_CUDA_LOG"]
def lines(pid):
    try:
        with open(LOG) as log:
            return [line.split(maxsplit=1)[1].strip() for line in log if line.startswith(f"{pid} ")]
    except FileNotFoundError:
        return []
def await_lines(pid):
    limit = time.monotonic() + 60
    while not any("retain" in line for line in lines(pid)):
        assert time.monotonic() < limit, f"{pid} has no context: {lines(pid)}"
        time.sleep(0.01)
    return lines(pid)
from serverless_gpu import distributed, gpu_warm, pool
def spares(count):
    owner = pool.get()
    owner.core.set_spares(count)
    assert owner.ready.wait(60)
    return owner
def warm_spares(count):
    owner = spares(count)
    gpu_warm.begin()
    limit = time.monotonic() + 60
    while len(owner.core.warm_spares()) < count:  # a call before takes ranks that nobody has told
        assert time.monotonic() < limit, "no spare is warm"
        time.sleep(0.001)
    return owner
"""


def run(script: str, tmp_path: Path, **environment: str) -> str:
    """The script's output, in a process that sees two H100."""
    env = {
        **os.environ,
        **fake_gpus.environment("2xH100"),
        "SGPU_FAKE_CUDA_LOG": str(tmp_path / "cuda.log"),
        "SERVERLESS_GPU_LOCKS": str(tmp_path / "locks"),
        "SERVERLESS_GPU_ACCELERATOR": "",
        "SERVERLESS_GPU_MLFLOW": "off",
        **environment,
    }
    done = subprocess.run(
        [sys.executable, "-c", START + script],
        env=env,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        cwd=Path(__file__).resolve().parents[2],
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_each_rank_finds_a_context_on_its_own_gpu(tmp_path: Path) -> None:
    script = """
warm_spares(2)
@distributed(gpus=2)
def told():
    return await_lines(os.getpid())
print(told.distributed())
"""
    assert run(script, tmp_path) == "[['init all', 'retain 0'], ['init all', 'retain 1']]\n"


def test_user_code_begins_when_the_driver_is_done_with_the_environment(tmp_path: Path) -> None:
    script = """
warm_spares(2)
@distributed(gpus=2)
def told():
    return lines(os.getpid())
print(told.distributed())
"""
    assert run(script, tmp_path) == "[['init all', 'retain 0'], ['init all', 'retain 1']]\n"


def test_a_cell_that_speaks_of_distributed_begins_it(tmp_path: Path) -> None:
    script = """
from types import SimpleNamespace
owner = spares(2)
gpu_warm.on_cell(SimpleNamespace(raw_cell="x = 1"))
print(len(owner.core.warm_spares()))
gpu_warm.on_cell(SimpleNamespace(raw_cell="@distributed(gpus=2)\\ndef train(): ..."))
limit = time.monotonic() + 60
while len(owner.core.warm_spares()) < 2:
    assert time.monotonic() < limit, "no spare is warm"
    time.sleep(0.01)
print(gpu_warm.describe(owner))
"""
    assert run(script, tmp_path) == "0\n2 with a CUDA context, some 0.5 GB on its GPU each\n"


def test_spares_that_see_other_gpus_are_replaced(tmp_path: Path) -> None:
    script = """
warm_spares(2)
os.environ["CUDA_VISIBLE_DEVICES"] = "1"
@distributed(gpus=1)
def told():
    return lines(os.getpid())
print(told.distributed())
"""
    assert run(script, tmp_path) == "[[]]\n"


def test_what_nobody_uses_is_given_back(tmp_path: Path) -> None:
    script = """
import select
owner = spares(2)
gpu_warm.begin()
limit = time.monotonic() + 60
while len(handles := owner.core.warm_spares()) < 2 or not all(
    child in owner.core.pids()["children"] for child in handles
):
    assert time.monotonic() < limit, "no spare is warm"
    time.sleep(0.001)
pidfds = [os.pidfd_open(owner.core.pids()["children"][child]) for child in handles]
os.environ["SERVERLESS_GPU_IDLE_S"] = "0.2"
gpu_warm.begin()
for pidfd in pidfds:
    assert select.select([pidfd], [], [], 60)[0], "a warm spare stays"
print(owner.core.warm_spares())
"""
    assert run(script, tmp_path) == "[]\n"


@pytest.mark.parametrize("reason", ["idle", "others"])
def test_it_is_not_begun(reason: str, tmp_path: Path) -> None:
    script = """
from serverless_gpu import _core, accelerator
others = _core.GpuLocks(os.environ["SERVERLESS_GPU_LOCKS"])
if os.environ["SERVERLESS_GPU_IDLE_S"] != "0":
    others.try_take([accelerator.detect().devices[1].uuid], "other")
owner = spares(2)
gpu_warm.begin()
print(owner.core.warm_spares())
"""
    idle = "0" if reason == "idle" else "900"
    assert run(script, tmp_path, SERVERLESS_GPU_IDLE_S=idle) == "[]\n"


def test_a_fork_server_whose_imports_have_begun_cuda_does_not_fork(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import ctypes; ctypes.CDLL('libcuda.so.1').cuInit(0)\n"
    )
    script = """
@distributed(gpus=1)
def one():
    return 1
try:
    one.distributed()
except RuntimeError as error:
    print(error)
"""
    said = run(script, tmp_path, PYTHONPATH=str(tmp_path))
    assert "what Python runs at its start (a .pth file or sitecustomize) has initialised" in said


@pytest.mark.parametrize("text", ["soon", "nan"])
def test_a_time_that_is_none_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVERLESS_GPU_IDLE_S", text)
    with pytest.raises(ValueError, match="SERVERLESS_GPU_IDLE_S takes seconds"):
        gpu_warm.idle_limit()
