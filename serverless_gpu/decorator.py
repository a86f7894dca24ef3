"""The function API: `@distributed` and `.distributed(...)`."""

from __future__ import annotations

import difflib
import functools
import inspect
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar, overload

from . import _core, accelerator, call, clean_ranks, gpu_claims, serialize, stops
from .errors import ArgumentsError, NestedCallError, OptionError
from .gpu_type import GPUType
from .rank import in_rank
from .tracking import settings

P = ParamSpec("P")
R = TypeVar("R")

_KNOWN = (
    "gpus (or num_accelerators), gpu_type (or accelerator_type), timeout, session, mlflow, env, "
    "name, wait, output"
)
_NAMES = re.findall(r"[a-z_]{3,}", _KNOWN)


@dataclass(frozen=True)
class _Asked:
    """The arguments of the decorator."""

    gpus: int | None
    gpu_type: str | GPUType | None
    timeout: float | None
    session: bool
    mlflow: str | None
    env: dict[str, str]
    name: str | None
    wait: float | None
    output: tuple[str, str]  # how, and the ranks if it is some


class DistributedFunction(Generic[P, R]):
    """A function that also runs on ranks. Calling it runs it here, as if it were not decorated."""

    def __init__(self, function: Callable[P, R], asked: _Asked) -> None:
        self._function = function
        self._asked = asked
        self._text: str | None = None  # of the function, once it was read
        self._signature: inspect.Signature | None = None  # once it was needed
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._function(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> DistributedFunction[..., R]:
        if instance is None:
            return self
        bound: Callable[..., R] = self._function.__get__(instance, owner)
        return DistributedFunction(bound, self._asked)

    def __repr__(self) -> str:
        return f"<distributed function {getattr(self, '__qualname__', self._function)}>"

    def _source(self) -> str:
        """The function's text; "" if it is not known. Read once: it costs up to a millisecond."""
        if self._text is None:
            try:
                self._text = textwrap.dedent(inspect.getsource(self._function))
            except (OSError, TypeError):
                self._text = ""
        return self._text

    def _check_arguments(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raises ArgumentsError, a TypeError, if a call with them would."""
        try:
            if self._signature is None:
                self._signature = inspect.signature(self._function)
        except ValueError:
            return  # some builtins have none: the call itself will say
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentsError(f"{name}(): {error}") from None

    def _described(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        from .serialize.arguments import names_of_arguments
        from .tracking.facts import arguments_text

        names = names_of_arguments(self._function, args, dict(kwargs), self._signature)
        return arguments_text(names, [*args, *kwargs.values()])

    def distributed(self, *args: P.args, **kwargs: P.kwargs) -> list[R]:
        """Runs the function on every rank and returns their values, in rank order.

        Blocks until all ranks have ended. Arguments and the function travel by value (cloudpickle),
        large arrays through shared memory. An async function is run to its end in each rank.

        Raises:
            TypeError: the arguments do not fit the signature; nothing was started.
            UnpicklableError: something the function needs cannot travel; nothing was started.
            AcceleratorMismatchError: the GPU type is not attached; nothing was started.
            GpuError: the GPUs do not work, or are in use by others; nothing was started.
            RankError: a rank raised. Also an instance of what it raised.
            RankDiedError: a rank's process ended.
            DistributedTimeoutError: the call did not end within `timeout` seconds.
            NestedCallError: called in a rank.
            KeyboardInterrupt: the user pressed Stop.
        """
        __tracebackhide__ = True  # what IPython shows begins and ends in the user's code
        name = getattr(self._function, "__name__", "function")
        if in_rank():
            raise NestedCallError(
                f"{name}.distributed() was called inside a rank; call {name}(...) there, which "
                "runs it on that rank"
            )
        self._check_arguments(name, args, kwargs)
        ranks, here = accelerator.check(self._asked.gpus, self._asked.gpu_type)
        options = call.CallOptions(
            timeout=self._asked.timeout,
            mlflow=self._asked.mlflow,
            name=self._asked.name,
            env=self._asked.env,
            output=self._asked.output[0],
            output_ranks=self._asked.output[1],
            title=name,
            source=self._source,
            arguments=lambda: self._described(args, kwargs),
        )
        with (
            stops.in_one_line("stopped before it had begun"),
            serialize.dump((self._function, args, kwargs), what=name) as payload,
        ):
            if self._asked.session:
                from .sessions import session

                return session().run_function(
                    payload, options, self._asked.gpus, here, self._asked.wait
                )
            return clean_ranks.run_function(payload, options, ranks, here, self._asked.wait)


def _output(text: str | None) -> tuple[str, str]:
    """`output=` in the words of `--output`. ValueError for any other."""
    if text is None:
        return "merged", ""
    try:
        flags = _core.parse_cell_line(f"--output={shlex.quote(str(text))}")
    except ValueError as error:
        said = str(error).removeprefix("%%distributed: ").replace("--output", "output")
        raise OptionError(said) from None
    return flags["output"], flags["output_ranks"]


def _check_function(target: Any) -> None:
    if not callable(target) and not isinstance(target, (staticmethod, classmethod)):
        raise ArgumentsError(
            f"distributed() decorates a function, got {target!r}; options go by name, "
            "as in @distributed(gpus=8)"
        )


def _unknown(options: Mapping[str, Any]) -> ArgumentsError:
    named = []
    for name in sorted(options):
        near = difflib.get_close_matches(name, _NAMES, 1)
        named.append(f"{name} (did you mean {near[0]}?)" if near else name)
    return ArgumentsError(f"distributed() does not know {', '.join(named)}; it knows {_KNOWN}")


def _check_timeout(timeout: Any) -> None:
    if timeout is not None and (
        isinstance(timeout, bool)
        or not isinstance(timeout, (int, float))
        or not 0 < timeout <= sys.float_info.max
    ):
        raise OptionError(f"timeout takes seconds above 0, or None for no limit, got {timeout!r}")


def _check_environment(env: Any) -> None:
    if env is None:
        return
    if not isinstance(env, Mapping):
        raise ArgumentsError(f'env takes a dict, as in env={{"NCCL_DEBUG": "INFO"}}, got {env!r}')
    for name, value in env.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ArgumentsError(f"env takes a dict of strings to strings, got {name!r}: {value!r}")


@overload
def distributed(function: Callable[P, R]) -> DistributedFunction[P, R]: ...


@overload
def distributed(
    *,
    gpus: int | None = None,
    gpu_type: str | GPUType | None = None,
    timeout: float | None = call.DEFAULT_TIMEOUT,
    session: bool = False,
    mlflow: str | None = None,
    env: Mapping[str, str] | None = None,
    name: str | None = None,
    wait: float | None = None,
    output: str | None = None,
    num_accelerators: int | None = None,
    accelerator_type: str | None = None,
) -> Callable[[Callable[P, R]], DistributedFunction[P, R]]: ...


def distributed(
    function: Callable[..., Any] | None = None,
    *,
    gpus: int | None = None,
    gpu_type: str | GPUType | None = None,
    timeout: float | None = call.DEFAULT_TIMEOUT,
    session: bool = False,
    mlflow: str | None = None,
    env: Mapping[str, str] | None = None,
    name: str | None = None,
    wait: float | None = None,
    output: str | None = None,
    num_accelerators: int | None = None,
    accelerator_type: str | None = None,
    **unknown: Any,
) -> Any:
    """Makes a function run on every rank when called as `fn.distributed(...)`.

    `@distributed`, `@distributed()` and `@distributed(gpus=8, ...)` are the same decorator.

    Args:
        gpus: ranks, one per GPU; default: all GPUs of the machine, 8 CPU ranks where there is none.
        gpu_type: what must be attached, a `GPUType` or its name; default: what is there.
        timeout: seconds that a call may take, 3 hours by default; None for no limit.
        session: run in the ranks that `%%distributed` cells share, where their variables are;
            default: in clean ranks that know nothing of earlier calls.
        mlflow: "always", "lazy" or "off"; default: SERVERLESS_GPU_MLFLOW, else "always".
        env: environment variables that the ranks get besides the notebook's.
        name: of the MLflow run.
        wait: seconds to wait for GPUs that another notebook has; default: SERVERLESS_GPU_WAIT,
            else 30.
        output: what is shown of the ranks' output: "merged" (equal lines once; the default), "all"
            (each rank's own), some ranks, as in "0,3-5", or "none". All of it is in the logs.
        num_accelerators, accelerator_type: the newer spelling of `gpus` and `gpu_type`; the type
            may be written as "GPU_8xH100".

    Raises:
        TypeError: an unknown argument, a function that is none, a value of the wrong type.
        ValueError: a value out of its range.
    """
    __tracebackhide__ = True
    if unknown:
        raise _unknown(unknown)
    if function is not None:
        _check_function(function)
    _check_timeout(timeout)
    if wait is not None:
        gpu_claims.wait_limit(wait)
    if mlflow is not None:
        settings.mode(mlflow, os.environ)
    if name is not None and not isinstance(name, str):
        raise ArgumentsError(f"name takes the name of the MLflow run, a string, got {name!r}")
    _check_environment(env)
    if gpus is not None and num_accelerators is not None and gpus != num_accelerators:
        raise ArgumentsError(
            f"gpus={gpus} and num_accelerators={num_accelerators} contradict each other"
        )

    asked = _Asked(
        gpus if gpus is not None else num_accelerators,
        gpu_type if gpu_type is not None else accelerator_type,
        timeout,
        session,
        mlflow,
        dict(env or {}),
        name,
        wait,
        _output(output),
    )

    def decorate(target: Callable[..., Any]) -> DistributedFunction[..., Any]:
        _check_function(target)
        return DistributedFunction(target, asked)

    return decorate if function is None else decorate(function)
