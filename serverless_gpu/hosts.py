"""Where output goes: our kernel, ipykernel, or a plain script. One interface for the three."""

from __future__ import annotations

import os
import sys
from typing import Any, Protocol


class Host(Protocol):
    """Threads: any."""

    #: Whether ANSI colours are shown.
    colour: bool
    #: Whether messages can be shown and updated.
    rich: bool
    #: Text that comes faster for longer than a burst is shown in part; 0: no limit.
    bytes_per_second: int

    def capture(self) -> Any:
        """A token for the cell that runs now; output with it goes there, whenever it comes."""

    def stream(self, parent: Any, name: str, text: str) -> None: ...

    def message(self, parent: Any, message_type: str, content: dict[str, Any]) -> None: ...


class KernelHost:
    """Our kernel: messages with an explicit parent."""

    colour = True
    rich = True

    def __init__(self) -> None:
        self.bytes_per_second = _server_limit()

    def capture(self) -> Any:
        from . import kernel

        return kernel.current_parent()

    def stream(self, parent: Any, name: str, text: str) -> None:
        self.message(parent, "stream", {"name": name, "text": text})

    def message(self, parent: Any, message_type: str, content: dict[str, Any]) -> None:
        from . import kernel

        kernel.publish(message_type, content, parent)


class IPyKernelHost:
    """ipykernel: its session sends on the iopub thread's socket, with our parent."""

    colour = True
    rich = True

    def __init__(self, ipykernel: Any) -> None:
        self._kernel = ipykernel
        self.bytes_per_second = _server_limit()

    def capture(self) -> Any:
        return self._kernel.get_parent("shell")

    def stream(self, parent: Any, name: str, text: str) -> None:
        self.message(parent, "stream", {"name": name, "text": text})

    def message(self, parent: Any, message_type: str, content: dict[str, Any]) -> None:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        self._kernel.session.send(
            self._kernel.iopub_socket,
            message_type,
            content,
            parent=parent,
            ident=message_type.encode(),
        )


class ScriptHost:
    """A plain script: lines to stdout and stderr, the plain text of what is displayed."""

    rich = False
    bytes_per_second = 0

    def __init__(self) -> None:
        self.colour = sys.stdout.isatty()

    def capture(self) -> Any:
        return None

    def stream(self, parent: Any, name: str, text: str) -> None:
        stream = sys.stdout if name == "stdout" else sys.stderr
        stream.write(text)
        stream.flush()

    def message(self, parent: Any, message_type: str, content: dict[str, Any]) -> None:
        text = content.get("data", {}).get("text/plain")
        if message_type == "display_data" and isinstance(text, str):
            self.stream(parent, "stdout", text + "\n")


def _server_limit() -> int:
    """Bytes per second that a Jupyter server passes on, colours and escapes left room for. It drops
    all text of a kernel that sends more than 3 MB in 3 seconds, what comes after a flood too."""
    return 300_000 if "JPY_SESSION_NAME" in os.environ else 0


def cell_number() -> int | None:
    """The number of the notebook's cell that the caller runs in; None in a plain script.

    IPython has counted on by the time the cell runs, or has not, by its version: so it is read off
    the names of the code that runs.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    numbers = getattr(getattr(shell, "compile", None), "_filename_map", {})
    number, frame = None, sys._getframe()
    while frame is not None:
        number = numbers.get(frame.f_code.co_filename, number)
        frame = frame.f_back  # type: ignore[assignment]
    return number


def find() -> Host:
    """The host of this process."""
    kernel = sys.modules.get("serverless_gpu.kernel")
    if kernel is not None and kernel.in_kernel():
        return KernelHost()
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    ipykernel = getattr(shell, "kernel", None)
    if ipykernel is not None and hasattr(ipykernel, "iopub_socket"):
        return IPyKernelHost(ipykernel)
    return ScriptHost()
