"""What ranks wait for, in words."""

from __future__ import annotations

import json
import pickle
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from serverless_gpu import whereabouts
from serverless_gpu.rank import collectives
from serverless_gpu.whereabouts import Collective, Whereabouts


def _at(
    op: str, number: int, *, pending: bool = True, shape: tuple[int, ...] = (4,)
) -> Whereabouts:
    one = Collective("0", True, op, number, shape, pending, 40.2 if pending else 0.0)
    return Whereabouts("", (one,))


def test_who_waits_and_who_has_not_come() -> None:
    found = {
        0: _at("all_reduce", 5),
        1: _at("all_reduce", 4, pending=False),
        2: _at("all_reduce", 5),
    }
    assert whereabouts.differences(found) == [
        "the default group: [0,2] wait in all_reduce (its collective 5) for 40 s; "
        "[1] has done 4 and begun no other"
    ]


def test_a_rank_without_any_collective_is_told_too() -> None:
    assert whereabouts.differences({0: _at("barrier", 1), 1: Whereabouts("")}) == [
        "the default group: [0] waits in barrier (its collective 1) for 40 s; "
        "[1] has begun none here"
    ]


def test_collectives_that_do_not_fit_together_are_called_so() -> None:
    (line,) = whereabouts.differences({0: _at("broadcast", 3), 1: _at("all_reduce", 3)})
    assert line.endswith("; these do not fit together")
    shapes = {0: _at("all_reduce", 3), 1: _at("all_reduce", 3, shape=(8,))}
    (line,) = whereabouts.differences(shapes)
    assert line.endswith("; their shapes differ: [0] [4], [1] [8]")


def test_of_a_subgroup_only_its_known_members_are_told() -> None:
    def member(pending: bool) -> Whereabouts:
        one = Collective("mesh_tp", False, "all_gather", 2, (), pending, 31.0)
        return Whereabouts("", (one,))

    found = {0: member(True), 1: member(False), 2: Whereabouts("")}
    assert whereabouts.differences(found) == [
        "group mesh_tp: [0] waits in all_gather (its collective 2) for 31 s; "
        "[1] has done 2 and begun no other"
    ]


def test_while_nobody_waits_there_is_nothing_to_say() -> None:
    found = {0: _at("all_reduce", 5, pending=False), 1: Whereabouts("")}
    assert whereabouts.differences(found) == []
    assert found[0].waiting() == 0
    assert _at("barrier", 1).waiting() == 40.2


def _entry(number: int, **changed: Any) -> dict[str, Any]:
    plain = {
        "process_group": ("0", "default_pg"),
        "pg_id": 0,
        "time_created_ns": 1000 + number,
        "input_sizes": [[2, 3]],
        "output_sizes": [[2, 3]],
        "profiling_name": "gloo:all_reduce",
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "is_p2p": False,
        "retired": True,
        "state": "scheduled",
    }
    return {**plain, **changed}


def test_of_the_record_the_last_of_each_group_counts() -> None:
    entries = [
        _entry(1),
        _entry(2, retired=False),
        _entry(1, process_group=("1", "mesh"), profiling_name="nccl:all_gather", retired=False),
    ]
    default, mesh = collectives.last_of_each_group(entries, 0, 2_000_001_002)
    assert (default["op"], default["number"], default["pending"]) == ("all_reduce", 2, True)
    assert (default["shape"], default["default"], default["seconds"]) == ([2, 3], True, 2.0)
    assert (mesh["group"], mesh["op"]) == ("mesh", "all_gather")


def test_groups_of_earlier_calls_and_aborted_ones_do_not_count() -> None:
    entries = [_entry(7, retired=False), _entry(9, pg_id=3), _entry(8, retired=False)]
    assert collectives.last_of_each_group(entries, 1008, 5000)[0]["number"] == 9
    assert collectives.last_of_each_group(entries, 2000, 5000) == []


def test_a_group_for_both_kinds_of_tensors_waits_where_either_of_its_records_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def record(*entries: dict[str, Any]) -> Any:
        return lambda **_: pickle.dumps({"entries": list(entries)})

    gloo, nccl = _entry(3), _entry(7, retired=False)
    for first, second in ((gloo, nccl), (nccl, gloo)):
        torch_c = SimpleNamespace(_dump_fr_trace=record(first), _dump_nccl_trace=record(second))
        monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", torch_c)
        (one,) = json.loads(collectives.waiting(0))
        assert (one["number"], one["pending"]) == (7, True)
    monkeypatch.setitem(
        sys.modules, "torch._C._distributed_c10d", SimpleNamespace(_dump_nccl_trace=record(nccl))
    )
    assert json.loads(collectives.waiting(0))[0]["number"] == 7


def test_an_answer_of_a_rank_is_read() -> None:
    one = collectives.last_of_each_group([_entry(1, retired=False)], 0, 1001)
    answer = {"text": "stack", "main": "S", "collectives": json.dumps(one)}
    found = whereabouts.read(json.dumps(answer))
    assert found.stack == "stack"
    assert found.collectives == (Collective("0", True, "all_reduce", 1, (2, 3), True, 0.0),)
    assert whereabouts.read(json.dumps({**answer, "collectives": ""})).collectives == ()
