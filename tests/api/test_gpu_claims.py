"""Two notebooks and strangers on the same GPUs, on a made-up machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from serverless_gpu import distributed, gpu_claims, gpu_warm, pool, sessions
from serverless_gpu.gpu_claims import GpuBusyError
from tests.support.fake_gpus import Machine

#: A process of ours that nobody minds: the one whose memory tests make up.
STRANGER = 1
HOLDER = """
import sys
from serverless_gpu import _core
locks = _core.GpuLocks(sys.argv[1])
assert not locks.try_take(sys.argv[3:], sys.argv[2])
print("held", flush=True)
sys.stdin.read()
"""


def uuid(gpu: int) -> str:
    return f"GPU-00{gpu + 10}0000-0000-4000-8000-000000000000"


Hold = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Hold]:
    """Starts another notebook that has these GPUs until its stdin is closed."""
    started = []

    def start(name: str, *gpus: int) -> subprocess.Popen[str]:
        other = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(tmp_path / "locks"), name, *map(uuid, gpus)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(other)
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        return other

    yield start
    for other in started:
        other.kill()
        with other:  # closes its pipes and reaps it
            pass


def end(other: subprocess.Popen[str]) -> None:
    assert other.stdin is not None
    other.stdin.close()
    other.wait(30)


def one() -> int:
    return 1


def test_gpus_of_another_notebook_are_named_with_it(machine: Machine, hold: Hold) -> None:
    machine("8xH100")
    other = hold("train.ipynb", 0, 1)
    with pytest.raises(GpuBusyError) as caught:
        distributed(gpus=4, wait=0)(one).distributed()
    assert f"GPU 0-1 in use by train.ipynb (pid {other.pid})" in str(caught.value)
    assert "CUDA_VISIBLE_DEVICES" in str(caught.value)


def test_a_call_waits_and_says_for_whom(machine: Machine, hold: Hold) -> None:
    machine("2xH100")
    other = hold("train.ipynb", 1)
    # Freed at the moment at which the wait is announced: then it was waited for.
    announced = threading.Event()

    class Watched:
        def write(self, text: str) -> int:
            if "Waiting up to" in text:
                announced.set()
            return len(text)

        def flush(self) -> None:
            pass

    def free() -> None:
        assert announced.wait(60)
        end(other)

    helper = threading.Thread(target=free)
    helper.start()
    before, sys.stderr = sys.stderr, Watched()  # type: ignore[assignment]
    try:
        assert distributed(gpus=2, wait=60)(one).distributed() == [1, 1]
    finally:
        sys.stderr = before
        helper.join()


def test_gpus_that_others_leave_alone_can_be_chosen(machine: Machine, hold: Hold) -> None:
    machine("8xH100", visible="2,3")
    hold("train.ipynb", 0, 1)
    assert distributed(gpus=2, wait=0)(one).distributed() == [1, 1]


def test_sharing_on_purpose_passes_with_a_note(
    machine: Machine, hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine("2xH100")
    hold("train.ipynb", 0)
    monkeypatch.setenv("SERVERLESS_GPU_ALLOW_BUSY", "1")
    claim = gpu_claims.take(_devices(2), 0, pool.get())
    assert claim.note.startswith("shared: GPU 0 in use by train.ipynb")
    claim.give_back()


def _devices(count: int) -> tuple[gpu_claims.Device, ...]:
    from serverless_gpu import accelerator

    return accelerator.detect().devices[:count]


def test_a_session_keeps_its_gpus_until_it_is_stopped(
    machine: Machine, session: sessions.Session, tmp_path: Path
) -> None:
    machine("2xH100")
    session.run("x = 1", gpus=2)
    others = gpu_claims._core.GpuLocks(str(tmp_path / "locks"))
    held = others.try_take([uuid(0), uuid(1)], "other")
    assert [one.pid for one in held] == [os.getpid()] * 2
    # A function call of the same notebook shares them and does not end the session's claim.
    assert distributed(gpus=2, wait=0)(one).distributed() == [1, 1]
    assert len(others.try_take([uuid(0)], "other")) == 1
    session.stop()
    assert others.try_take([uuid(0), uuid(1)], "other") == []


def test_a_stop_between_the_gpus_and_their_ranks_leaves_none_taken(
    machine: Machine,
    session: sessions.Session,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine("2xH100")
    with monkeypatch.context() as at_that_moment, pytest.raises(KeyboardInterrupt):
        at_that_moment.setattr(gpu_warm, "check", lambda _: signal.raise_signal(signal.SIGINT))
        session.run("x = 1", gpus=2)
    session.run("x = 1", gpus=2)
    session.stop()
    others = gpu_claims._core.GpuLocks(str(tmp_path / "locks"))
    assert others.try_take([uuid(0), uuid(1)], "other") == []


def test_a_session_whose_guard_has_died_lets_others_have_its_gpus(
    machine: Machine, session: sessions.Session, tmp_path: Path
) -> None:
    machine("2xH100")
    session.run("x = 1", gpus=2)
    others = gpu_claims._core.GpuLocks(str(tmp_path / "locks"))
    os.kill(pool.get().core.pids()["guard"], signal.SIGKILL)
    limit = time.monotonic() + 30
    while others.try_take([uuid(0), uuid(1)], "other"):
        assert time.monotonic() < limit, "a dead session keeps its GPUs"
        time.sleep(0.01)
    others.give_back([uuid(0), uuid(1)])
    session.run("x = 2")
    assert session.pull("x") == [2, 2]
    assert len(others.try_take([uuid(0)], "other")) == 1


def test_a_guard_that_dies_during_a_call_frees_them_too(
    machine: Machine, session: sessions.Session, tmp_path: Path
) -> None:
    machine("2xH100")
    session.run("import os, signal", gpus=2)
    guard = pool.get().core.pids()["guard"]
    with pytest.raises(pool.PoolError):
        session.run(f"os.kill({guard}, signal.SIGKILL); signal.pause()")
    others = gpu_claims._core.GpuLocks(str(tmp_path / "locks"))
    assert others.try_take([uuid(0), uuid(1)], "other") == []


def test_a_failed_call_gives_its_gpus_back(machine: Machine, tmp_path: Path) -> None:
    machine("2xH100")

    @distributed(gpus=2, wait=0)
    def fail() -> None:
        raise ValueError("bad batch")

    with pytest.raises(ValueError, match="bad batch"):
        fail.distributed()
    others = gpu_claims._core.GpuLocks(str(tmp_path / "locks"))
    assert others.try_take([uuid(0), uuid(1)], "other") == []


def test_strangers_on_a_gpu_are_in_the_note(machine: Machine) -> None:
    machine("2xH100", use=f"1:{STRANGER}:20000")
    claim = gpu_claims.take(_devices(2), 0, pool.get())
    assert claim.note.startswith(f"GPU 1 also in use by pid {STRANGER} (root, ")
    assert "21.0 GB" in claim.note
    claim.give_back()


def test_a_gpu_without_room_is_refused_unless_that_is_meant(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine("2xH100", use=f"1:{STRANGER}:75000")
    with pytest.raises(GpuBusyError) as caught:
        gpu_claims.take(_devices(2), 0, pool.get())
    assert "GPU 1 (H100) has 6.9 GB of 85.5 GB free, in use by pid 1" in str(caught.value)
    others = gpu_claims._core.GpuLocks(str(tmp_path / "locks"))
    assert others.try_take([uuid(0), uuid(1)], "other") == [], "nothing is kept"
    others.give_back([uuid(0), uuid(1)])
    assert gpu_claims.take(_devices(1), 0, pool.get()).note == "", "the first has room"
    monkeypatch.setenv("SERVERLESS_GPU_MIN_FREE", "0.05")
    assert "pid 1" in gpu_claims.take(_devices(2), 0, pool.get()).note
    monkeypatch.delenv("SERVERLESS_GPU_MIN_FREE")
    monkeypatch.setenv("SERVERLESS_GPU_ALLOW_BUSY", "1")
    assert "pid 1" in gpu_claims.take(_devices(2), 0, pool.get()).note


def test_what_the_session_holds_is_no_error_but_said(
    machine: Machine, session: sessions.Session
) -> None:
    machine("2xH100")
    session.run("x = 1", gpus=2)
    machine("2xH100", use=f"0:{session.pids()[0]}:70000")
    claim = gpu_claims.take(_devices(2), 0, pool.get(), session.pids())
    assert claim.note == (
        "GPU 0: this notebook's session holds 73.4 GB; %distributed stop frees it"
    )
    claim.give_back()


def test_a_folder_for_locks_that_cannot_be_used_is_said(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine("1xA10")
    (tmp_path / "file").touch()
    monkeypatch.setenv("SERVERLESS_GPU_LOCKS", str(tmp_path / "file"))
    claim = gpu_claims.take(_devices(1), 0, pool.get())
    assert claim.note.startswith("not locked against other notebooks: folder of GPU locks")


@pytest.mark.parametrize("wait", ["soon", -1, float("nan")])
def test_a_wait_that_cannot_be_is_refused(wait: float, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="wait takes seconds of at least 0"):
        distributed(wait=wait)
    monkeypatch.setenv("SERVERLESS_GPU_WAIT", str(wait))
    with pytest.raises(ValueError, match="SERVERLESS_GPU_WAIT takes seconds"):
        gpu_claims.wait_limit(None)


def test_a_rank_that_is_out_of_gpu_memory_says_who_has_it(machine: Machine) -> None:
    machine("2xH100", use=f"1:{STRANGER}:30000")

    @distributed(gpus=2)
    def full() -> None:
        if os.environ["RANK"] == "1":
            raise RuntimeError("CUDA out of memory. Tried to allocate 60.00 GiB.")

    with pytest.raises(RuntimeError) as caught:
        full.distributed()
    assert "GPU 1 (H100) of rank 1, which asked for 60.00 GiB, is full." in str(caught.value)
    assert "pid 1 (root" in str(caught.value) and "has 29.3 GiB" in str(caught.value)
