"""The warm parent of ranks: imports everything once, then only forks.

It stays single-threaded and holds nothing that a rank should not inherit. Ranks are forked by a
helper that exits at once, so they become children of the guard (the nearest subreaper), which reaps
them in C++ whatever happens to this process.
"""

from __future__ import annotations

import array
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
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

from .. import _core

CONTROL_FD = 4
REGISTER_FD = 5
MAX_PACKET = 192 * 1024
MAX_FDS = 240
FDS_PER_CHILD = 3

#: Without these no rank can run.
PRELOAD_FIRST = (
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
#: What ranks nearly always need: what their first optimizer would import, 800 modules, a second,
#: 110 MB in each rank. In pieces, since early ranks are forked between two of them.
PRELOAD = (
    "sympy",
    "torch.fx.experimental.symbolic_shapes",
    "torch._dynamo",
    "torch.optim.lr_scheduler",
    "torch.nn.parallel",
)
#: Of the first, unless SERVERLESS_GPU_MLFLOW=off. It imports MLflow only when it is told to.
TRACKING = "serverless_gpu.tracking.rank"

#: Read by libraries when they are loaded, to size pools of threads that a fork would lose.
THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")


def import_first() -> dict[str, float]:
    """Imports what no rank can run without. Returns seconds per import."""
    _notice_cuda("what Python runs at its start (a .pth file or sitecustomize)")
    tracking = os.environ.get("SERVERLESS_GPU_MLFLOW", "always").strip().lower() != "off"
    times = _import((*PRELOAD_FIRST, *([TRACKING] if tracking else [])), lambda: None)
    from . import cells, exits, process_group, startup

    process_group.arrange()
    startup.arrange()
    cells.prepare()
    exits.leave_inherited_here()
    gc.freeze()  # or the first collection in each rank would copy every object's page
    return times


def import_rest(between: Callable[[], None]) -> dict[str, float]:
    """Imports the rest of what ranks may need, and calls `between` after each import. Returns
    seconds per import; a package that is not there is left out."""
    times = _import(PRELOAD, between)
    if TRACKING in sys.modules:
        from ..tracking import rank as tracking

        start = time.perf_counter()
        with _importing():
            tracking.preload()
        times["mlflow"] = round(time.perf_counter() - start, 3)
        _notice_cuda("importing mlflow")
    from . import exits

    exits.leave_inherited_here()
    gc.collect()
    gc.freeze()
    return times


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


Packet = tuple[dict[str, Any], list[int]]  # an order and its descriptors


class Orders:
    """What the pool asks for. Until everything is imported only early ranks are forked."""

    def __init__(self, control: socket.socket, register: _core.RankRegister | None) -> None:
        self._control = control
        self._register = register
        self._for_later: list[Packet] = []

    def carry_out_early(self) -> None:
        """Those of early ranks that have come. Does not wait."""
        with contextlib.suppress(BlockingIOError):
            while True:
                order, fds = self._receive(socket.MSG_DONTWAIT)
                if order["early"]:
                    self._carry_out(order, fds)
                else:
                    self._for_later.append((order, fds))

    def carry_out_all(self) -> NoReturn:
        """For ever."""
        for order, fds in self._for_later:
            self._carry_out(order, fds)
        while True:
            self._carry_out(*self._receive())

    def _receive(self, flags: int = 0) -> Packet:
        """An order and its descriptors. Ends the process if the pool has gone."""
        fds = array.array("i")
        room = socket.CMSG_SPACE(MAX_FDS * fds.itemsize)
        # Not by socket.recv_fds: it does not pass its flags on.
        data, beside, _, _ = self._control.recvmsg(
            MAX_PACKET, room, flags | socket.MSG_CMSG_CLOEXEC
        )
        if not data:
            os._exit(0)
        for level, kind, content in beside:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
        return json.loads(data), list(fds)

    def _carry_out(self, order: dict[str, Any], fds: list[int]) -> None:
        fork_children(order, fds, self._control, self._register)
        for fd in fds:
            os.close(fd)


def main() -> None:
    register = register_of_ranks()  # before imports, which may do anything to a descriptor
    open_as_many_files_as_allowed()
    control = socket.socket(fileno=CONTROL_FD)
    os.set_inheritable(CONTROL_FD, False)

    def say(news: dict[str, Any]) -> None:
        control.send(json.dumps(news).encode())

    orders = Orders(control, register)
    times = import_first()
    say({"early": {"imports": times}})
    orders.carry_out_early()
    times |= import_rest(orders.carry_out_early)
    say({"ready": {"imports": times, "threads": thread_names()}})
    orders.carry_out_all()


if __name__ == "__main__":
    sys.modules["serverless_gpu.rank.fork_server"] = sys.modules["__main__"]
    main()
