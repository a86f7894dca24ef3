"""A call whose time is up: where every rank was, and what is kept."""

from __future__ import annotations

import contextlib
import sys
import time

import pytest
from rank_code import rank_number

from serverless_gpu import DistributedTimeoutError, distributed

pytestmark = pytest.mark.usefixtures("next_call_works", "quick_grace")


@pytest.mark.parametrize("asleep", ["python", "native", "busy", "collective"])
def test_the_deadline_shows_where_every_rank_is(asleep: str) -> None:
    @distributed(gpus=2, timeout=1.5)
    def stuck(kind: str) -> None:
        import ctypes

        import torch.distributed as dist

        dist.init_process_group("gloo")
        if kind == "collective" and dist.get_rank() == 0:
            dist.barrier()
        if kind == "native":
            ctypes.PyDLL(None).sleep(3600)
        while kind == "busy":
            pass
        time.sleep(3600)

    with pytest.raises(DistributedTimeoutError, match=r"1\.5 s") as caught:
        stuck.distributed(asleep)
    error = caught.value
    assert isinstance(error, TimeoutError)
    assert sorted(error.stacks) == [0, 1]
    assert all("in stuck" in stack for stack in error.stacks.values())
    assert error.seconds == 1.5


@pytest.mark.parametrize("seconds", [1e10, sys.maxsize, sys.float_info.max])
def test_a_timeout_beyond_what_clocks_count_is_as_good_as_none(seconds: float) -> None:
    assert distributed(gpus=1, timeout=seconds)(rank_number).distributed() == [0]


def test_a_rank_that_returned_is_kept_by_the_timeout() -> None:
    @distributed(gpus=2, timeout=1.5)
    def uneven() -> str:
        if rank_number() == 1:
            time.sleep(3600)
        return "early"

    with pytest.raises(DistributedTimeoutError, match="rank 0 had finished") as caught:
        uneven.distributed()
    assert caught.value.results == {0: "early"}
    assert list(caught.value.stacks) == [1]


def test_the_timeout_is_not_taken_for_an_interrupt_by_user_code() -> None:
    @distributed(gpus=1, timeout=1.0)
    def careless() -> None:
        while True:
            with contextlib.suppress(Exception):
                time.sleep(3600)

    with pytest.raises(DistributedTimeoutError):
        careless.distributed()
