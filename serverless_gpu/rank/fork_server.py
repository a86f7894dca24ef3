"""The warm parent of ranks: imports everything once, then only forks.

It stays single-threaded and holds nothing that a rank should not inherit. Ranks are forked by a
helper that exits at once, so they become children of the guard (the nearest subreaper), which reaps
them in C++ whatever happens to this process.
"""

from __future__ import annotations

import array
import contextlib
import errno
import json
import os
import resource
import socket
import sys
from typing import Any, NoReturn

from .. import _core
from . import preload

CONTROL_FD = 4
REGISTER_FD = 5
MAX_PACKET = 192 * 1024
MAX_FDS = 240
FDS_PER_CHILD = 3


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
    unfit = preload.why_not_fork()
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


Order = tuple[dict[str, Any], list[int]]  # what is asked for, and its descriptors


class Orders:
    """What the pool asks for: each is carried out once what its children need is imported."""

    def __init__(self, control: socket.socket, register: _core.RankRegister | None) -> None:
        self._control = control
        self._register = register
        self._reached = -1  # the last stage of imports that is done
        self._waiting: list[Order] = []

    def reached(self, stage: int) -> None:
        self._reached = stage
        waiting, self._waiting = self._waiting, []
        for order in waiting:
            self._take(*order)

    def take_those_there(self) -> None:
        """Does not wait."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self._take(*self._receive(socket.MSG_DONTWAIT))

    def take_for_ever(self) -> NoReturn:
        while True:
            self._take(*self._receive())

    def _take(self, order: dict[str, Any], fds: list[int]) -> None:
        if order["imports"] > self._reached:
            self._waiting.append((order, fds))
            return
        fork_children(order, fds, self._control, self._register)
        for fd in fds:
            os.close(fd)

    def _receive(self, flags: int = 0) -> Order:
        """Ends the process if the pool has gone."""
        fds = array.array("i")
        room = socket.CMSG_SPACE(MAX_FDS * fds.itemsize)
        # Not by socket.recv_fds: it does not pass its flags on.
        flags |= socket.MSG_CMSG_CLOEXEC
        data, beside, _, _ = self._control.recvmsg(MAX_PACKET, room, flags)
        if not data:
            os._exit(0)
        for level, kind, content in beside:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
        return json.loads(data), list(fds)


def main() -> None:
    register = register_of_ranks()  # before imports, which may do anything to a descriptor
    open_as_many_files_as_allowed()
    control = socket.socket(fileno=CONTROL_FD)
    os.set_inheritable(CONTROL_FD, False)
    orders = Orders(control, register)
    times: dict[str, float] = {}
    for stage in map(int, (_core.Imports.torch, _core.Imports.tracking, _core.Imports.all)):
        times |= preload.import_stage(_core.Imports(stage), orders.take_those_there)
        news = {"stage": stage, "imports": times, "threads": thread_names()}
        control.send(json.dumps({"imported": news}).encode())
        orders.reached(stage)
        orders.take_those_there()
    orders.take_for_ever()


if __name__ == "__main__":
    sys.modules["serverless_gpu.rank.fork_server"] = sys.modules["__main__"]
    main()
