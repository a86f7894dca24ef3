"""Distributed PyTorch from a notebook, on warm rank processes.

    from serverless_gpu import distributed

    @distributed(gpus=8)
    def train(lr): ...

    results = train.distributed(0.1)      # one value per rank, in rank order

In a notebook, `%%distributed` cells run on ranks that keep their variables; `%load_ext
serverless_gpu` brings them to kernels other than ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import runtime
from .errors import (
    AcceleratorMismatchError,
    DistributedTimeoutError,
    NestedCallError,
    RankDiedError,
    RankError,
    ResultError,
    UnpicklableError,
)
from .gpu_type import GPUType

if TYPE_CHECKING:
    from .accelerator import GpuError
    from .decorator import distributed
    from .gpu_claims import GpuBusyError
    from .sessions import session

__version__ = "0.1.0"

__all__ = [
    "AcceleratorMismatchError",
    "DistributedTimeoutError",
    "GPUType",
    "GpuBusyError",
    "GpuError",
    "NestedCallError",
    "RankDiedError",
    "RankError",
    "ResultError",
    "UnpicklableError",
    "distributed",
    "load_ipython_extension",
    "runtime",
    "session",
]


def _install_alias() -> None:
    """`databricks.air`, for a Python that has started without our .pth file."""
    try:
        import _serverless_gpu_air as alias  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ModuleNotFoundError:
        return  # not installed: this is the source tree on the path
    alias.install()


_install_alias()


def load_ipython_extension(ipython: Any) -> None:
    """`%load_ext serverless_gpu`: the magics, in any IPython."""
    from . import notebook

    notebook.start(ipython)


_LAZY = {
    "distributed": "decorator",
    "session": "sessions",
    "GpuError": "accelerator",
    "GpuBusyError": "gpu_claims",
}


def __getattr__(name: str) -> Any:
    # Loaded at the first use, so that `import serverless_gpu` stays light in every process.
    if name in _LAZY:
        import importlib

        value = getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
