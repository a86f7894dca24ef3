"""Ranks for the tests in this folder: one pool, of CPU ranks, for the whole run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from serverless_gpu import accelerator, call, distributed, gpu_claims, sessions
from tests.support import fake_gpus
from tests.support.leftovers import nothing_left  # noqa: F401
from tests.support.stopping import Ready, Stopper


@pytest.fixture(autouse=True)
def cpu_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU ranks on every machine, without MLflow: that has tests of its own."""
    monkeypatch.setenv("SERVERLESS_GPU_ACCELERATOR", "cpu")
    monkeypatch.setenv("SERVERLESS_GPU_MLFLOW", "off")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[fake_gpus.Machine]:
    """Makes this process see GPUs: `machine("8xH100", visible="0,1", use="0:PID:MIB")`."""

    def see(name: str, visible: str | None = None, use: str = "") -> None:
        monkeypatch.setenv("SGPU_FAKE_NVML", name)
        monkeypatch.setenv("SGPU_FAKE_NVML_USE", use)
        monkeypatch.setenv("SERVERLESS_GPU_LOCKS", str(tmp_path / "locks"))
        monkeypatch.delenv("SERVERLESS_GPU_ACCELERATOR", raising=False)
        if visible is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        monkeypatch.setattr(accelerator, "LIBRARY", fake_gpus.nvml())
        accelerator._ask_driver.cache_clear()

    monkeypatch.setattr(gpu_claims, "_locks", None)
    yield see
    accelerator._ask_driver.cache_clear()


@pytest.fixture
def session() -> Iterator[sessions.Session]:
    """The notebook's session, none at the start and none at the end."""
    one = sessions.session()
    one.stop()
    yield one
    one.stop()


@pytest.fixture
def quick_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Stop that is not obeyed is enforced soon, so that tests of it need not wait."""
    monkeypatch.setattr(call, "GRACE", 0.5)


@pytest.fixture
def ready(tmp_path: Path) -> Iterator[Ready]:
    one = Ready(tmp_path / "ready")
    yield one
    one.close()


@pytest.fixture
def stopper(ready: Ready) -> Stopper:
    return Stopper(ready)


@pytest.fixture
def next_call_works() -> Iterator[None]:
    """Whatever a test did, the next call has all its ranks, and they can work together."""
    yield

    @distributed(gpus=2)
    def together() -> float:
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        x = torch.tensor([1.0])
        dist.all_reduce(x)
        return float(x)

    assert together.distributed() == [2.0, 2.0]
