"""Which calls begin before everything is imported that ranks may need.

The first call of a notebook waits for the imports of the process that ranks are forked from. Half
of that time goes to MLflow and to what an optimizer or `torch.compile` needs. A call that names
none of it gets ranks as soon as torch is there. Were it to need it after all, each of its ranks
would have to import it by itself, which takes longer: so in doubt a call waits.
"""

from __future__ import annotations

import importlib.util
import pickletools
import sys

from ._core import Imports
from .serialize import Payload

#: What ranks have from the first imports, or what costs next to nothing.
_THERE = {"__main__", "torch", "numpy", "cloudpickle", "serverless_gpu", "IPython"}
#: Names behind which the last of the imports lie, of torch but for the last line.
_LATER = {
    *("optim", "compile", "compiler", "_dynamo", "_inductor", "export", "profiler", "testing"),
    *("func", "fx", "onnx", "checkpoint", "DataParallel", "DistributedDataParallel"),
    *("fsdp", "fully_shard", "FullyShardedDataParallel", "DTensor", "distribute_tensor"),
    *("parallelize_module", "ZeroRedundancyOptimizer", "pipelining", "rpc"),
    *("import_module", "__import__"),
}
#: Bytes of a request that are looked through at most.
_LOOKED_THROUGH = 32 * 1024


def imports_needed(payload: Payload) -> Imports:
    """What ranks must find imported for this request; all in doubt."""
    stream = payload.frames[0]
    if not 0 < len(stream) <= _LOOKED_THROUGH:
        return Imports.all
    words = {word for _, word, _ in pickletools.genops(stream) if isinstance(word, str)}
    return Imports(max((int(_needed_for(word)) for word in words), default=0))


def _needed_for(word: str) -> Imports:
    parts = word.split(".")
    if not all(part.isidentifier() for part in parts) or parts[1:] == ["py"]:
        return Imports.torch  # a text or a file's name
    top, beside = parts[0], parts[1:]
    if top == "mlflow":
        return Imports.tracking
    if not _LATER.isdisjoint(parts):
        return Imports.all
    if top == "torch" and beside[:1] == ["distributed"]:
        there = beside[1:] in ([], ["distributed_c10d"])
    else:
        there = top in _THERE or top in sys.stdlib_module_names or not _can_be_imported(top)
    return Imports.torch if there else Imports.all


def _can_be_imported(top: str) -> bool:
    try:
        return top in sys.modules or importlib.util.find_spec(top) is not None
    except (ImportError, ValueError, AttributeError):  # a finder that does not like the question
        return True
