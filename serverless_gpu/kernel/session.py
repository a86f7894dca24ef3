"""The shell of the notebook, and the answers to what is asked of it.

Imports IPython; front.py imports this module in a thread.

Threads: the main thread, after the import.
"""

from __future__ import annotations

import builtins
import faulthandler
import getpass
import os
import sys
from typing import Any

from IPython.core.completer import provisionalcompleter, rectify_completions
from IPython.core.error import StdinNotImplementedError
from IPython.utils.tokenutil import token_at_cursor
from traitlets.config import Config

from serverless_gpu._kernel import COUNT_KEY, Kernel, Parent
from serverless_gpu.errors.types import QuestionStopped, Shown
from serverless_gpu.kernel import cells, comms
from serverless_gpu.kernel.loop import KernelLoop, let_cells_create_tasks
from serverless_gpu.kernel.shell import ZMQInteractiveShell, named, send

Content = dict[str, Any]


class NoQuestion(Shown, StdinNotImplementedError):
    """A cell cannot ask the user."""


NoQuestion.__name__ = NoQuestion.__qualname__ = "StdinNotImplementedError"


def _shell_config() -> Config:
    config = Config()
    # Older tqdm, and others, take a shell without this for a terminal.
    config.IPKernelApp.kernel_name = "serverless-gpu"
    return config


