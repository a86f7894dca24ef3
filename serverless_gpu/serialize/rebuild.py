"""What pickles call when they are loaded. Names here are part of what travels: keep them."""

from __future__ import annotations

import functools
import importlib
import types
from collections.abc import Callable
from typing import Any

from cloudpickle import cloudpickle  # type: ignore[import-untyped]

from . import sources

_received: set[str] = set()  # ids of the classes that were made here out of a pickle
_filled: set[str] = set()  # those of them that have their attributes


def code(filename: str, source: str | None, args: tuple[Any, ...]) -> types.CodeType:
    """A code object; its source is entered into ``linecache``."""
    if source is not None:
        sources.enter(filename, source)
    return types.CodeType(*args)


def skeleton(make: Callable[..., type], tracker_id: str, args: tuple[Any, ...]) -> type:
    """The class of this id if the process has it, else a new one without attributes."""
    known = cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID.get(tracker_id)
    if known is not None:
        return known  # type: ignore[no-any-return]
    _received.add(tracker_id)
    return make(*args)


def fill_class(cls: type, state: tuple[dict[str, Any], Any]) -> None:
    """Sets the attributes of a received class.

    A class that was defined in this process keeps its own: its methods look names up in the
    notebook, those in the pickle in a frozen copy of it.
    """
    tracker_id = cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS.get(cls)
    if tracker_id in _received:
        cloudpickle._class_setstate(cls, state)
        _filled.add(tracker_id)


def fill_new_class(cls: type, state: tuple[dict[str, Any], Any]) -> None:
    """As fill_class, unless the class is known here already.

    Between a rank and its workers: what a worker sends back has the methods the rank has.
    """
    if cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS.get(cls) not in _filled:
        fill_class(cls, state)


def exception(cls: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    """An exception with these ``args``; its constructor, which may want others, is not called."""
    error = cls.__new__(cls, *args)
    error.args = args
    return error


def call(
    count: int, names: tuple[str, ...], rest: tuple[Any, ...], *values_and_marks: Any
) -> tuple[Any, ...]:
    """``(function, args, kwargs, *rest)`` out of the values, each followed by a mark."""
    *values, function = values_and_marks[::2]
    return function, tuple(values[:count]), dict(zip(names, values[count:], strict=True)), *rest


def mark() -> None:
    """Stands in the stream where one argument ends."""


def memmap(
    filename: str, dtype: Any, mode: str, offset: int, shape: tuple[int, ...], order: str
) -> Any:
    """The same file mapped again."""
    import numpy

    return numpy.memmap(
        filename,
        dtype=dtype,
        mode=mode,  # type: ignore[call-overload]
        offset=offset,
        shape=shape,
        order=order,
    )


def storage(buffer: Any) -> Any:
    """A torch storage: over a buffer that lies out of band (a view of the mapping), else a copy."""
    torch: Any = importlib.import_module("torch")
    if len(buffer) == 0:
        return torch.UntypedStorage(0)
    flat = torch.frombuffer(buffer, dtype=torch.uint8)
    if not isinstance(buffer, memoryview):
        flat = flat.clone()  # torch's own memory: aligned, and it can be resized
    return flat.untyped_storage()


def typed_storage(untyped: Any, dtype: Any) -> Any:
    """What torch's functions that rebuild a tensor expect for most dtypes."""
    torch: Any = importlib.import_module("torch")
    return torch.storage.TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True)


def cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    """What ``functools.lru_cache`` makes of the function; its cache is empty."""
    return functools.lru_cache(**parameters)(function)


def same(value: Any) -> Any:
    """The value itself."""
    return value


def in_worker(make: Callable[..., Any], *args: Any) -> Any:
    """``make(*args)`` in a worker process, whose answers may need what the question needed."""
    from .workers import install_forking_pickler

    install_forking_pickler()
    return make(*args)
