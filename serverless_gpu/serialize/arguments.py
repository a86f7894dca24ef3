"""Calls, ``(function, args, kwargs, ...)``: the names and sizes of their arguments."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable
from typing import Any

from . import rebuild


def is_call(obj: object) -> bool:
    """Whether obj has the form of a call."""
    if type(obj) is not tuple or len(obj) < 3:
        return False
    function, args, kwargs = obj[:3]
    return callable(function) and type(args) is tuple and type(kwargs) is dict


def names_of_arguments(
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    signature: inspect.Signature | None = None,
) -> list[str]:
    """The parameters that take args, in order, then the names in kwargs. ``signature``: if known.

    Positional arguments that the signature does not tell are called ``args[i]``.
    """
    names = [f"args[{i}]" for i in range(len(args))]
    try:
        parameters = (signature or inspect.signature(function)).parameters.values()
    except (TypeError, ValueError):
        parameters = {}.values()
    for i, parameter in enumerate(list(parameters)[: len(args)]):
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            break
        names[i] = parameter.name
    return names + list(kwargs)


class Mark:
    """Pickled after an argument: the size of the stream at that moment is the argument's end."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


class MarkedCall:
    """A call in the form in which it is pickled: loads as the tuple it was made of."""

    __slots__ = ("_ends", "_parts", "_sent")

    def __init__(self, parts: tuple[Any, ...], sent: Callable[[], int]) -> None:
        self._parts = parts
        self._sent = sent  # bytes sent so far, to within 64 KB
        self._ends: list[int] = []

    def reduce(self) -> Any:
        function, args, kwargs, *rest = self._parts
        # The function comes last: what it shares with an argument counts as the argument's.
        values_and_marks: list[Any] = []
        for index, value in enumerate((*args, *kwargs.values(), function)):
            values_and_marks += (value, Mark(index))
        return rebuild.call, (len(args), tuple(kwargs), tuple(rest), *values_and_marks)

    def reduce_mark(self, mark: Mark) -> Any:
        self._ends.append(self._sent())
        return rebuild.mark, ()

    def largest(self) -> tuple[str, int] | None:
        """Name and bytes of the argument that made the dump grow most, if any did by 64 KB.

        What the function itself drags in is named by its global, if one of them tells its size.
        """
        function, args, kwargs = self._parts[:3]
        sizes = [end - begin for begin, end in zip([0, *self._ends], self._ends, strict=False)]
        if not sizes or max(sizes) == 0:
            return None
        index = sizes.index(max(sizes))
        if index < len(sizes) - 1:
            return names_of_arguments(function, args, kwargs)[index], sizes[index]
        return _captured_name(function), sizes[index]


def _captured_name(function: Any) -> str:
    name = getattr(function, "__name__", "the function")
    inner = inspect.unwrap(function)
    if not isinstance(inner, types.FunctionType):
        return name
    from .reducers import names_of

    values = {n: inner.__globals__.get(n) for n in names_of(inner.__code__)[0]}
    for variable, cell in zip(inner.__code__.co_freevars, inner.__closure__ or (), strict=True):
        try:
            values[variable] = cell.cell_contents
        except ValueError:
            continue
    sizes = {n: size for n, value in values.items() if (size := _size(value)) >= 64 * 1024}
    return f"{max(sizes, key=sizes.__getitem__)} (used by {name})" if sizes else name


def _size(value: Any) -> int:
    """Bytes of an array, tensor, frame or bytes, as far as it says so itself; else 0."""
    if isinstance(value, (bytes, bytearray, str)):
        return len(value)
    if isinstance(value, (type, types.ModuleType)):
        return 0
    try:
        if "torch" in sys.modules and hasattr(value, "parameters"):
            return sum(_size(parameter) for parameter in value.parameters())
        size = getattr(value, "nbytes", None)
        if size is None and hasattr(value, "memory_usage"):
            size = value.memory_usage().sum()  # pandas
        return int(size or 0)
    except Exception:  # a property of some unknown object: its size is not worth an error
        return 0
