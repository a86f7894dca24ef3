"""Failures and Stop on real GPUs: NCCL groups that are cut, kernels that go on, who is named."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

pytest.importorskip("torch")
import torch.distributed as dist

from serverless_gpu import DistributedTimeoutError, distributed, session
from tests.support.gpu_ranks import join, say_ready
from tests.support.gpus import (
    EXPECTED,
    GPUS,
    Measured,
    Reduce,
    await_memory,
    memory_used,
    needs_gpu,
    several,
)
from tests.support.stopping import Ready, Stopper

pytestmark = needs_gpu

#: Cycles of a GPU: a minute's.
LONG = 120_000_000_000
GROUP = """
import time, torch, torch.distributed as dist
from tests.support.gpu_ranks import join, say_ready
rank = join()
x = torch.ones(4, device="cuda") * (rank + 1)
y = x.clone(); dist.all_reduce(y); torch.cuda.synchronize()
kept = "kept"
"""


@pytest.fixture
def ranks_in_a_group() -> Iterator[list[int]]:
    """A session whose ranks have variables and an NCCL group; its pids."""
    session().run(GROUP, gpus=GPUS)
    yield session().pids()


def _all_is_as_before(pids: list[int]) -> None:
    """The same processes with the same variables make a new group, which reduces right."""
    assert session().pull("kept") == ["kept"] * GPUS
    session().run("y = x.clone(); dist.all_reduce(y); value = y[0].item()")
    assert session().pull("value") == EXPECTED
    assert session().pids() == pids


@several
def test_a_failing_rank_is_named_while_the_others_wait_in_nccl_and_the_session_goes_on(
    ranks_in_a_group: list[int], measured: Measured
) -> None:
    started = time.perf_counter()
    with pytest.raises(ValueError, match="bad batch") as caught:
        session().run(
            "if rank == 1: raise ValueError('bad batch')\n"
            "dist.all_reduce(y); torch.cuda.synchronize()"
        )
    measured("a rank raises, others in NCCL, to the prompt", time.perf_counter() - started, "s")
    assert caught.value.rank == 1  # type: ignore[attr-defined]
    _all_is_as_before(ranks_in_a_group)


@several
def test_stop_frees_a_session_from_an_nccl_collective_and_costs_it_nothing(
    ranks_in_a_group: list[int], ready: Ready, stopper: Stopper, measured: Measured
) -> None:
    cell = f"""
if rank == 0:
    dist.all_reduce(y); say_ready({ready.path!r}); torch.cuda.synchronize()
else:
    say_ready({ready.path!r}); time.sleep(600)
"""
    with pytest.raises(KeyboardInterrupt):
        stopper.during(lambda: session().run(cell), (GPUS,))
    seconds = time.perf_counter() - stopper.pressed_at
    measured("Stop in an NCCL collective to the prompt", seconds, "s")
    _all_is_as_before(ranks_in_a_group)


def test_stop_ends_a_kernel_that_runs_for_minutes_and_its_memory_is_back(
    no_contexts_ahead: None,
    reduce_all: Reduce,
    ready: Ready,
    stopper: Stopper,
    measured: Measured,
) -> None:
    @distributed(gpus=GPUS)
    def long(ready_path: str) -> None:
        import torch

        join()
        held = torch.ones(1 << 28, device="cuda")  # 1 GiB
        torch.cuda._sleep(LONG)  # type: ignore[no-untyped-call]
        say_ready(ready_path)
        held.sum().item()

    before = memory_used()
    with pytest.raises(KeyboardInterrupt):
        stopper.during(lambda: long.distributed(ready.path), (GPUS,))
    measured("Stop in a long kernel to the prompt", time.perf_counter() - stopper.pressed_at, "s")
    measured("... and the memory back, after the prompt", await_memory(before), "s")
    assert reduce_all() == EXPECTED


@several
def test_a_quiet_call_and_a_timeout_say_which_rank_waits_in_which_nccl_collective(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @distributed(gpus=GPUS, timeout=11)
    def uneven() -> None:
        import torch

        rank = join()
        x = torch.ones(1 << 20, device="cuda")
        dist.all_reduce(x)
        torch.cuda.synchronize()
        if rank == 0:
            dist.all_reduce(x)
            torch.cuda.synchronize()
        time.sleep(600)

    monkeypatch.setenv("SERVERLESS_GPU_QUIET_S", "4")
    with pytest.raises(DistributedTimeoutError) as caught:
        uneven.distributed()
    quiet, others = capsys.readouterr().err, "1" if GPUS == 2 else f"1-{GPUS - 1}"
    for text in (str(caught.value), quiet):
        assert "[0] waits in all_reduce (its collective 2) for" in text, text
        assert f"[{others}] ha" in text and "done 1 and begun no other" in text, text
        assert "synchronize" in text, text


def test_a_collective_that_waits_for_a_kernel_before_it_is_told_too() -> None:
    @distributed(gpus=GPUS, timeout=6)
    def behind() -> None:
        import torch

        join()
        x = torch.ones(1 << 20, device="cuda")
        dist.all_reduce(x)
        torch.cuda._sleep(LONG)  # type: ignore[no-untyped-call]
        dist.all_reduce(x)
        torch.cuda.synchronize()

    with pytest.raises(DistributedTimeoutError) as caught:
        behind.distributed()
    who = "[0] waits" if GPUS == 1 else f"[0-{GPUS - 1}] wait"
    assert f"{who} in all_reduce (its collective 2) for" in str(caught.value), caught.value


def test_a_warning_of_nccl_reaches_the_output(capfd: pytest.CaptureFixture[str]) -> None:
    @distributed(gpus=GPUS, env={"NCCL_DEBUG": "WARN", "NCCL_SOCKET_IFNAME": "=nosuch0"})
    def unconnected() -> None:
        import torch

        join()
        dist.all_reduce(torch.ones(1, device="cuda"))
        torch.cuda.synchronize()

    with pytest.raises(RuntimeError, match="NCCL"):
        unconnected.distributed()
    shown = "".join(capfd.readouterr())
    assert "NCCL WARN" in shown, shown
