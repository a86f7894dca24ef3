"""What a rank tells of the first use of CUDA and of NCCL: with modules that stand for torch's."""

from __future__ import annotations

import time
import types
from collections.abc import Iterator

import pytest

from serverless_gpu.rank import startup

A_WHILE = 0.02


@pytest.fixture(autouse=True)
def nothing_told() -> Iterator[None]:
    startup.take()
    yield
    startup.take()


class Cuda(types.SimpleNamespace):
    """As torch.cuda: set_device initialises, through the module's own function."""

    def __init__(self) -> None:
        super().__init__(began=0, set_device=self._set_device, _lazy_init=self._init)

    def is_initialized(self) -> bool:
        return bool(self.began)

    def _init(self) -> None:
        time.sleep(A_WHILE)  # what the work takes
        self.began += 1

    def _set_device(self, device: int) -> int:
        self._lazy_init()
        return device


def watched() -> Cuda:
    cuda = Cuda()
    startup.watch(startup.CUDA, [cuda], ("_lazy_init", "set_device"), cuda.is_initialized)
    return cuda


def test_the_first_use_is_told_once_and_leaves_no_trace() -> None:
    cuda, plain = watched(), Cuda()
    assert cuda.set_device(3) == 3
    told = startup.take()
    assert list(told) == [startup.CUDA] and told[startup.CUDA] >= A_WHILE
    assert cuda.set_device.__func__ is plain.set_device.__func__
    cuda.set_device(2)
    assert startup.take() == {}


def test_a_use_that_fails_is_told_and_the_next_one_too() -> None:
    def fail() -> None:
        raise RuntimeError("no device")

    module = types.SimpleNamespace(use=fail)
    startup.watch("device", [module], ("use",), lambda: False)
    with pytest.raises(RuntimeError, match="no device"):
        module.use()
    assert list(startup.take()) == ["device"]
    with pytest.raises(RuntimeError, match="no device"):
        module.use()
    assert list(startup.take()) == ["device"]


def test_what_begins_inside_another_is_not_counted_twice() -> None:
    with startup.timed(startup.NCCL), startup.timed(startup.CUDA):
        time.sleep(A_WHILE)
    told = startup.take()
    assert told[startup.CUDA] >= A_WHILE
    assert told[startup.NCCL] < told[startup.CUDA]


def test_one_function_in_two_modules_is_put_back_in_both() -> None:
    def all_reduce() -> str:
        return "reduced"

    one, two = types.SimpleNamespace(f=all_reduce), types.SimpleNamespace(f=all_reduce)
    startup.watch(startup.NCCL, [one, two], ("f", "not there"), lambda: True)
    kept = one.f
    assert two.f() == "reduced"
    assert one.f is all_reduce and two.f is all_reduce
    startup.take()
    assert kept() == "reduced", "who has kept the name goes on"
    assert startup.take() == {}