class Session:
    """One IPython shell, its loop and its comms, from start to end of the kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
        faulthandler.enable(kernel.original_stderr_fd())
        self.loop = KernelLoop(kernel)
        let_cells_create_tasks(self.loop.loop)
        self.shell: Any = ZMQInteractiveShell.instance(config=_shell_config())
        if "" not in sys.path:
            sys.path.insert(0, "")
        self.shell.loop_runner = self.loop.run_until_complete
        self._comm_manager = comms.install()
        self.shell.kernel = comms.KernelObject(self.shell, self._comm_manager, kernel.session)
        builtins.input = self._input
        getpass.getpass = self._getpass

    def execute(
        self,
        header: Content,
        metadata: Content,
        code: str,
        silent: bool,
        store_history: bool,
        allow_stdin: bool,
        user_expressions: Content,
    ) -> Content:
        """Run a cell; the content of the execute_reply, whatever the cell does."""
        pid = os.getpid()
        shell, count = self.shell, self.shell.execution_count
        cells.begin(cells.Cell(header, Parent(header), allow_stdin))
        self.loop.make_current()
        shell.error_reply = None
        if not silent:
            send("execute_input", {"code": code, "execution_count": count})
        result = self._run(code, silent, store_history, metadata.get("cellId"))
        if os.getpid() != pid:
            os._exit(0)  # a child that the cell forked and did not end: the kernel is not its own
        if store_history and shell.execution_count == count:
            shell.execution_count += 1  # the interrupt came after the cell, before this
        error = self._error_of(result)
        reply: Content = {COUNT_KEY: count, "payload": shell.payload_manager.read_payload()}
        shell.payload_manager.clear_payload()
        if error is None:
            reply["status"] = "ok"
            reply["user_expressions"] = shell.user_expressions(user_expressions or {})
        else:
            reply.update(error, status="error", user_expressions={})
        if shell.exit_now:
            self._kernel.stop(False)
        return reply

    def _run(self, code: str, silent: bool, store_history: bool, cell_id: Any) -> Any:
        """IPython's result; None if the cell was interrupted outside the user's code."""
        try:
            return self._kernel.call_interruptible(
                lambda: self.shell.run_cell(
                    code, store_history=store_history, silent=silent, cell_id=cell_id
                )
            )
        except BaseException:
            self.shell.showtraceback()
            return None

    def _error_of(self, result: Any) -> Content | None:
        """What the reply says of the cell's error; None if it had none."""
        if result is not None and result.success:
            return None
        shown = self.shell.error_reply or {"traceback": []}
        error = None if result is None else result.error_before_exec or result.error_in_exec
        if error is None:
            return {"ename": "KeyboardInterrupt", "evalue": "", **shown}
        # Not always what was shown: formatting the traceback may have failed.
        return {**shown, **named(error)}

    def _input(self, prompt: object = "") -> str:
        """As the builtin; asks the front end."""
        return self._ask(str(prompt), password=False)

    def _getpass(self, prompt: str = "Password: ", stream: object = None) -> str:
        """As in getpass; the front end hides what is typed."""
        return self._ask(prompt, password=True)

    def _ask(self, prompt: str, password: bool) -> str:
        cell = cells.current()
        if cells.running_kernel() is None:
            raise NoQuestion("input() works in the notebook's process only")
        if not cells.is_main_thread():
            raise NoQuestion("input() works in the main thread only")
        if cell is None or not cell.allow_stdin:
            raise NoQuestion(
                "input() was called, but this front end does not answer questions "
                "(nbconvert and papermill do not)"
            )
        try:
            return self._kernel.ask(prompt, password)
        except KeyboardInterrupt:
            raise QuestionStopped("stopped while it waited for an answer") from None

    def complete(self, code: str, cursor: int) -> Content:
        """Completions at `cursor`, with their types as JupyterLab shows them."""
        at = len(code) if cursor < 0 else cursor
        with provisionalcompleter():
            found = list(rectify_completions(code, self.shell.Completer.completions(code, at)))
        types = [
            {
                "start": each.start,
                "end": each.end,
                "text": each.text,
                "type": each.type,
                "signature": each.signature,
            }
            for each in found
        ]
        return {
            "status": "ok",
            "matches": [each.text for each in found],
            "cursor_start": found[0].start if found else at,
            "cursor_end": found[0].end if found else at,
            "metadata": {"_jupyter_types_experimental": types},
        }

    def inspect(self, code: str, cursor: int, detail: int) -> Content:
        """The help text of the name at `cursor`."""
        at = len(code) if cursor < 0 else cursor
        name = token_at_cursor(code, at)
        reply: Content = {"status": "ok", "found": False, "data": {}, "metadata": {}}
        bundle = _in_ranks(code, at, name, detail)
        if bundle:
            return {**reply, "found": True, "data": bundle}
        try:
            bundle = self.shell.object_inspect_mime(name, detail_level=detail)
        except KeyError:
            return reply
        if not self.shell.enable_html_pager:
            bundle.pop("text/html", None)
        return {**reply, "found": True, "data": bundle}

    def is_complete(self, code: str) -> Content:
        """Status of `code`, with the indentation of the next line if there must be one."""
        status, indent = self.shell.input_transformer_manager.check_complete(code)
        reply: Content = {"status": status}
        if status == "incomplete":
            reply["indent"] = " " * (indent or 0)
        return reply

    def history_tail(self, n: int, raw: bool, output: bool) -> Content:
        """The last `n` inputs, oldest first."""
        manager = self.shell.history_manager
        return _history(manager.get_tail(n, raw=raw, output=output, include_latest=True))

    def history_range(
        self, session: int, start: int, stop: int, raw: bool, output: bool
    ) -> Content:
        """Inputs `start` to `stop` (not included; 0: to the end) of a session."""
        manager = self.shell.history_manager
        found = manager.get_range(session, start, stop or None, raw=raw, output=output)
        # IPython calls this session 0, also if it was asked for by its number.
        return _history((session if entry[0] == 0 else entry[0], *entry[1:]) for entry in found)

    def history_search(
        self, pattern: str, raw: bool, output: bool, n: int, unique: bool
    ) -> Content:
        """Inputs that match, oldest first."""
        found = self.shell.history_manager.search(
            pattern or "*", raw=raw, output=output, n=n or None, unique=unique
        )
        return _history(found)

    def comm(self, message: Content) -> Content:
        """Give a message to its comm. What the comm raises is logged, as in other kernels."""
        handler = getattr(self._comm_manager, message["header"]["msg_type"])
        handler(None, None, message)
        return {}

    def comm_info(self, target_name: str | None) -> Content:
        """The open comms."""
        return comms.info(self._comm_manager, target_name)


def _in_ranks(code: str, cursor: int, name: str, detail: int) -> Content:
    """What the ranks know of a name in a `%%distributed` cell."""
    completion = sys.modules.get("serverless_gpu.completion")
    start = completion.body_start(code) if completion is not None else None
    if completion is None:
        return {}
    if start is None or cursor < start:
        text = completion.help_at(code, cursor)
        return {"text/plain": text} if text else {}
    found: Content = completion.peek.inspection(name, detail)
    return found


def _history(entries: Any) -> Content:
    return {"status": "ok", "history": [list(entry) for entry in entries]}
