"""What the status line says of ranks that are quiet."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from serverless_gpu import DistributedTimeoutError, distributed, hosts, pool, quiet
from serverless_gpu.report import Report


class Watcher:
    """A host that keeps what is shown, and makes a file at the first text that has `wanted`."""

    colour = False
    rich = True
    bytes_per_second = 0
    shown_bytes = 1_000_000
    shows_late = True

    def __init__(self, wanted: str, path: Path) -> None:
        self.texts: list[str] = []
        self._wanted, self._path = wanted, path

    def capture(self) -> None:
        return None

    def stream(self, parent: Any, name: str, text: bytes) -> None:
        pass

    def message(self, parent: Any, message_type: str, content: dict[str, Any]) -> None:
        text = content["data"]["text/plain"]
        self.texts.append(text)
        if self._wanted in text:
            self._path.touch()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "go on"


def _watch(monkeypatch: pytest.MonkeyPatch, wanted: str, path: Path) -> Watcher:
    watcher = Watcher(wanted, path)
    monkeypatch.setattr(hosts, "find", lambda: watcher)
    monkeypatch.setenv("SERVERLESS_GPU_QUIET_S", "1")
    return watcher


def test_who_waits_for_whom_is_shown_and_goes_away(
    monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    watcher = _watch(monkeypatch, "[0] waits in all_reduce (its collective 2)", path)

    @distributed(gpus=2)
    def uneven(path: Path) -> float:
        import time

        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        x = torch.ones(4)
        dist.all_reduce(x)
        while dist.get_rank() == 1 and not path.exists():
            time.sleep(0.1)
        dist.all_reduce(x)
        return float(x[0])

    assert uneven.distributed(path) == [4.0, 4.0]
    told = next(text for text in watcher.texts if "[0] waits" in text)
    # Rank 1 looks for its file, which may be CPU enough to be told.
    found = r"no output (and no CPU used )?since [\d:]{8}: \[0\] in all_reduce at "
    assert re.search(found, told)
    assert "[1] has done 1 and begun no other" in told
    assert "test_quiet.py" in told
    assert "waits" not in watcher.texts[-1]


def test_ranks_that_wait_are_told_though_another_computes(
    monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    watcher = _watch(monkeypatch, "[0] waits in barrier", path)

    @distributed(gpus=2)
    def busy(path: Path) -> None:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        while dist.get_rank() == 1 and not path.exists():
            pass
        dist.barrier()

    busy.distributed(path)
    told = next(text for text in watcher.texts if "waits in barrier" in text)
    assert "no output since " in told
    assert "no CPU used" not in told


def test_a_report_that_says_the_same_stays_as_it_is_for_who_reads_it() -> None:
    watch = quiet.QuietWatch(pool.get().core, [])
    shown = []
    for seconds, rank in ((30, 0), (35, 0), (40, 1), (45, 1), (120, 1)):
        watch._keep(Report(f"[{rank}] waits for {seconds} s", ("stack",)), float(seconds))
        assert watch._found is not None
        shown.append(watch._found.line)
    assert shown == [
        *2 * ["[0] waits for 30 s"],
        *2 * ["[1] waits for 40 s"],
        "[1] waits for 120 s",
    ]


def test_the_timeout_says_who_waits_for_whom() -> None:
    @distributed(gpus=2, timeout=2)
    def mismatch() -> None:
        import time

        import torch.distributed as dist

        dist.init_process_group("gloo")
        if dist.get_rank() == 1:
            time.sleep(600)
        dist.barrier()

    with pytest.raises(DistributedTimeoutError) as caught:
        mismatch.distributed()
    assert "the default group: [0] waits in barrier (its collective 1)" in str(caught.value)
    assert "[1] has begun none here" in str(caught.value)


@pytest.mark.parametrize("text", ["0", "-1", "soon"])
def test_a_wrong_limit_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("SERVERLESS_GPU_QUIET_S", text)
    with pytest.raises(ValueError, match="SERVERLESS_GPU_QUIET_S takes seconds above 0"):
        quiet.limit()


def test_a_script_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SERVERLESS_GPU_QUIET_S", "0.5")

    @distributed(gpus=1, timeout=3)
    def asleep() -> None:
        import time

        time.sleep(600)

    with pytest.raises(DistributedTimeoutError):
        asleep.distributed()
    assert capfd.readouterr().err.count("no output and no CPU used") == 1
