"""Objects that travel between the notebook and its ranks.

``dump`` takes an object apart into two small frames and at most one memfd, ``load`` puts it
together again in any other process of this machine. What the notebook defined travels by value,
arrays of 64 KB and more out of band. torch is never imported here, only used where it already is.
"""

from serverless_gpu.serialize.payload import Payload, dump, dumps_inline, load, loads_inline
from serverless_gpu.serialize.workers import install_forking_pickler

__all__ = [
    "Payload",
    "dump",
    "dumps_inline",
    "install_forking_pickler",
    "load",
    "loads_inline",
]
