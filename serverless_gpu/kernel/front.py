"""Answers the requests that the C++ half of the kernel receives.

Light to import: IPython comes in a thread while the kernel already answers kernel_info_request, and
the shell is made when that has ended.

Threads: the main thread.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from serverless_gpu._kernel import COUNT_KEY, Kernel, Parent
from serverless_gpu.kernel import cells
from serverless_gpu.kernel.streams import CellStream

if TYPE_CHECKING:
    from serverless_gpu.kernel.session import Session

Content = dict[str, Any]


def log(kernel: Kernel, text: str) -> None:
    """Write to the kernel's log: what stderr was before cells took it."""
    os.write(kernel.original_stderr_fd(), text.encode("utf-8", "backslashreplace"))


class Front:
    """What C++ calls. Each method named as a request returns the content of its reply."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._session: Session | None = None
        self._failure: str | None = None
        self._importing = threading.Thread(target=self._import, daemon=True, name="import IPython")
        cells.install(kernel)
        sys.stdout = sys.__stdout__ = CellStream(1, "<stdout>")  # type: ignore[misc,assignment]
        sys.stderr = sys.__stderr__ = CellStream(2, "<stderr>")  # type: ignore[misc,assignment]
        self._importing.start()

    def _import(self) -> None:
        try:
            importlib.import_module("serverless_gpu.kernel.session")
        except BaseException:
            self._failure = traceback.format_exc()
        self._kernel.wake()

    def ready(self) -> Session:
        """The session, made at the first call. Raises RuntimeError if IPython cannot be used."""
        if self._session is None:
            self._importing.join()
            if self._failure is None:
                self._boot()
            if self._session is None:
                raise RuntimeError(f"the kernel could not start its shell:\n{self._failure}")
        return self._session

    def _boot(self) -> None:
        from serverless_gpu.kernel import session

        try:
            self._session = session.Session(self._kernel)
        except BaseException:
            self._failure = traceback.format_exc()
            log(self._kernel, self._failure)
            return
        self._kernel.set_ready()
        self._start_notebook(self._session)

    def _start_notebook(self, session: Session) -> None:
        """Bring in what the notebook's user sees of the package; the kernel works without it."""
        try:
            notebook = importlib.import_module("serverless_gpu.notebook")
            notebook.start(session.shell)
        except ModuleNotFoundError as error:
            if error.name != "serverless_gpu.notebook":
                log(self._kernel, traceback.format_exc())
        except BaseException:
            log(self._kernel, traceback.format_exc())

    def idle(self) -> None:
        """Wait for a request; called when there is none."""
        if self._session is None and not self._importing.is_alive() and self._failure is None:
            self.ready()
        if self._session is not None:
            self._session.loop.idle()

    def execute(self, **request: Any) -> Content:
        """Run a cell."""
        return self.ready().execute(**request)

    def _asked(self, header: Content | None, ask: Callable[[Session], Content]) -> Content:
        """Answer a request in which code of users' objects may run."""
        session = self.ready()
        try:
            reply: Content = self._kernel.call_interruptible(lambda: ask(session))
        except KeyboardInterrupt as interrupt:
            return {
                "status": "error",
                "ename": type(interrupt).__name__,
                "evalue": "",
                "traceback": [],
            }
        return reply

    def complete(self, code: str, cursor: int) -> Content:
        """Completions of `code` at `cursor`, in characters; -1: at the end."""
        return self._asked(None, lambda session: session.complete(code, cursor))

    def inspect(self, code: str, cursor: int, detail: int) -> Content:
        """What is known of the name at `cursor`; -1: at the end."""
        return self._asked(None, lambda session: session.inspect(code, cursor, detail))

    def is_complete(self, code: str) -> Content:
        """Whether Enter should run `code`."""
        return self.ready().is_complete(code)

    def history_tail(self, n: int, raw: bool, output: bool) -> Content:
        """The last `n` inputs."""
        return self.ready().history_tail(n, raw, output)

    def history_range(
        self, session: int, start: int, stop: int, raw: bool, output: bool
    ) -> Content:
        """Inputs of one session, by line number; session 0 is this one."""
        return self.ready().history_range(session, start, stop, raw, output)

    def history_search(
        self, pattern: str, raw: bool, output: bool, n: int, unique: bool
    ) -> Content:
        """The last `n` inputs that match a glob pattern; 0: all."""
        return self.ready().history_search(pattern, raw, output, n, unique)

    def comm(
        self, header: Content, content: Content, metadata: Content, buffers: list[bytes]
    ) -> Content:
        """A message of a comm, or the request for the list of comms."""
        session = self.ready()
        if header["msg_type"] == "comm_info_request":
            return session.comm_info(content.get("target_name"))
        cells.begin(cells.Cell(header, Parent(header)))
        message = {
            "header": header,
            "parent_header": {},
            "msg_id": header["msg_id"],
            "msg_type": header["msg_type"],
            "content": content,
            "metadata": metadata,
            "buffers": [memoryview(buffer) for buffer in buffers],
        }
        return self._asked(header, lambda each: each.comm(message))

    def shutdown(self, restart: bool) -> None:
        """Run what asked to be run at the end."""
        import atexit

        notebook = sys.modules.get("serverless_gpu.notebook")
        on_shutdown = getattr(notebook, "on_shutdown", None)
        try:
            if on_shutdown is not None:
                on_shutdown(restart)
        except BaseException:
            log(self._kernel, traceback.format_exc())
        atexit._run_exitfuncs()


__all__ = ["COUNT_KEY", "Content", "Front", "log"]
