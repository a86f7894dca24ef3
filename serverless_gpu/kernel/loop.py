"""The asyncio loop of the main thread, which runs while the kernel waits for requests.

The loop's selector is also the kernel's wait: between cells the loop runs, and its selector waits
for requests, for the loop's own descriptors and for its timers in one poll. A request stops the
loop, so no loop is *running* in a cell, and `asyncio.run` works there.

Threads: the main thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from serverless_gpu._kernel import Kernel

T = TypeVar("T")


class _RequestSelector(selectors.EpollSelector):
    """Selects for the loop; while `idle`, wakes up for requests of front ends, too."""

    def __init__(self, kernel: Kernel, on_request: Callable[[], None]) -> None:
        super().__init__()
        self._kernel = kernel
        self._on_request = on_request
        self.idle = False

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if not self.idle:
            return super().select(timeout)
        if self._kernel.wait(timeout, self.fileno()):
            self._on_request()
        return super().select(0)


class KernelLoop:
    """Owns the loop that top-level await and tasks between cells share."""

    def __init__(self, kernel: Kernel) -> None:
        self._selector = _RequestSelector(kernel, lambda: self.loop.stop())
        self.loop = asyncio.SelectorEventLoop(self._selector)
        self.make_current()

    def make_current(self) -> None:
        """For `asyncio.get_event_loop()` in cells; `asyncio.run` leaves none behind."""
        asyncio.set_event_loop(self.loop)

    def idle(self) -> None:
        """Run tasks until a request has come."""
        self._selector.idle = True
        try:
            self.loop.run_forever()
        finally:
            self._selector.idle = False

    def run_until_complete(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a cell with top-level await; if it is interrupted, its task is cancelled."""
        task = self.loop.create_task(coroutine)
        try:
            return self.loop.run_until_complete(task)
        except KeyboardInterrupt:
            self._unwind(task)
            raise

    def _unwind(self, task: asyncio.Task[Any]) -> None:
        if task.done():
            return
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            self.loop.run_until_complete(task)


def let_cells_create_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Make `asyncio.create_task` work in cells without await, as in other Jupyter kernels.

    There the loop runs while a cell does; here it does not (see above), so the task is given to
    the loop that will run it after the cell.
    """
    original = asyncio.create_task

    def create_task(coro: Any, **options: Any) -> asyncio.Task[Any]:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            if threading.current_thread() is threading.main_thread():
                return loop.create_task(coro, **options)
        return original(coro, **options)

    create_task.__doc__ = original.__doc__
    asyncio.create_task = asyncio.tasks.create_task = create_task
