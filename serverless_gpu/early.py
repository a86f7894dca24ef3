"""Which calls begin before everything is imported that ranks may need.

The first call of a notebook waits for the imports of the process that ranks are forked from. Half
of that time goes to MLflow and to what an optimizer or `torch.compile` needs. A call that names
none of it gets ranks as soon as torch is there. Were it to need it after all, each of its ranks
would have to import it by itself, which takes longer: so in doubt a call waits.
"""

from __future__ import annotations

import dis
import io
import pickle
import sys
import types
from collections.abc import Iterator
from typing import Any

from ._core import Imports
from .serialize import Payload, rebuild

#: Modules that ranks have from the first imports, or that cost next to nothing.
_THERE = {"__main__", "torch", "numpy", "cloudpickle", "serverless_gpu", "IPython"}
#: Names behind which the last of the imports lie, of torch but for the last line.
_LATER = {
    *("optim", "compile", "compiler", "_dynamo", "_inductor", "export", "profiler", "testing"),
    *("func", "fx", "onnx", "checkpoint", "DataParallel", "DistributedDataParallel"),
    *("fsdp", "fully_shard", "FullyShardedDataParallel", "DTensor", "distribute_tensor"),
    *("parallelize_module", "ZeroRedundancyOptimizer", "pipelining", "rpc"),
    *("import_module", "__import__"),
}


def imports_needed(payload: Payload) -> Imports:
    """What ranks must find imported for this request; all in doubt. Imports and runs nothing."""
    seen = _Seen()
    try:
        _Reader(payload.frames[0], seen).load()
    except Exception:  # it lies in shared memory, or is built by what was not expected
        return Imports.all
    if not _LATER.isdisjoint(seen.names):
        return Imports.all
    return Imports(max((int(_needed_for(module)) for module in seen.modules), default=0))


def _needed_for(module: str) -> Imports:
    top, *below = module.split(".")
    if top == "mlflow":
        return Imports.tracking
    there = top in _THERE or top in sys.stdlib_module_names
    if top == "torch" and below[:1] == ["distributed"]:
        there = below[1:] in ([], ["distributed_c10d"])
    return Imports.torch if there else Imports.all


class _Seen:
    """Modules that a request refers to or imports, and names that its code uses."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self.names: set[str] = set()

    def module(self, name: str) -> None:
        self.modules.add(name)
        self.names.update(name.split("."))

    def code(self, code: types.CodeType) -> None:
        self.names.update(code.co_names)
        for instruction in dis.get_instructions(code):
            if instruction.opname == "IMPORT_NAME":
                self.module(str(instruction.argval))


class _Anything:
    """Stands for each class, function and object of a request."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __call__(self, *args: Any, **kwargs: Any) -> _Anything:
        return self

    def __setstate__(self, state: Any) -> None: ...

    def __setitem__(self, key: Any, value: Any) -> None: ...

    def append(self, item: Any) -> None: ...

    def extend(self, items: Any) -> None: ...

    def add(self, item: Any) -> None: ...


class _Reader(pickle.Unpickler):
    """Reads a request without making anything of it but its code objects."""

    def __init__(self, stream: bytes, seen: _Seen) -> None:
        super().__init__(io.BytesIO(stream), buffers=_no_buffers())
        self._seen = seen

    def find_class(self, module: str, name: str) -> Any:
        if module == rebuild.__name__ and name == rebuild.code.__name__:
            return self._code
        if name == "subimport" and module.startswith("cloudpickle"):
            return self._module
        self._seen.module(module)
        self._seen.names.update(name.split("."))
        return _Anything

    def _code(self, _filename: str, _source: str | None, args: tuple[Any, ...]) -> types.CodeType:
        code = types.CodeType(*args)  # those within it have been read before
        self._seen.code(code)
        return code

    def _module(self, name: str) -> _Anything:
        self._seen.module(name)
        return _Anything()


def _no_buffers() -> Iterator[bytes]:
    while True:
        yield b""
