"""The warm parent of ranks: imports everything once, then only forks.

It stays single-threaded and holds nothing that a rank should not inherit. Ranks are forked by a
helper that exits at once, so they become children of the guard (the nearest subreaper), which reaps
them in C++ whatever happens to this process.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import json
import os
import resource
import socket
import sys
import time
from typing import Any

from .. import _core

CONTROL_FD = 4
REGISTER_FD = 5
MAX_PACKET = 192 * 1024
MAX_FDS = 240
FDS_PER_CHILD = 3

#: What ranks nearly always need. `torch._dynamo` and the schedulers are what a rank's first
#: optimizer would import: 800 modules, a second, 110 MB in each rank.
PRELOAD = (
    "numpy",
    "torch",
    "torch.distributed",
    "torch.utils.data",
    "torch._dynamo",
    "torch.optim.lr_scheduler",
    "torch.nn.parallel",
    "cloudpickle",
    "IPython.core.interactiveshell",
    "IPython.display",
    "asyncio",
    "serverless_gpu.rank.process",
    "serverless_gpu.rank.functions",
    "serverless_gpu.rank.cells",
)
#: Preloaded unless SERVERLESS_GPU_MLFLOW=off.
PRELOAD_TRACKING = ("serverless_gpu.tracking.rank",)

#: Read by libraries when they are loaded, to size pools of threads that a fork would lose.
THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")


def warm_up() -> dict[str, float]:
    """Imports everything. Returns seconds per import; a package that is not there is left out."""
    names: tuple[str, ...] = PRELOAD
    if os.environ.get("SERVERLESS_GPU_MLFLOW", "always").strip().lower() != "off":
        names += PRELOAD_TRACKING
    before = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # store errors would print C++ stacks
    times = {}
    gc.disable()  # imports make little garbage, and looking for it takes a fifth of their time
    _notice_cuda("what Python runs at its start (a .pth file or sitecustomize)")
    for name in names:
        start = time.perf_counter()
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if name.startswith("serverless_gpu.") or error.name != name.split(".")[0]:
                raise
            continue
        times[name] = round(time.perf_counter() - start, 3)
        _notice_cuda(f"importing {name}")
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value
    from . import cells, exits, process_group, startup

    process_group.arrange()
    startup.arrange()
    cells.prepare()
    if "serverless_gpu.tracking.rank" in times:
        from ..tracking import rank as tracking

        tracking.preload()
    exits.leave_inherited_here()
    gc.collect()
    gc.freeze()  # or the first collection in each rank would copy every object's page
    gc.enable()
    return times


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


def thread_names() -> list[str]:
    names = []
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/comm") as f:
            names.append(f.read().strip())
    return names


def fork_children(
    order: dict[str, Any],
    fds: list[int],
    control: socket.socket,
    register: _core.RankRegister | None,
) -> None:
    """`order`: "children", and "processes", the notebook's limit of them."""
    from . import environment, process

    environment.follow_process_limit(order["processes"])
    children = order["children"]
    unfit = why_not_fork()
    if unfit:
        nobody = {str(child["id"]): -1 for child in children}
        control.send(json.dumps({"forked": nobody, "error": unfit}).encode())
        return
    guard = os.getppid()
    try:
        helper = os.fork()
    except OSError as error:
        refused = dict.fromkeys((str(child["id"]) for child in children), -1)
        control.send(json.dumps({"forked": refused, "error": why_no_fork(error)}).encode())
        return
    if helper:
        os.waitpid(helper, 0)
        return
    pids: dict[str, int] = {}
    answer: dict[str, Any] = {"forked": pids}
    for i, child in enumerate(children):
        mine = fds[i * FDS_PER_CHILD : (i + 1) * FDS_PER_CHILD]
        try:
            if len(mine) < FDS_PER_CHILD:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            pid = os.fork()
        except OSError as error:
            pid = -1
            answer["error"] = why_no_fork(error)
        if pid == 0:
            control.detach()
            process.main(child, mine, guard, register)
        pids[str(child["id"])] = pid
    control.send(json.dumps(answer).encode())
    os._exit(0)


def why_no_fork(error: OSError) -> str:
    """For the user: the limit that a rank could not be forked for, and what to do."""
    if error.errno == errno.EMFILE:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return f"a rank needs file descriptors (ulimit -n is {most}): raise it, or use fewer ranks"
    most = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    limit = "" if most == resource.RLIM_INFINITY else f" is {most}"
    return (
        f"no process can be made for a rank ({error.strerror}; ulimit -u{limit}, see also pids.max "
        "of the cgroup): raise that, or use fewer ranks"
    )


def open_as_many_files_as_allowed() -> None:
    """Here and in every rank: DataLoader workers hand tensors over as descriptors, and 1024 of
    them, the usual soft limit, are soon used up."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def register_of_ranks() -> _core.RankRegister | None:
    """Without it ranks share the guard's session, and the processor time that a session gets."""
    try:
        return _core.RankRegister(REGISTER_FD)
    except OSError as error:
        print(f"ranks have no sessions of their own: {error}", file=sys.stderr)
        return None


def main() -> None:
    register = register_of_ranks()  # before imports, which may do anything to a descriptor
    open_as_many_files_as_allowed()
    control = socket.socket(fileno=CONTROL_FD)
    os.set_inheritable(CONTROL_FD, False)
    times = warm_up()
    ready = {"imports": times, "threads": thread_names()}
    control.send(json.dumps({"ready": ready}).encode())
    while True:
        data, fds, _, _ = socket.recv_fds(control, MAX_PACKET, MAX_FDS, socket.MSG_CMSG_CLOEXEC)
        if not data:
            os._exit(0)
        fork_children(json.loads(data), list(fds), control, register)
        for fd in fds:
            os.close(fd)


if __name__ == "__main__":
    sys.modules["serverless_gpu.rank.fork_server"] = sys.modules["__main__"]
    main()
