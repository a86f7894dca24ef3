"""The process of a rank: how it is set up after the fork, its loop, and how it leaves."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import errno
import faulthandler
import os
import pickle
import signal
import sys
import time
import types
from collections.abc import Callable
from typing import Any, NoReturn

from .. import _core, rank, serialize
from ..errors import RankFailure, ResultError, capture_failure
from . import cells, children, collectives, environment, functions, process_group, startup, streams
from .fork_server import why_no_fork

SOCKET_FD = 3
#: A real-time signal that neither users nor libraries take; faulthandler writes the stacks at it.
DUMP_SIGNAL = signal.SIGRTMIN + 6


class CallAborted(KeyboardInterrupt):
    """Raised in a rank whose call is ended because of another rank or the deadline.

    A KeyboardInterrupt, so that `except Exception` of user code lets it pass.
    """


_ABORT_TEXT = {
    "peer": "this rank was stopped because another rank failed",
    "deadline": "this rank was stopped because the call ran into its timeout",
}


class RankProcess:
    """The state of this process as a rank. One instance, made by `main`."""

    def __init__(self, agent: _core.RankAgent) -> None:
        self.agent = agent
        self.pid = os.getpid()
        self.call = 0
        self.rank = -1
        self.world = 0
        self.began_ns = 0  # time.time_ns() at the begin of the call

    def on_sigint(self, signum: int, frame: types.FrameType | None) -> None:
        """Raises in user code only: a late signal never reaches into the next call."""
        if os.getpid() != self.pid:
            raise KeyboardInterrupt
        reason = self.agent.see_interrupt()
        if reason in _ABORT_TEXT:
            process_group.hurry()
            raise CallAborted(_ABORT_TEXT[reason])
        if reason or self.agent.busy:
            process_group.hurry()
            raise KeyboardInterrupt

    def serve(self) -> None:
        """Runs requests until the pool says quit."""
        while True:
            try:
                request = self.agent.next_request()
                if request is None:
                    return
                self.run(*request)
            except KeyboardInterrupt:
                continue

    def run(
        self, call: int, number: int, world: int, mode: str, frames: list[bytes], fd: int
    ) -> None:
        self.call, self.rank, self.world = call, number, world
        self.began_ns = time.time_ns()
        raised_ns, ok = 0, True
        try:
            payload = self._work(mode, pickle.loads(frames[0]), frames[1:], fd)
        except BaseException as error:
            raised_ns, ok = time.monotonic_ns(), False
            process_group.hurry()  # its frames may hold a loader that joins its workers
            payload = _dump_failure(capture_failure(error, ()))
            del error
        finally:
            environment.after_call()
            process_group.calm()
        # An editor's question changes none, and who asks it keeps no list of them.
        names = cells.variables_frame() if mode in ("function", "cell") else []
        frames = [*payload.frames, *names]
        streams.flush()
        mark = self.agent.mark_done()
        self.agent.done(self.call, ok, frames, payload.fd, mark, raised_ns, startup.take())
        payload.close()

    def _work(
        self, mode: str, context: dict[str, Any], frames: list[bytes], fd: int
    ) -> serialize.Payload:
        environment.apply(context, self.rank, self.world)
        work = _WORK[mode]
        try:
            self.agent.begin_work(self.call, self.world)
            result = work(context, frames, fd)
            try:
                pulled = result if mode == "cell" else None
                return serialize.dump(result, what="result", variables=pulled)
            except Exception as error:
                raise ResultError(self.rank, str(error)) from None
        finally:
            if os.getpid() != self.pid:
                leave_forked_child()
            self._end_work()

    def _end_work(self) -> None:
        """From here on no interrupt raises. One that comes before is part of the call."""
        while True:
            try:
                self.agent.end_work()
                break
            except KeyboardInterrupt:
                continue


#: What does the work of a call, by its mode; takes its context, frames and descriptor.
_WORK: dict[str, Callable[[dict[str, Any], list[bytes], int], Any]] = {
    "function": functions.run,
    "cell": cells.run,
    "complete": cells.complete,
    "inspect": cells.inspect,
}


def _dump_failure(failure: RankFailure) -> serialize.Payload:
    try:
        return serialize.dump(failure, what="error")
    except Exception:  # an exception that cannot travel: its text can
        return serialize.dump(dataclasses.replace(failure, cause=None), what="error")


def _fresh_main() -> None:
    # Else workers started by spawn or forkserver would import the fork server as their main module.
    main_module = types.ModuleType("__main__")
    main_module.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main_module


def _waiting() -> str:
    """What the agent asks in a thread of its own."""
    process = rank.current
    return collectives.waiting(process.began_ns) if process is not None else ""


def _let_go_of_channel() -> None:
    """A rank that becomes another program is known by the end of its channel, which its forked
    children would keep open. The number stays taken: this copy of the agent closes it."""
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, SOCKET_FD, inheritable=False)
        os.close(null)


def _become_rank(child: dict[str, Any], guard: int) -> RankProcess:
    dump_fd = os.memfd_create("stacks")
    _core.install_dump_signal(DUMP_SIGNAL)
    faulthandler.register(DUMP_SIGNAL, file=dump_fd, all_threads=True, chain=True)
    children.adopt()
    _fresh_main()
    try:
        agent = _core.RankAgent(
            key=child["key"],
            socket=SOCKET_FD,
            guard=guard,
            dump_signal=DUMP_SIGNAL,
            dump_fd=dump_fd,
            collectives=_waiting,
            net=process_group.NET,
        )
    except RuntimeError as error:  # no thread can be made; threads count as processes
        print(why_no_fork(OSError(errno.EAGAIN, str(error))), file=sys.stderr)
        leave(1)
    os.register_at_fork(after_in_child=_let_go_of_channel)
    process = RankProcess(agent)
    rank.current = process
    streams.install(agent)
    signal.signal(signal.SIGINT, process.on_sigint)
    serialize.install_forking_pickler()
    environment.prepare()
    return process


def main(
    child: dict[str, Any], fds: list[int], guard: int, register: _core.RankRegister | None
) -> NoReturn:
    """Never returns: the fork server's frames lie below."""
    try:
        _core.enter_rank(register, *fds)
        if "service" in child:
            from . import service

            service.main(child, guard)
        _become_rank(child, guard).serve()
        leave(0)
    except SystemExit as end:
        leave(end.code if isinstance(end.code, int) else 0 if end.code is None else 1)
    except BaseException:
        import traceback

        traceback.print_exc()
        leave(1)


def leave_forked_child() -> NoReturn:
    """A child that user code forked has come back to our loop: it must not answer for the rank."""
    error = sys.exc_info()[1]
    code = 0
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    elif error is not None:
        import traceback

        traceback.print_exc()
        code = 1
    leave(code)


def leave(code: int) -> NoReturn:
    """Runs the exit handlers and ends, not through the interpreter's own end."""
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    with contextlib.suppress(BaseException):
        streams.flush()
    if rank.current is not None and rank.current.pid == os.getpid():
        with contextlib.suppress(BaseException):
            children.end_all()
    os._exit(code)
