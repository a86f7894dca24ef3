"""What the fork server imports, so that ranks find it there.

In three stages, each with what the one before lacks: a child waits only for those that it needs
(`Imports` in runtime/pool_types.h).
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import time
from collections.abc import Callable, Iterable, Iterator

from .. import _core

#: What no rank can do without.
TORCH = (
    "numpy",
    "torch",
    "torch.distributed",
    "torch.utils.data",
    "cloudpickle",
    "IPython.core.interactiveshell",
    "IPython.display",
    "asyncio",
    "serverless_gpu.rank.process",
    "serverless_gpu.rank.functions",
    "serverless_gpu.rank.cells",
)
#: Unless SERVERLESS_GPU_MLFLOW=off. It has MLflow imported.
TRACKING = "serverless_gpu.tracking.rank"
#: What a rank's first optimizer would import: 800 modules, a second, 110 MB in each rank. In
#: pieces, since children are forked between two of them.
REST = (
    "sympy",
    "torch.fx.experimental.symbolic_shapes",
    "torch.distributed.tensor",
    "torch.distributed.fsdp",
    "torch._dynamo",
    "torch.optim.lr_scheduler",
    "torch.nn.parallel",
)

#: Read by libraries when they are loaded, to size pools of threads that a fork would lose.
THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")


def import_stage(stage: _core.Imports, between: Callable[[], None]) -> dict[str, float]:
    """Imports a stage, after those before it, and calls `between` after each import. Returns
    seconds per import; a package that is not there is left out."""
    from . import exits

    if stage == _core.Imports.torch:
        _notice_cuda("what Python runs at its start (a .pth file or sitecustomize)")
        times = _import(TORCH, between)
        _arrange()
    elif stage == _core.Imports.tracking:
        times = _import_tracking()
    else:
        times = _import(REST, between)
    exits.leave_inherited_here()
    if stage == _core.Imports.all:
        gc.collect()
    gc.freeze()  # or the first collection in each rank would copy every object's page
    return times


def _arrange() -> None:
    from . import cells, process_group, startup

    process_group.arrange()
    startup.arrange()
    cells.prepare()


def _import_tracking() -> dict[str, float]:
    if os.environ.get("SERVERLESS_GPU_MLFLOW", "always").strip().lower() == "off":
        return {}
    start = time.perf_counter()
    with _importing():
        importlib.import_module(TRACKING).preload()
    _notice_cuda("importing mlflow")
    return {"mlflow": round(time.perf_counter() - start, 3)}


def _import(names: Iterable[str], between: Callable[[], None]) -> dict[str, float]:
    times = {}
    for name in names:
        start = time.perf_counter()
        try:
            with _importing():
                importlib.import_module(name)
        except ModuleNotFoundError as error:
            if name.startswith("serverless_gpu.") or error.name != name.split(".")[0]:
                raise
            continue
        times[name] = round(time.perf_counter() - start, 3)
        _notice_cuda(f"importing {name}")
        between()
    return times


@contextlib.contextmanager
def _importing() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # store errors would print C++ stacks
    gc.disable()  # imports make little garbage, and looking for it takes a fifth of their time
    try:
        yield
    finally:
        gc.enable()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


#: What has initialised CUDA in this process, in words; "" if nothing has.
_cuda_by = ""


def _notice_cuda(doing: str) -> None:
    global _cuda_by
    if not _cuda_by and _core.cuda_in_use():
        _cuda_by = doing


def why_not_fork() -> str:
    """Why a child would be of no use; "" if it would be."""
    _notice_cuda("something after the imports")
    if not _cuda_by:
        return ""
    return (
        f"{_cuda_by} has initialised CUDA in the process that ranks are forked from, and a forked "
        "process cannot use it then; keep it from touching the GPU when it is imported"
    )
