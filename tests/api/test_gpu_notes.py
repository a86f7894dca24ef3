"""What users are told of their GPUs besides the status line's words, on made-up machines."""

from __future__ import annotations

import os
import time

import pytest

from serverless_gpu import accelerator, distributed, gpu_claims, gpu_events, gpu_report, pool
from tests.support.fake_gpus import Machine


@pytest.fixture(autouse=True)
def nothing_known_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_report, "_last", None)
    monkeypatch.setattr(gpu_events, "_watch", None)


def test_a_script_is_told_who_shares_its_gpus(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine("2xH100", use="1:1:20000")
    assert distributed(gpus=2)(lambda: 1).distributed() == [1, 1]
    told = capsys.readouterr().err
    assert told.startswith("GPU 1 also in use by pid 1 (root, ") and told.count("\n") == 1


def test_another_order_of_gpus_is_told_where_it_matters(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    for name, told in (("2xH100", ""), ("mixed", "CUDA_DEVICE_ORDER=FASTEST_FIRST does not count")):
        machine(name)
        claim = gpu_claims.take(accelerator.detect().devices[:1], 0, pool.get())
        assert claim.note.startswith(told) and bool(claim.note) == bool(told)
        claim.give_back()

    @distributed(gpus=1)
    def order() -> str:
        return os.environ["CUDA_DEVICE_ORDER"]

    assert order.distributed() == ["PCI_BUS_ID"]


def test_an_error_that_the_driver_tells_of_is_named_with_its_number(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine("2xH100")

    @distributed(gpus=2)
    def fail() -> None:
        if os.environ["RANK"] == "1":
            raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setenv("SGPU_FAKE_NVML_XIDS", "0:31,1:79,1:45")
    with pytest.raises(RuntimeError) as caught:
        fail.distributed()
    text = str(caught.value)
    assert "GPU 1 (H100) of rank 1 has failed, not the program" in text
    assert "(Xid 79: the GPU has fallen off the bus)" in text


def test_an_error_that_the_driver_tells_of_is_said_for_a_while(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine("2xH100")
    assert gpu_events.recent(1) == (), "nobody has asked the driver"
    gpu_events.begin()
    monkeypatch.setenv("SGPU_FAKE_NVML_XIDS", "1:79,1:79,0:45")
    report = gpu_report.gpu_report(accelerator.detect().devices)
    assert report is not None
    assert report.line.endswith(", GPU 1 reports Xid 79: the GPU has fallen off the bus")
    assert gpu_events.recent(0) == (), "a context that ends is no error"
    assert gpu_events.recent(1) == (79,)
    later = time.monotonic() + gpu_events.RECENT_S + 1
    assert gpu_events.recent(1, lambda: later) == ()
