"""IPython's shell with Jupyter messages in place of a terminal.

Threads: the main thread, but for what `display` and `print` reach.
"""

from __future__ import annotations

import os
import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from IPython.core import page
from IPython.core.autocall import ZMQExitAutocall
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from traitlets import Any as AnyTrait
from traitlets import Bool, Instance, Type, default

from serverless_gpu import plain_cells
from serverless_gpu.kernel import cells
from serverless_gpu.kernel.history import CellHistory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Hook = Callable[[dict[str, Any]], dict[str, Any] | None]


def send(msg_type: str, content: Mapping[str, Any], **rest: Any) -> None:
    """Publish as output of the current cell."""
    kernel, cell = cells.running_kernel(), cells.current()
    if kernel is not None:
        kernel.publish(msg_type, content, cell.handle if cell else None, **rest)


def safe_str(value: object) -> str:
    """str(value), which may run code of users that fails."""
    try:
        return str(value)
    except Exception as error:
        return f"<str() raised {type(error).__name__}>"


def named(error: object) -> dict[str, Any]:
    """`ename` and `evalue` of an error. One of a rank goes by what the rank raised."""
    own = getattr(error, "reply_error", None)
    if callable(own) and type(error).__module__ == "serverless_gpu.errors":
        name, value = own()
        return {"ename": name, "evalue": value}
    return {"ename": type(error).__name__, "evalue": safe_str(error)}


class CellDisplayPublisher(DisplayPublisher):
    """Publishes what `display()` is given."""

    _hooks_of_thread = threading.local()

    @property
    def _hooks(self) -> list[Hook]:
        if not hasattr(self._hooks_of_thread, "hooks"):
            self._hooks_of_thread.hooks = []
        hooks: list[Hook] = self._hooks_of_thread.hooks
        return hooks

    def register_hook(self, hook: Hook) -> None:
        """Let `hook` see this thread's messages first; it returns them, changed or not, or None."""
        self._hooks.append(hook)

    def unregister_hook(self, hook: Hook) -> bool:
        """False if `hook` was not registered by this thread."""
        if hook not in self._hooks:
            return False
        self._hooks.remove(hook)
        return True

    def publish(  # type: ignore[override]
        self,
        data: dict[str, Any],
        metadata: dict[str, Any] | None = None,
        *,
        transient: dict[str, Any] | None = None,
        update: bool = False,
        **_others: Any,
    ) -> None:
        """Send a display_data or update_display_data message."""
        self._validate_data(data, metadata or {})  # type: ignore[no-untyped-call]
        content = {"data": data, "metadata": metadata or {}, "transient": transient or {}}
        self._send("update_display_data" if update else "display_data", content)

    def clear_output(self, wait: bool = False) -> None:
        """Clear the cell's output, with `wait` when the next comes."""
        self._send("clear_output", {"wait": wait})

    def _send(self, msg_type: str, content: dict[str, Any]) -> None:
        message: dict[str, Any] | None = {
            "header": {"msg_type": msg_type},
            "msg_type": msg_type,
            "content": content,
        }
        for hook in self._hooks:
            message = hook(message) if message is not None else None
        if message is not None:
            send(msg_type, message["content"])


class CellDisplayHook(DisplayHook):
    """Sends the value of a cell's last expression as execute_result."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call]
        self._result: dict[str, Any] | None = None

    def start_displayhook(self) -> None:
        self._result = None

    def write_output_prompt(self) -> None:
        """The front end draws it."""

    def write_format_data(
        self, format_dict: dict[str, Any], md_dict: dict[str, Any] | None = None
    ) -> None:
        self._result = {
            "execution_count": self.prompt_count,
            "data": format_dict,
            "metadata": md_dict or {},
        }

    def finish_displayhook(self) -> None:
        if self._result and self._result["data"]:
            send("execute_result", self._result)
        self._result = None


class ZMQInteractiveShell(InteractiveShell):
    """The shell of the kernel.

    It has the name of ipykernel's, since libraries (rich, pandas, plotly) tell a notebook from a
    terminal by it.
    """

    displayhook_class = Type(CellDisplayHook)
    display_pub_class = Type(CellDisplayPublisher)
    autoindent = Bool(False)
    exiter = Instance(ZMQExitAutocall)
    kernel = AnyTrait()
    keepkernel_on_exit: bool | None = None

    # Of the running cell.
    error_reply: dict[str, Any] | None = None

    @default("exiter")
    def _default_exiter(self) -> ZMQExitAutocall:
        return ZMQExitAutocall(self)  # type: ignore[no-untyped-call]

    def init_hooks(self) -> None:
        super().init_hooks()  # type: ignore[no-untyped-call]
        hook = page.as_hook(self._page)  # type: ignore[no-untyped-call]
        self.set_hook("show_in_pager", hook, 99)  # type: ignore[no-untyped-call]

    def init_history(self) -> None:
        manager: Any = CellHistory(shell=self, parent=self)
        self.history_manager = manager
        self.configurables.append(manager)

    def init_environment(self) -> None:
        """What makes programs that cells start write colours, and ask nothing."""
        os.environ.update(TERM="xterm-color", CLICOLOR="1", FORCE_COLOR="1", CLICOLOR_FORCE="1")
        os.environ.update(PAGER="cat", GIT_PAGER="cat")

    def init_virtualenv(self) -> None:
        """The kernel runs in the environment's own Python: nothing to add."""

    def enable_gui(self, gui: str | None = None) -> None:
        """Only inline figures: the kernel drives no window system."""
        if gui not in (None, "inline", "asyncio"):
            raise UsageError(f"this kernel cannot show windows ({gui}); use %matplotlib inline")

    def transform_cell(self, raw_cell: str) -> str:
        plain = plain_cells.transformed(self, raw_cell)
        if plain is not None:
            return plain
        return str(super().transform_cell(raw_cell))  # type: ignore[no-untyped-call]

    def _tee(self, channel: str) -> Any:
        """IPython would keep all output of all cells in memory, for `%notebook` only."""
        return nullcontext()

    def _page(self, text: Any, start: int = 0, screen_lines: int = 0, **_others: Any) -> None:
        data = text if isinstance(text, dict) else {"text/plain": text}
        self._payload({"source": "page", "data": data, "start": max(0, start)})

    def _payload(self, payload: dict[str, Any]) -> None:
        manager: Any = self.payload_manager
        manager.write_payload(payload, single=True)

    def ask_exit(self) -> None:
        """What `exit` and `quit` call: the front end is told, and the kernel ends."""
        self.exit_now = not self.keepkernel_on_exit
        self._payload({"source": "ask_exit", "keepkernel": bool(self.keepkernel_on_exit)})

    def set_next_input(self, text: str, replace: bool = False) -> None:
        """Offer `text` as the next cell, or in place of this one."""
        self._payload({"source": "set_next_input", "text": text, "replace": replace})

    def _showtraceback(self, etype: type[BaseException], evalue: Any, stb: list[str]) -> None:
        content = {**named(evalue), "traceback": list(stb)}
        self.error_reply = content
        send("error", content)
