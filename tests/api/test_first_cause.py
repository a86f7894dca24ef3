"""Which rank failed first, from what ranks report; no processes."""

from __future__ import annotations

import os
from typing import Any

import pytest

from serverless_gpu import outcome, serialize
from serverless_gpu.errors import RankFailure
from serverless_gpu.errors.failure import Frame, Link

NO_MEMORY_TOLD = {"verdict": "unknown", "limit": 0, "peak": 0}
_C10D = f"{os.sep}lib{os.sep}torch{os.sep}distributed{os.sep}distributed_c10d.py"


def _failure(*links: Link) -> RankFailure:
    return RankFailure(links[-1].kind, links[-1].message, chain=links)


def _own(kind: str = "ValueError", message: str = "bad batch") -> RankFailure:
    return _failure(Link(kind, message, (Frame("cell", 3, "train"),)))


def _closed(kind: str = "RuntimeError") -> Link:
    return Link(kind, "closed", (Frame("cell", 4, "train"), Frame(_C10D, 99, "all_reduce")))


def _report(
    rank: int, failure: RankFailure, seconds: float, *, consequence: bool = False
) -> dict[str, Any]:
    payload = serialize.dump(failure, what="error")
    return {
        "rank": rank,
        "state": "raised",
        "consequence": consequence,
        "seconds": seconds,
        "pid": 4711,
        "memory": NO_MEMORY_TOLD,
        "frames": payload.frames,
        "fd": payload.detach(),
    }


def _death(rank: int, seconds: float, *, consequence: bool = False) -> dict[str, Any]:
    return {
        "rank": rank,
        "state": "died",
        "consequence": consequence,
        "seconds": seconds,
        "pid": 4711,
        "status": 9,
        "exit_known": True,
        "came_up": True,
        "program": "",
        "memory": NO_MEMORY_TOLD,
    }


def _first(*reports: dict[str, Any]) -> int | None:
    read = outcome._Reports()
    for report in reports:
        read.add(report)
    return read.first()


def test_the_earliest_is_the_first_whatever_the_order_of_arrival() -> None:
    assert _first(_report(0, _own(), 2.0), _report(3, _own("KeyError"), 1.9)) == 3


def test_of_equal_failures_the_lowest_rank_is_named() -> None:
    assert _first(_report(2, _own(), 1.0), _report(1, _own(), 1.1), _report(5, _own(), 0.9)) == 1


def test_a_peer_that_saw_the_end_before_we_did_is_not_the_cause() -> None:
    network = _failure(_closed())
    assert _first(_report(0, network, 1.0), _report(3, _own(), 1.2)) == 3
    assert _first(_report(0, network, 1.0), _death(2, 1.05)) == 2


@pytest.mark.parametrize(
    "links",
    [
        (_closed(), Link("ValueError", "training failed", (Frame("cell", 9, "train"),))),
        (Link("torch.distributed.DistBackendError", "x"),),
        (Link("RuntimeError", "[gloo/transport/tcp/pair.cc:544] closed", (Frame("b", 1, "f"),)),),
    ],
    ids=["wrapped by user code", "by its type", "in the backward pass"],
)
def test_failures_of_communication_are_known_by_type_place_and_chain(
    links: tuple[Link, ...],
) -> None:
    assert _first(_report(0, _failure(*links), 1.0), _report(1, _own(), 1.3)) == 1


def test_a_failure_of_communication_long_before_stands_by_itself() -> None:
    assert _first(_report(0, _failure(_closed()), 1.0), _report(1, _own(), 4.5)) == 0


def test_an_error_that_only_speaks_of_a_connection_is_the_user_s_own() -> None:
    database = _own("RuntimeError", "Connection closed by peer: postgres")
    assert _first(_report(0, database, 1.0), _report(1, _own(), 1.5)) == 0


def test_what_came_after_we_pressed_is_never_first() -> None:
    late = _report(0, _own("OSError"), 0.5, consequence=True)
    assert _first(late, _report(1, _own(), 3.0)) == 1


def test_what_our_own_abort_raised_is_not_reported() -> None:
    read = outcome._Reports()
    read.add(_report(0, _failure(Link("KeyboardInterrupt", "")), 6.0, consequence=True))
    read.add(_report(1, _failure(_closed()), 6.0, consequence=True))
    read.add(_report(2, _own(), 1.0))
    assert sorted(read.failures) == [2]
    assert read.pressed


def test_with_values_only_nobody_failed() -> None:
    assert _first() is None
