"""Which cell the running code belongs to, in threads and asyncio tasks as well.

Threads: every function may be called from any thread.
"""

from __future__ import annotations

import os
import signal
import threading
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from serverless_gpu._kernel import Kernel, Parent


@dataclass(frozen=True, eq=False)
class Cell:
    """A request whose code runs, or ran, and may still write.

    header: as in the request; handle: the same, converted for the C++ half.
    """

    header: dict[str, Any]
    handle: Parent
    allow_stdin: bool = False


_kernel: Kernel | None = None
_pid = 0
_latest: Cell | None = None
# Tasks and callbacks of asyncio copy the context they are made in, so they keep their cell.
_of_context: ContextVar[Cell | None] = ContextVar("serverless_gpu_cell", default=None)


def running_kernel() -> Kernel | None:
    """The kernel of this process; None elsewhere, also in forked children."""
    return _kernel if _kernel is not None and os.getpid() == _pid else None


def install(kernel: Kernel) -> None:
    """Make `kernel` the one of this process, and threads remember their cell."""
    global _kernel, _pid
    _kernel, _pid = kernel, os.getpid()
    threading.Thread.start = _start  # type: ignore[method-assign]


def begin(cell: Cell) -> None:
    """`cell` begins, in the main thread."""
    global _latest
    _latest = cell
    _of_context.set(cell)
    if _kernel is not None:
        _kernel.begin_cell(cell.handle)


def current() -> Cell | None:
    """The cell that the calling code belongs to; None before the first."""
    cell = _of_context.get()
    if cell is None:
        cell = getattr(threading.current_thread(), "_serverless_gpu_cell", None)
    return cell if cell is not None else _latest


_original_start = threading.Thread.start


def _start(self: threading.Thread) -> None:
    """As Thread.start; the thread keeps the cell of its starter, and takes no SIGINT.

    A thread inherits the signal mask. If it could take SIGINT, an interrupt that comes while
    nothing runs would wait in Python and hit the next cell.
    """
    self._serverless_gpu_cell = current()  # type: ignore[attr-defined]
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        _original_start(self)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def is_main_thread() -> bool:
    """Whether the caller runs in the main thread, where cells do."""
    return threading.current_thread() is threading.main_thread()
