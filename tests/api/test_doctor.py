"""The doctor, on this machine and on made-up ones."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from serverless_gpu import accelerator, cli, doctor
from tests.support.fake_gpus import Machine


def levels(checks: list[doctor.Check], name: str) -> list[str]:
    return [check.level for check in checks if check.name == name]


def text_of(checks: list[doctor.Check], name: str) -> str:
    return next(check.text for check in checks if check.name == name)


def test_cpu_ranks_reduce_over_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator, "DEFAULT_CPU_RANKS", 2)
    checks = doctor.examine()
    assert levels(checks, "all-reduce") == ["ok"]
    assert text_of(checks, "all-reduce").startswith("gloo, 2 ranks, 8 MB in ")
    assert levels(checks, "torch") == ["ok"]


def test_many_all_reduces_are_timed_in_a_row_after_some_that_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []

    def clock() -> float:
        done.append("clock")
        return 10.0 * done.count("clock")

    monkeypatch.setattr(time, "perf_counter", clock)
    seconds = doctor._seconds_each(lambda: done.append("act"), lambda: done.append("settle"))
    warm, timed = ["act"] * doctor.WARM_UP, ["act"] * doctor.TIMES
    assert done == [*warm, "settle", "clock", *timed, "settle", "clock"]
    assert seconds == 10.0 / doctor.TIMES


def test_each_gpu_is_a_line_and_what_is_wrong_with_it_an_advice(machine: Machine) -> None:
    machine("mixed", use="2:1:1000")
    checks = doctor.examine(all_reduce=False)
    assert levels(checks, "GPU 0") == ["ok"]
    assert levels(checks, "GPU 1") == ["warning"]
    assert "pid 1 (root" in text_of(checks, "GPU 2")
    assert "580.65.06, runs CUDA up to 13.0" in text_of(checks, "driver")
    assert "-> reset it when it is idle" in doctor.report(checks)


def test_an_all_reduce_that_fails_is_a_finding(machine: Machine) -> None:
    # The fork server of these tests has no GPU, so its ranks have none either.
    machine("2xH100")
    checks = doctor.examine()
    assert levels(checks, "all-reduce") == ["error"]
    assert "does not see the GPUs" in text_of(checks, "all-reduce")


def test_a_broken_driver_ends_the_command_with_1(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine("broken")
    assert cli.main(["doctor", "--quick", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is False
    errors = [check["name"] for check in found["checks"] if check["level"] == "error"]
    assert errors == ["driver"]


def test_a_healthy_machine_ends_it_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--quick"]) == 0
    assert "all-reduce" not in capsys.readouterr().out


def test_the_store_is_looked_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SERVERLESS_GPU_MLFLOW", "always")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/new/folder/mlflow.db")
    assert levels(doctor.examine(all_reduce=False), "MLflow") == ["ok"]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:secret@127.0.0.1:9")
    checks = doctor.examine(all_reduce=False)
    assert levels(checks, "MLflow") == ["error"]
    assert "127.0.0.1:9 does not answer" in text_of(checks, "MLflow")
    assert "secret" not in doctor.report(checks)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:////proc/mlflow.db")
    access = os.access  # root may write everywhere
    monkeypatch.setattr(os, "access", lambda p, mode: str(p) != "/proc" and access(p, mode))
    assert "cannot be written" in text_of(doctor.examine(all_reduce=False), "MLflow")
