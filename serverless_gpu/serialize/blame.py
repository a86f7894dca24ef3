"""Why an object could not be pickled: which variable drags what in, and where the code uses it.

Works only after pickling has failed: a second, slow pickler (Python's own, in Python) goes the same
way and remembers it.
"""

from __future__ import annotations

import dis
import pickle
import time
import types
from collections.abc import Mapping
from typing import Any

from serverless_gpu.errors.types import UnpicklableError
from serverless_gpu.places import place

from . import arguments, hints
from .reducers import DISPATCH_TABLE, Reducers
from .tensors import Cuda, CudaTensorError

_SECONDS = 2.0  # for the search; without a path the error still says what happened
_EVERY = 256  # objects between looks at the clock
_CONTAINERS = (dict, list, tuple, set, frozenset)


def explain(
    obj: object,
    what: str,
    cuda: Cuda,
    error: Exception,
    variables: Mapping[str, Any] | None = None,
) -> UnpicklableError:
    """The error to raise instead of ``error``, in two lines.

    variables: a dict in ``obj`` whose values go by their keys.
    """
    thing = f"the {what}"
    if arguments.is_call(obj):
        thing = f"a call of {getattr(obj[0], '__name__', what)}"  # type: ignore[index]
    if isinstance(error, RecursionError) or isinstance(error.__cause__, RecursionError):
        return UnpicklableError(
            f"cannot send {thing}: it is nested too deeply to be pickled\n"
            "Send it in a flat form (a list of nodes, a state_dict), or build it in the function."
        )
    chain, reason = _search(obj, cuda)
    if reason is None:
        reason = error
    if not chain:
        return UnpicklableError(f"cannot send {thing}: {_one_line(reason)}\n{hints.GENERAL}")
    path = _Path(chain, what, variables)
    culprit = chain[-1]
    user = path.function_name
    first = f"cannot send {path.text} ({hints.type_name(culprit)})"
    if path.name_used is not None:
        first += f": {user} uses {path.name_used}{_where_used(path.function, path.name_used)}"
    elif path.text == what:
        first = f"cannot send the {what} ({hints.type_name(culprit)})"
    if not hints.is_known(culprit):
        first += f" ({_one_line(reason)})"
    if isinstance(reason, CudaTensorError):
        return UnpicklableError(f"{first}\nMove it to the CPU first: {path.text}.cpu()")
    return UnpicklableError(f"{first}\n{hints.advice(culprit, user, what)}")


class _OutOfTime(Exception):
    pass


class _Tracer(pickle._Pickler):
    """A pickler that writes nothing and whose ``chain`` leads from the root to the last object."""

    dispatch_table = DISPATCH_TABLE

    def __init__(self, reducers: Reducers) -> None:
        super().__init__(self, protocol=5, buffer_callback=lambda _: None)
        self.reducer_override = reducers.reduce  # type: ignore[method-assign]
        self.chain: list[Any] = []
        self._deadline = time.monotonic() + _SECONDS
        self._count = 0

    def write(self, data: Any) -> None:
        pass

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        self._count += 1
        if self._count % _EVERY == 0 and time.monotonic() > self._deadline:
            raise _OutOfTime
        self.chain.append(obj)
        super().save(obj, save_persistent_id)  # type: ignore[misc]
        self.chain.pop()  # not when it raised: the way to the culprit is what is wanted


def _search(obj: object, cuda: Cuda) -> tuple[list[Any], Exception | None]:
    tracer = _Tracer(Reducers(cuda))
    try:
        tracer.dump(obj)
    except (_OutOfTime, RecursionError):
        return [], None
    except Exception as error:
        return tracer.chain, error
    return [], None  # it went well this time: the object changed meanwhile


def _one_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]


