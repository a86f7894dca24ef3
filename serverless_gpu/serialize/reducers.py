"""How objects are taken apart: cloudpickle's ways, and where ours differ.

- code keeps its file name (cloudpickle 3.1 renames it) and brings its source text along;
- a class that comes home stays what it was (see rebuild.fill_class);
- tensors and strided arrays give their bytes as buffers that travel out of band;
- open files are refused (cloudpickle sends a copy of the text);
- exceptions come back although their constructor wants other arguments than ``args``.
"""

from __future__ import annotations

import copyreg
import dis
import functools
import io
import os
import pickle
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from cloudpickle import cloudpickle  # type: ignore[import-untyped]

from . import rebuild, sources
from .tensors import Cuda, Handle, TensorReducer, Typed

LARGE = 64 * 1024  # bytes from which a buffer travels out of band
DISPATCH_TABLE: Any = cloudpickle.Pickler.dispatch_table

_GLOBAL_OPS = {"LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL"}
_CLASS_BODY_OPS = {"LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}  # there, globals look like this

# code -> names it may look up as globals, names that may be attributes; those of nested code too
_names_of_code: weakref.WeakKeyDictionary[types.CodeType, tuple[list[str], frozenset[str]]] = (
    weakref.WeakKeyDictionary()
)


def names_of(code: types.CodeType) -> tuple[list[str], frozenset[str]]:
    """Global names and attribute names of a code object and the code nested in it."""
    known = _names_of_code.get(code)
    if known is None:
        names: dict[str, None] = {}
        attributes = set(code.co_names)
        for instruction in dis.get_instructions(code):
            if instruction.opname in _GLOBAL_OPS or instruction.opname in _CLASS_BODY_OPS:
                names[instruction.argval] = None
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                inner_names, inner_attributes = names_of(constant)
                names.update(dict.fromkeys(inner_names))
                attributes |= inner_attributes
        known = (list(names), frozenset(attributes))
        _names_of_code[code] = known
    return known


def _loaded_submodules(package: str, names: frozenset[str]) -> Iterator[types.ModuleType]:
    """Submodules that code with these names may reach through the package, and that are loaded."""
    for name in names:
        path = f"{package}.{name}"
        module = sys.modules.get(path)
        if isinstance(module, types.ModuleType):
            yield module
            yield from _loaded_submodules(path, names)


def _made_by_hand(name: str | None) -> bool:
    """A module that exists only in this process: nothing could import it elsewhere."""
    if not name or name == "__main__" or "." in name or name in sys.builtin_module_names:
        return False
    module = sys.modules.get(name)
    return (
        isinstance(module, types.ModuleType)
        and getattr(module, "__spec__", None) is None
        and getattr(module, "__file__", None) is None
    )


class Reducers:
    """The reductions of one dump; ``reduce`` is a pickler's ``reducer_override``."""

    def __init__(self, cuda: Cuda = "cpu") -> None:
        self.globals_ref: dict[int, dict[str, Any]] = {}  # read by cloudpickle
        self._table = dict(_TABLE)
        self._tensor_class: type | None = None
        self.tensors: TensorReducer | None = None
        torch = sys.modules.get("torch")
        if torch is not None and hasattr(torch, "_tensor"):
            self.tensors = tensors = TensorReducer(torch, cuda)
            self._tensor_class = torch.Tensor
            self.add(Handle, tensors.reduce_handle)
            self.add(Typed, tensors.reduce_typed)
            self.add(torch.UntypedStorage, tensors.reduce_own_untyped)
            self.add(torch.storage.TypedStorage, tensors.reduce_own_typed)
        numpy = sys.modules.get("numpy")
        if numpy is not None and hasattr(numpy, "memmap"):
            self._table[numpy.ndarray] = Reducers._reduce_array
            self._table[numpy.memmap] = Reducers._reduce_memmap

    def add(self, kind: type, reduce: Callable[[Any], Any]) -> None:
        """Objects of exactly this type are reduced by this function."""
        self._table[kind] = lambda _, obj: reduce(obj)

    def reduce(self, obj: Any) -> Any:
        """Called by the pickler for every object but the simplest; NotImplemented is "as usual"."""
        kind = type(obj)
        reducer = self._table.get(kind)
        if reducer is not None:
            return reducer(self, obj)
        if issubclass(kind, type):
            return self.reduce_class(obj)
        if self._tensor_class in kind.__mro__:
            return self.tensors.reduce_tensor(obj)  # type: ignore[union-attr]
        if issubclass(kind, BaseException):
            return self._reduce_exception(obj)
        if obj is sys.stdout or obj is sys.stderr:
            return getattr, (sys, "stdout" if obj is sys.stdout else "stderr")
        return NotImplemented

    def reduce_function(self, function: types.FunctionType) -> Any:
        if function in _OF_PICKLES:
            return NotImplemented
        by_reference = cloudpickle._should_pickle_by_reference(function)
        if by_reference and not _made_by_hand(function.__module__):
            return NotImplemented
        args = cloudpickle.Pickler._function_getnewargs(self, function)
        return (
            cloudpickle._make_function,
            args,
            _function_state(function),
            None,
            None,
            cloudpickle._function_setstate,
        )

    def reduce_class(self, cls: type) -> Any:
        reduced = cloudpickle._class_reduce(cls)
        if reduced is NotImplemented and _made_by_hand(cls.__module__):
            reduced = cloudpickle._dynamic_class_reduce(cls)
        if reduced is NotImplemented or len(reduced) < 6:
            return reduced
        make, args, state, *_ = reduced
        slots = cls.__dict__.get("__slots__")
        written = isinstance(slots, (str, tuple, list, dict))  # not an iterator, used up by now
        if written and slots and make is cloudpickle._make_skeleton_class:
            # Left out by cloudpickle: its class has a dictionary instead, and what that pickles the
            # class with slots cannot take.
            args = (*args[:3], {**args[3], "__slots__": slots}, *args[4:])
        return rebuild.skeleton, (make, args[-2], args), state, None, None, rebuild.fill_class

    def reduce_code(self, code: types.CodeType) -> Any:
        _, args = cloudpickle._code_reduce(code)
        name = code.co_filename
        args = tuple(name if arg == "<dynamic-code>" else arg for arg in args)
        return rebuild.code, (name, sources.text_of(name), args)

    def reduce_module(self, module: types.ModuleType) -> Any:
        if _made_by_hand(module.__name__):
            state = {k: v for k, v in module.__dict__.items() if k != "__builtins__"}
            return cloudpickle.dynamic_subimport, (module.__name__, state)
        return cloudpickle._module_reduce(module)

    def _reduce_array(self, array: Any) -> Any:
        flags = array.flags
        contiguous = flags.c_contiguous or flags.f_contiguous
        if contiguous or array.nbytes < LARGE or array.dtype.hasobject:
            return NotImplemented
        return array.copy(order="C").__reduce_ex__(pickle.HIGHEST_PROTOCOL)

    def _reduce_memmap(self, array: Any) -> Any:
        # A view of a mapped file has the file's name too, but not its own place in it: only the
        # whole (whose base is the mmap itself) can be mapped again. A private one has changes.
        whole = type(array.base).__name__ == "mmap" and array.mode in ("r", "r+", "w+")
        if not whole or array.filename is None or not os.path.exists(array.filename):
            return NotImplemented
        order = "C" if array.flags.c_contiguous else "F"
        mode = "r" if array.mode == "r" else "r+"
        name = os.fspath(array.filename)
        return rebuild.memmap, (name, array.dtype, mode, array.offset, array.shape, order)

    def _reduce_file(self, file: io.TextIOWrapper) -> Any:
        if file is sys.stdout or file is sys.stderr:
            return getattr, (sys, "stdout" if file is sys.stdout else "stderr")
        raise pickle.PicklingError(f"cannot pickle the open file {file.name!r}")

    def _reduce_cached(self, cached: Any) -> Any:
        # Python looks it up by name, which finds nothing of the notebook elsewhere.
        if self.reduce_function(cached.__wrapped__) is NotImplemented:
            return NotImplemented
        return rebuild.cached, (cached.__wrapped__, cached.cache_parameters()), cached.__dict__

    def _reduce_weak_mapping(self, mapping: Any) -> Any:
        return type(mapping), (dict(mapping),)

    def _reduce_exception(self, error: BaseException) -> Any:
        kind: type[BaseException] = type(error)
        usual = (
            isinstance(kind.__init__, types.FunctionType)
            and kind.__reduce__ is BaseException.__reduce__
            and kind.__reduce_ex__ is object.__reduce_ex__
        )
        if not usual:
            return NotImplemented
        state = dict(error.__dict__)
        slots = copyreg._slotnames(kind)  # type: ignore[attr-defined]
        state.update((name, getattr(error, name)) for name in slots if hasattr(error, name))
        return rebuild.exception, (kind, error.args), state


def _function_state(function: types.FunctionType) -> tuple[dict[str, Any], dict[str, Any]]:
    """What cloudpickle's function of this kind returns, without its walk over all loaded modules
    for every module the function uses (0.1 ms each once torch is loaded)."""
    names, attributes = names_of(function.__code__)
    available = function.__globals__
    used = {name: available[name] for name in names if name in available}
    if isinstance(used.get("get_ipython"), types.MethodType):
        del used["get_ipython"]  # the notebook's shell stays here; a rank is a plain process
    reachable = list(used.values())
    for cell in function.__closure__ or ():
        reachable.append(cloudpickle._get_cell_contents(cell))
    submodules: list[types.ModuleType] = []
    for value in reachable:
        if type(value) is types.ModuleType and getattr(value, "__package__", None):
            submodules.extend(_loaded_submodules(value.__name__, attributes))
    slots = {
        "__name__": function.__name__,
        "__qualname__": function.__qualname__,
        "__annotations__": function.__annotations__,
        "__kwdefaults__": function.__kwdefaults__,
        "__defaults__": function.__defaults__,
        "__module__": function.__module__,
        "__doc__": function.__doc__,
        "__closure__": function.__closure__,
        "_cloudpickle_submodules": submodules,
        "__globals__": used,
    }
    return function.__dict__, slots


#: What pickles call, five times for one function: a third of its dump would be to find out that
#: these are found by their names.
_OF_PICKLES = frozenset(
    function
    for module in (rebuild, cloudpickle)
    for function in vars(module).values()
    if isinstance(function, types.FunctionType) and function.__module__ == module.__name__
)

_TABLE: dict[type, Callable[[Reducers, Any], Any]] = {
    types.FunctionType: Reducers.reduce_function,
    types.CodeType: Reducers.reduce_code,
    types.ModuleType: Reducers.reduce_module,
    io.TextIOWrapper: Reducers._reduce_file,
    functools._lru_cache_wrapper: Reducers._reduce_cached,
    weakref.WeakKeyDictionary: Reducers._reduce_weak_mapping,
    weakref.WeakValueDictionary: Reducers._reduce_weak_mapping,
}
