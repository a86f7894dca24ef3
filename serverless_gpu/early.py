"""Which calls begin before everything is imported that ranks may need.

The first call of a notebook waits for the imports of the process that ranks are forked from. Half
of that time goes to what an optimizer, `torch.compile` or MLflow needs. A call that names none of
it gets ranks as soon as torch is there. Were it to need it after all, each of its ranks would have
to import it by itself, which takes longer: so in doubt a call waits.
"""

from __future__ import annotations

import importlib.util
import pickletools
import sys

from .serialize import Payload

#: What ranks have from the first imports, or what costs next to nothing.
_LIGHT = {"__main__", "torch", "numpy", "cloudpickle", "serverless_gpu", "IPython"}
#: Names behind which the later imports lie, of torch but for the last line.
_LATER = {
    *("optim", "compile", "compiler", "_dynamo", "_inductor", "export", "profiler", "testing"),
    *("func", "fx", "onnx", "checkpoint", "DataParallel", "DistributedDataParallel"),
    *("fsdp", "fully_shard", "FullyShardedDataParallel", "DTensor", "distribute_tensor"),
    *("parallelize_module", "ZeroRedundancyOptimizer", "pipelining", "rpc"),
    *("import_module", "__import__"),
}
#: Bytes of a request that are looked through at most.
_LOOKED_THROUGH = 32 * 1024


def may_begin_early(payload: Payload) -> bool:
    """Whether this request names nothing that the first imports lack. False in doubt."""
    stream = payload.frames[0]
    if not 0 < len(stream) <= _LOOKED_THROUGH:
        return False
    words = {word for _, word, _ in pickletools.genops(stream) if isinstance(word, str)}
    return all(map(_is_light, words))


def _is_light(word: str) -> bool:
    parts = word.split(".")
    if not all(part.isidentifier() for part in parts) or parts[1:] == ["py"]:
        return True  # a text or a file's name
    if not _LATER.isdisjoint(parts):
        return False
    if parts[:2] == ["torch", "distributed"]:
        return parts[2:] in ([], ["distributed_c10d"])
    top = parts[0]
    return top in _LIGHT or top in sys.stdlib_module_names or not _can_be_imported(top)


def _can_be_imported(top: str) -> bool:
    try:
        return top in sys.modules or importlib.util.find_spec(top) is not None
    except (ImportError, ValueError, AttributeError):  # a finder that does not like the question
        return True