class _Path:
    """A chain of objects in the words of the program: ``state['opts']['writer']._lock``."""

    def __init__(self, chain: list[Any], what: str, variables: Mapping[str, Any] | None) -> None:
        self.text = what
        self.function: types.FunctionType | None = None  # whose variable it is
        self.name_used: str | None = None  # the variable
        self._rest = list(chain)
        self._user = "the function" if variables is None else "the cell"
        if arguments.is_call(chain[0]):
            self._start_call()
        elif variables is not None:
            self._start_variables(variables)
        while len(self._rest) > 1:
            self._step()

    @property
    def function_name(self) -> str:
        return self.function.__name__ if self.function else self._user

    def _start_call(self) -> None:
        function, args, kwargs = self._rest[0][:3]
        if len(self._rest) == 1 or self._rest[1] is function:
            self._rest.pop(0)
            self.text = getattr(function, "__name__", "the function")
            return
        names = arguments.names_of_arguments(function, args, kwargs)
        values = [*args, *kwargs.values()]
        if len(self._rest) > 2 and (self._rest[1] is args or self._rest[1] is kwargs):
            del self._rest[:2]
            index = next((i for i, value in enumerate(values) if value is self._rest[0]), None)
            self.text = f"argument {names[index]}" if index is not None else "an argument"

    def _start_variables(self, variables: Mapping[str, Any]) -> None:
        for depth, link in enumerate(self._rest[:-1]):
            if link is variables:
                value = self._rest[depth + 1]
                self.text = next((k for k, v in variables.items() if v is value), self.text)
                del self._rest[: depth + 1]
                return

    def _step(self) -> None:
        owner, child = self._rest[:2]
        if isinstance(owner, types.FunctionType):
            self._through_function(owner)
        elif isinstance(owner, type):
            self.text = owner.__qualname__
            self._through_state()
        elif isinstance(owner, _CONTAINERS) and type(owner) in _CONTAINERS:
            self.text += _subscript(owner, child)
            self._rest.pop(0)
        else:
            self._through_state()

    def _through_function(self, function: types.FunctionType) -> None:
        """From a function over what its reduction is made of to the value of a variable."""
        self._rest.pop(0)
        inner = self._rest[:]
        for depth, link in enumerate(inner[:-1]):
            name = _variable(function, link, inner[depth + 1])
            if name is not None:
                self.function, self.name_used, self.text = function, name, name
                is_cell = isinstance(link, types.CellType)  # its value lies in a tuple of its own
                self._rest = inner[depth + (2 if is_cell else 1) :]
                return
            if depth >= 4:
                break
        self.text = function.__name__

    def _through_state(self) -> None:
        """From an object (or class) over its reduction to the value of an attribute."""
        owner = self._rest.pop(0)
        while len(self._rest) > 1 and type(self._rest[0]) is tuple:
            self._rest.pop(0)  # arguments of the constructor, or the pair (dict, slots)
        if len(self._rest) > 1 and type(self._rest[0]) is dict:
            state = self._rest.pop(0)
            name = next((k for k, v in state.items() if v is self._rest[0]), None)
            if name is not None:
                self.text += f".{name}"
        elif isinstance(owner, (dict, list)):
            self.text += _subscript(owner, self._rest[0])


def _variable(function: types.FunctionType, link: Any, value: Any) -> str | None:
    """The name by which the function reaches value, if link is what holds its variables."""
    if isinstance(link, types.CellType):
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            if cell is link:
                return name
    if type(link) is dict and "_cloudpickle_submodules" not in link:
        return next((k for k, v in link.items() if v is value and isinstance(k, str)), None)
    defaults = function.__defaults__
    if defaults is not None and link is defaults:
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        named = zip(names[-len(defaults) :], defaults, strict=True)
        return next((k for k, v in named if v is value), None)
    return None


def _subscript(owner: Any, child: Any) -> str:
    if isinstance(owner, dict):
        key = next((k for k, v in owner.items() if v is child), None)
        return f"[{key!r}]" if key is not None else ""
    if isinstance(owner, (list, tuple)):
        index = next((i for i, v in enumerate(owner) if v is child), None)
        return f"[{index}]" if index is not None else ""
    return ""


def _where_used(function: types.FunctionType | None, name: str) -> str:
    """`` at Cell In[3], line 4``, where the function's code reads the variable; or nothing."""
    codes = [function.__code__] if function else []
    for code in codes:
        line = code.co_firstlineno
        for instruction in dis.get_instructions(code):
            positions = getattr(instruction, "positions", None)  # from Python 3.11 on
            line = (positions.lineno if positions else instruction.starts_line) or line
            if instruction.opname.startswith("LOAD") and instruction.argval == name:
                return f" at {place(code.co_filename, line)}"
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return ""
