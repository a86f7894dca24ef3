"""What comes back from ranks: order, identity, size, and nothing that depends on the ranks."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from rank_code import rank_number

from serverless_gpu import ResultError, distributed


def test_results_come_in_rank_order_whoever_is_first() -> None:
    @distributed(gpus=4)
    def reverse() -> int:
        time.sleep(0.05 * (4 - rank_number()))
        return rank_number()

    assert reverse.distributed() == [0, 1, 2, 3]


def test_none_from_most_ranks_keeps_their_places() -> None:
    @distributed(gpus=4)
    def train() -> str | None:
        return "run-abc" if rank_number() == 2 else None

    assert train.distributed() == [None, None, "run-abc", None]


def test_one_rank_gives_a_list_too() -> None:
    assert distributed(gpus=1)(rank_number).distributed() == [0]


def test_objects_of_the_notebook_s_classes_are_of_those_classes() -> None:
    class Point:
        def __init__(self, x: int) -> None:
            self.x = x

    @distributed(gpus=2)
    def make() -> Any:
        return Point(rank_number()), Point

    for number, (point, kind) in enumerate(make.distributed()):
        assert isinstance(point, Point)
        assert kind is Point
        assert point.x == number


def test_tensors_are_plain_copies_of_the_notebook() -> None:
    import torch

    @distributed(gpus=2)
    def tensors() -> dict[str, Any]:
        base = torch.arange(10.0)
        full = torch.full((100_000,), float(rank_number()))
        return {"t": full, "view": base[2:4], "param": torch.nn.Parameter(full.clone())}

    out = tensors.distributed()

    assert [float(o["t"].sum()) for o in out] == [0.0, 100_000.0]
    assert out[0]["view"].tolist() == [2.0, 3.0]
    assert isinstance(out[1]["param"], torch.nn.Parameter)
    out[0]["t"].add_(1)
    assert out[1]["t"][0] == 1.0


def test_results_outlive_the_ranks(session: Any) -> None:
    @distributed(gpus=2, session=True)
    def arrays() -> np.ndarray:
        return np.full(100_000, rank_number())

    out = arrays.distributed()
    session.stop()

    assert [int(array.sum()) for array in out] == [0, 100_000]


def test_a_gigabyte_comes_back_right() -> None:
    @distributed(gpus=2)
    def big(size: int) -> np.ndarray:
        array = np.zeros(size, np.uint8)
        array[-1] = 1 + rank_number()
        return array

    out = big.distributed(1 << 29)

    assert [(len(array), int(array[-1])) for array in out] == [(1 << 29, 1), (1 << 29, 2)]


def test_bytes_beyond_two_gigabytes_come_back() -> None:
    @distributed(gpus=1)
    def big(size: int) -> bytes:
        return bytes(size)

    (out,) = big.distributed((1 << 31) + 10)

    assert len(out) == (1 << 31) + 10


def test_a_result_that_cannot_travel_names_the_rank() -> None:
    @distributed(gpus=2)
    def generator() -> Any:
        if rank_number() == 1:
            return (i for i in range(3))
        return "fine"

    with pytest.raises(Exception, match="generator") as caught:
        generator.distributed()
    assert caught.value.rank == 1
    assert caught.value.results == {0: "fine"}
    assert not caught.value.failures[1].chain[-1].frames  # it left none of the user's


def test_a_result_that_cannot_be_loaded_here_is_an_error_that_says_so() -> None:
    @distributed(gpus=1)
    def odd() -> Any:
        class Odd:
            def __reduce__(self) -> Any:
                return (int, ("no number",))

        return Odd()

    with pytest.raises(ResultError, match=r"no number.*\nReturn what it is made of instead"):
        odd.distributed()


def test_a_model_that_lives_in_a_process_group_says_what_to_return() -> None:
    @distributed(gpus=2)
    def model() -> Any:
        import torch
        import torch.distributed as dist

        dist.init_process_group()
        return torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))

    with pytest.raises(ResultError, match=r"process group.*\nReturn .* a state_dict"):
        model.distributed()


def test_results_let_the_notebook_go_on_with_its_own_objects() -> None:
    """A container that goes there and back is equal, not the same."""
    here = {"a": [1, 2], "b": None}

    @distributed(gpus=2)
    def echo(value: Any) -> Any:
        value["a"].append(rank_number())
        return value

    assert echo.distributed(here) == [{"a": [1, 2, 0], "b": None}, {"a": [1, 2, 1], "b": None}]
    assert here == {"a": [1, 2], "b": None}
