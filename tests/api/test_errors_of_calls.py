"""How a call ends that does not end well, and that the next one is none the worse for it."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import psutil
import pytest
from rank_code import rank_number

from serverless_gpu import RankDiedError, RankError, call, distributed
from serverless_gpu.errors import format_ranks
from tests.support.stopping import Ready

pytestmark = pytest.mark.usefixtures("next_call_works", "quick_grace")


def test_an_exception_is_the_rank_s_own() -> None:
    @distributed(gpus=2)
    def fail() -> int:
        if rank_number() == 1:
            raise ValueError("bad batch")
        return 7

    with pytest.raises(ValueError, match="bad batch") as caught:
        fail.distributed()
    error: Any = caught.value
    assert isinstance(error, RankError)
    assert error.rank == 1
    assert type(error.__cause__) is ValueError
    assert list(error.failures) == [1]
    assert error.results == {0: 7}


def test_the_traceback_points_at_the_line() -> None:
    @distributed(gpus=1)
    def fail() -> None:
        raise KeyError("label_map")  # this line

    with pytest.raises(KeyError) as caught:
        fail.distributed()
    cause = caught.value.__cause__
    assert cause is not None
    last = cause.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    assert last is not None
    with open(last.tb_frame.f_code.co_filename) as f:
        assert "this line" in f.read().splitlines()[last.tb_lineno - 1]


def test_an_exception_of_the_notebook_s_own_class_is_caught_as_one() -> None:
    class Diverged(Exception):
        def __init__(self, step: int, loss: float) -> None:
            super().__init__(f"step {step}: {loss}")
            self.step = step

    @distributed(gpus=2)
    def fail() -> None:
        raise Diverged(3, 1e9)

    with pytest.raises(Diverged) as caught:
        fail.distributed()
    assert caught.value.step == 3


def test_ranks_that_wait_for_the_failed_one_are_stopped() -> None:
    @distributed(gpus=3)
    def fail() -> None:
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        x = torch.ones(1)
        dist.all_reduce(x)
        if dist.get_rank() == 1:
            raise ValueError("bad batch on rank 1")
        dist.all_reduce(x)

    with pytest.raises(ValueError, match="bad batch on rank 1") as caught:
        fail.distributed()
    assert caught.value.rank == 1


def test_who_can_only_wait_for_the_failed_one_gets_no_grace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(call, "GRACE", 24 * 3600.0)

    @distributed(gpus=3)
    def uneven() -> None:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        dist.barrier()
        if dist.get_rank() == 1:
            raise KeyError("label_map")
        dist.barrier()

    with pytest.raises(KeyError) as caught:
        uneven.distributed()
    assert caught.value.rank == 1  # type: ignore[attr-defined]


def test_who_works_after_another_s_failure_may_finish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call, "GRACE", 24 * 3600.0)

    @distributed(gpus=3)
    def uneven() -> str:
        import time

        import torch.distributed as dist

        dist.init_process_group("gloo")
        if dist.get_rank() == 0:
            raise KeyError("label_map")
        if dist.get_rank() == 1:
            time.sleep(3)
            return "saved"
        dist.barrier()
        return "never"

    with pytest.raises(KeyError) as caught:
        uneven.distributed()
    assert caught.value.results == {1: "saved"}  # type: ignore[attr-defined]


def test_the_cause_is_named_even_if_consequences_arrive_first() -> None:
    @distributed(gpus=4)
    def fail() -> None:
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        x = torch.ones(1)
        dist.all_reduce(x)
        if dist.get_rank() == 3:
            dist.destroy_process_group()
            time.sleep(0.3)  # the others see the closed connection long before
            raise KeyError("label_map")
        for _ in range(3):
            dist.all_reduce(x)

    with pytest.raises(KeyError, match="label_map") as caught:
        fail.distributed()
    assert caught.value.rank == 3


def test_the_first_of_two_failures_is_the_cause() -> None:
    @distributed(gpus=2)
    def fail(order: list[int]) -> None:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        if dist.get_rank() == order[1]:
            try:
                dist.barrier()
            finally:
                raise RuntimeError("second")
        raise RuntimeError("first")

    for order in ([0, 1], [1, 0]):
        with pytest.raises(RuntimeError, match="first") as caught:
            fail.distributed(order)
        assert caught.value.rank == order[0]


@pytest.mark.parametrize("code", [0, None])
def test_sys_exit_without_an_error_is_none(code: int | None) -> None:
    @distributed(gpus=2)
    def leave(code: int | None) -> str:
        if rank_number() == 1:
            sys.exit(code)
        return "fine"

    assert leave.distributed(code) == ["fine", None]


@pytest.mark.parametrize("code", [3, "message"])
def test_sys_exit_with_an_error_is_a_failure(code: object) -> None:
    @distributed(gpus=2)
    def leave(code: Any) -> str:
        if rank_number() == 1:
            sys.exit(code)
        return "fine"

    with pytest.raises(RankError, match=f"rank 1.*sys.exit.*{code}") as caught:
        leave.distributed(code)
    assert caught.value.results == {0: "fine"}


@pytest.mark.parametrize("code", [0, 3])
def test_a_quiet_end_is_no_success(code: int) -> None:
    @distributed(gpus=3)
    def leave(code: int) -> int:
        if rank_number() == 2:
            os._exit(code)
        return rank_number()

    with pytest.raises(RankDiedError, match=f"rank 2.*exit code {code}") as caught:
        leave.distributed(code)
    assert (caught.value.rank, caught.value.exit_code, caught.value.signal) == (2, code, None)


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_rank_s_death_is_named_with_its_signal(
    signum: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    @distributed(gpus=3)
    def die() -> None:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        if dist.get_rank() == 2:
            print("last words", flush=True)
            signal.signal(signum, signal.SIG_DFL) if signum != signal.SIGKILL else None
            os.kill(os.getpid(), signum)
        dist.barrier()

    with pytest.raises(RankDiedError, match=signum.name) as caught:
        die.distributed()
    assert caught.value.rank == 2
    assert caught.value.signal == signum.name
    assert "last words" in capfd.readouterr().out


def test_what_a_killed_rank_had_started_goes_with_it(ready: Ready) -> None:
    @distributed(gpus=2)
    def die(ready: str) -> None:
        import subprocess

        if rank_number() == 0:
            time.sleep(3600)
        child = subprocess.Popen(["sleep", "3600"], start_new_session=True)
        with open(ready, "w") as f:
            f.write(f"{child.pid:08d}")
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(RankDiedError, match="rank 1"):
        die.distributed(ready.path)
    pid = int(ready.wait(8))
    if psutil.pid_exists(pid):
        _, alive = psutil.wait_procs([psutil.Process(pid)], timeout=10)
        assert not alive


def test_all_ranks_that_raise_the_same_are_one_line() -> None:
    @distributed(gpus=4)
    def fail() -> None:
        raise RuntimeError("the same")

    with pytest.raises(RuntimeError, match="the same") as caught:
        fail.distributed()
    text = str(caught.value)
    others = set(range(4)) - {caught.value.rank}
    assert f"ranks {format_ranks(others)} raised the same" in text
    assert text.count("the same") == 2


def test_recursion_without_end_is_an_error_of_the_rank() -> None:
    @distributed(gpus=1)
    def deep(n: int) -> int:
        return deep(n + 1)

    with pytest.raises(RecursionError):
        deep.distributed(0)
