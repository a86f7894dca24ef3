"""What a status line is told of GPUs while a call runs."""

from __future__ import annotations

import pytest

from serverless_gpu import accelerator, gpu_report
from tests.support.fake_gpus import Machine


@pytest.fixture(autouse=True)
def nothing_read_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_report, "_last", None)


def test_all_gpus_are_one_line_and_each_is_a_detail(machine: Machine) -> None:
    machine("2xH100", use="1:1:40000")
    report = gpu_report.gpu_report(accelerator.detect().devices)
    assert report is not None
    assert report.line == ("GPU 0-1: 0-10 % busy, 0.0 GB to 41.9 GB of 85.5 GB, 41 °C, 241 W")
    assert report.details[1] == (
        "GPU 1 (H100): 10 % busy, 41.9 GB of 85.5 GB, 41 °C, 120 W of 700 W"
    )


def test_a_gpu_that_is_lost_during_the_call_is_said(machine: Machine) -> None:
    machine("lost")
    report = gpu_report.gpu_report(accelerator.detect().devices)
    assert report is not None
    assert report.line.endswith("GPU 2 does not answer")
    assert report.details[2] == "GPU 2: does not answer (GPU is lost)"


def test_it_is_read_once_a_second_at_most(machine: Machine) -> None:
    machine("1xA10")
    devices = accelerator.detect().devices
    first = gpu_report.gpu_report(devices, clock=lambda: 10.0)
    machine("1xA10", use="0:1:1000")
    assert gpu_report.gpu_report(devices, clock=lambda: 10.9) is first
    later = gpu_report.gpu_report(devices, clock=lambda: 11.0)
    assert first is not None and later is not None
    assert "1.1 GB of 24.1 GB" in later.line and "1.1 GB" not in first.line


def test_without_gpus_there_is_nothing_to_say(machine: Machine) -> None:
    machine("none")
    assert gpu_report.gpu_report(accelerator.detect().devices) is None
