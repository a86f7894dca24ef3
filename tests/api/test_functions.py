"""The decorator and `.distributed()`: spellings, refusals, and what runs in ranks."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from rank_code import rank_number

import serverless_gpu
from serverless_gpu import (
    GPUType,
    NestedCallError,
    distributed,
)
from tests.support.shown import frames_shown


@pytest.mark.parametrize(
    "decorate",
    [
        distributed(gpus=2),
        distributed(num_accelerators=2),
        distributed(gpus=2, num_accelerators=2),
        distributed(gpus=2, gpu_type="H100"),
        distributed(gpus=2, gpu_type=GPUType.A10, timeout=60.5),
        distributed(num_accelerators=2, accelerator_type="GPU_8xH100"),
        distributed(gpus=2, timeout=None, mlflow="off", env={}, name="run", session=False),
    ],
)
def test_every_spelling_gives_one_value_per_rank(decorate: Callable[..., Any]) -> None:
    assert decorate(rank_number).distributed() == [0, 1]


def test_without_arguments_all_ranks_of_the_machine_run() -> None:
    assert distributed(rank_number).distributed() == list(range(8))
    assert distributed()(rank_number).distributed() == list(range(8))


def test_a_plain_call_runs_here() -> None:
    @distributed(gpus=2)
    def where(a: int, *, b: int = 2) -> tuple[int, int]:
        """Says where."""
        return os.getpid(), a + b

    assert where(1) == (os.getpid(), 3)
    assert where.__name__ == "where"
    assert where.__doc__ == "Says where."


def test_the_other_name_works_in_a_program_that_has_imported_nothing_of_ours() -> None:
    code = (
        "from databricks.air import distributed as theirs; from databricks.air import runtime\n"
        "import serverless_gpu; assert theirs is serverless_gpu.distributed\n"
        "assert runtime is serverless_gpu.runtime\n"
        "import sys; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_same_name_comes_from_databricks_air() -> None:
    from databricks.air import distributed as theirs

    assert theirs is serverless_gpu.distributed


def test_an_unknown_argument_is_refused_with_the_known_ones() -> None:
    with pytest.raises(TypeError, match=r"gpu_count.*gpus.*gpu_type.*timeout.*session.*name"):
        distributed(gpu_count=8)


@pytest.mark.parametrize(
    "options",
    [{"timeout": timeout} for timeout in (0, -1, True, float("nan"), float("inf"), 10**400)],
)
def test_a_timeout_that_cannot_be_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="timeout takes seconds above 0"):
        distributed(**options)


@pytest.mark.parametrize("decorate", [distributed, distributed(gpus=2)])
def test_what_is_no_function_is_refused(decorate: Any) -> None:
    with pytest.raises(TypeError, match="options go by name"):
        decorate(8)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"gpu": 2}, TypeError, "does not know gpu .did you mean gpus"),
        ({"env": {"A": 1}}, TypeError, "strings, got 'A': 1"),
        ({"env": "A=1"}, TypeError, "env takes a dict"),
        ({"gpus": 2, "num_accelerators": 4}, TypeError, "contradict"),
        ({"name": 5}, TypeError, "name takes the name of the MLflow run"),
        ({"mlflow": "yes"}, ValueError, "mlflow='yes': must be one of always, lazy, off"),
        ({"mlflow": True}, ValueError, "mlflow=True: must be one of"),
        ({"output": "loud"}, ValueError, "output takes merged"),
        ({"wait": "long"}, ValueError, "wait takes seconds"),
    ],
)
def test_a_wrong_option_is_one_line_when_the_function_is_decorated(
    options: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said) as raised:
        distributed(**options)
    assert len(str(raised.value).splitlines()) == 1
    assert frames_shown(raised.value) == 1, "frames of ours are not"


@pytest.mark.parametrize(
    ("gpus", "error"),
    [(0, ValueError), (-1, ValueError), (10_000, ValueError), ("2", TypeError), (True, TypeError)],
)
def test_a_number_of_ranks_that_cannot_be_is_refused(gpus: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"1 to 128"):
        distributed(gpus=gpus)(rank_number).distributed()


def test_the_output_of_a_rank_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match=r"output=0,2-5: there is no rank 5; the ranks are 0-1"):
        distributed(gpus=2, output="0,2-5")(rank_number).distributed()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SERVERLESS_GPU_OUTPUT_MB", "many"),
        ("SERVERLESS_GPU_MLFLOW", "sometimes"),
        ("SERVERLESS_GPU_ACCELERATOR", "tpu"),
    ],
)
def test_a_wrong_variable_is_one_line_at_the_call(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=f"{variable}.*{value}") as raised:
        distributed(gpus=2)(rank_number).distributed()
    assert frames_shown(raised.value) == 1, "frames of ours are not"


@pytest.mark.parametrize("arguments", [(), (1, 2, 3), (1,)])
def test_arguments_that_do_not_fit_are_refused_here(arguments: tuple[int, ...]) -> None:
    @distributed(gpus=2)
    def two(a: int, b: int, *, c: int) -> int:
        return a

    with pytest.raises(TypeError, match="argument"):
        two.distributed(*arguments)


def test_keywords_defaults_and_stars_arrive() -> None:
    @distributed(gpus=2)
    def all_kinds(a: int, /, b: int = 2, *rest: int, c: int = 4, **named: int) -> Any:
        return a, b, rest, c, named

    assert all_kinds.distributed(1) == [(1, 2, (), 4, {})] * 2
    assert all_kinds.distributed(1, 3, 5, c=6, d=7) == [(1, 3, (5,), 6, {"d": 7})] * 2


def test_methods_class_methods_and_static_methods_run() -> None:
    class Trainer:
        def __init__(self, rate: float) -> None:
            self.rate = rate

        @distributed(gpus=2)
        def train(self, steps: int) -> float:
            return self.rate * steps

        @classmethod
        @distributed(gpus=2)
        def name(cls) -> str:
            return cls.__name__

        @staticmethod
        @distributed(gpus=2)
        def double(x: int) -> int:
            return 2 * x

    assert Trainer(0.5).train.distributed(4) == [2.0, 2.0]
    assert Trainer(0.5).train(2) == 1.0
    assert Trainer.double.distributed(4) == [8, 8]
    assert Trainer.name.distributed() == ["Trainer"] * 2


def test_closures_factories_lambdas_and_recursion_run() -> None:
    def factory(factor: int) -> Any:
        @distributed(gpus=2)
        def inner(x: int) -> int:
            return x * factor

        return inner

    @distributed(gpus=2)
    def factorial(n: int) -> int:
        return 1 if n < 2 else n * factorial(n - 1)

    assert factory(3).distributed(2) == [6, 6]
    assert factory(4).distributed(2) == [8, 8]
    assert factorial.distributed(5) == [120, 120]
    assert distributed(gpus=2)(lambda x: x + 1).distributed(1) == [2, 2]


def test_an_async_function_is_run_to_its_end() -> None:
    @distributed(gpus=2)
    async def wait(x: int) -> int:
        await asyncio.sleep(0)
        return x + 1

    @distributed(gpus=2)
    def run() -> int:
        async def one() -> int:
            return 1

        return asyncio.run(one())

    assert wait.distributed(1) == [2, 2]
    assert run.distributed() == [1, 1]


def test_a_call_inside_a_rank_is_refused_in_words() -> None:
    @distributed(gpus=2)
    def inner() -> int:
        return 1

    @distributed(gpus=2)
    def outer() -> Any:
        return inner.distributed()

    @distributed(gpus=2)
    def plain() -> Any:
        return inner()

    with pytest.raises(NestedCallError, match=r"inside a rank; call inner\(\.\.\.\)"):
        outer.distributed()
    assert plain.distributed() == [1, 1]


def test_sixteen_ranks_run_on_any_machine() -> None:
    @distributed(gpus=16)
    def total() -> float:
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        x = torch.ones(1)
        dist.all_reduce(x)
        return float(x)

    assert total.distributed() == [16.0] * 16


def test_without_a_signature_the_call_itself_decides() -> None:
    assert distributed(gpus=1)(max).distributed(1, 2) == [2]
