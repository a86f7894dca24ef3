"""multiprocessing's pickler, taught to send what the notebook defined.

DataLoader workers started by spawn or forkserver get their dataset through it, and queues of all
start methods their items. Python's own looks such classes up in ``__main__`` of the other process,
where they are not.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from multiprocessing.reduction import ForkingPickler
from typing import Any

from cloudpickle import cloudpickle  # type: ignore[import-untyped]

from . import rebuild
from .reducers import DISPATCH_TABLE, Reducers

# What functions and classes by value are made of and Python's pickler knows nothing of.
_PARTS: tuple[type, ...] = (
    types.CellType,
    types.GetSetDescriptorType,
    types.MappingProxyType,
    classmethod,
    staticmethod,
    property,
    typing.TypeVar,
    dataclasses._FIELD_BASE,  # type: ignore[attr-defined]
)


def install_forking_pickler() -> None:
    """Lets this process's multiprocessing send functions and classes of ``__main__`` by value.

    All else is pickled as before. Workers that receive such a function or class are taught the
    same. A second call changes nothing. Call it in ranks only: it changes all of multiprocessing.
    """
    ForkingPickler.reducer_override = _reducer_override  # type: ignore[method-assign]


def _reducer_override(self: Any, obj: Any) -> Any:
    kind = type(obj)
    if kind is types.FunctionType:
        return _taught(_reducers(self).reduce_function(obj))
    if issubclass(kind, type):
        return _taught(_reducers(self).reduce_class(obj))
    if kind is types.CodeType:
        return _reducers(self).reduce_code(obj)
    if kind is types.ModuleType:
        return _reducers(self).reduce_module(obj)
    if kind in _PARTS:
        return DISPATCH_TABLE[kind](obj)
    return NotImplemented


def _reducers(pickler: Any) -> Reducers:
    """One per pickler: functions of one pickle share their globals through it."""
    try:
        return pickler._sgpu_reducers  # type: ignore[no-any-return]
    except AttributeError:
        pickler._sgpu_reducers = reducers = Reducers()
        return reducers


def _taught(reduced: Any) -> Any:
    """The reduction by value in the form for workers; others unchanged."""
    if not isinstance(reduced, tuple):
        return reduced
    make, args, *rest = reduced
    if make is rebuild.skeleton:
        state, listitems, dictitems, _ = rest
        rest = [state, listitems, dictitems, rebuild.fill_new_class]
    elif make is not cloudpickle._make_function:
        return reduced
    return (rebuild.in_worker, (make, *args), *rest)
