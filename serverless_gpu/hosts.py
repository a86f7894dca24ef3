"""Where output goes: our kernel, ipykernel, or a plain script. One interface for the three."""

from __future__ import annotations

import os
import sys
from typing import Any, Protocol

from .errors import OptionError

#: Megabytes of ranks' text that a cell shows, for they are saved with the notebook; and a script.
CELL_MB, SCRIPT_MB = 2.0, 64.0
_MB = 1_000_000
#: More would not fit into the memory of a notebook that is busy.
_MOST_MB = 1000.0


class Host(Protocol):
    """Threads: any."""

    #: Whether ANSI colours are shown.
    colour: bool
    #: Whether messages can be shown and updated.
    rich: bool
    #: Text that comes faster for longer than a burst is shown in part; 0: no limit.
    bytes_per_second: int
    #: Text of a call beyond this is counted, and its last lines shown at its end.
    shown_bytes: int
    #: Whether output of a cell that is over is shown.
    shows_late: bool
    clears: bool  # a cell's output can be taken away

    def capture(self) -> Any:
        """A token for the cell that runs now; output with it goes there, whenever it comes."""

    def stream(self, parent: Any, name: str, text: bytes) -> None:
        """Shows UTF-8 text as "stdout" or "stderr"."""

    def message(self, parent: Any, message_type: str, content: dict[str, Any]) -> None: ...


class KernelHost:
    """Our kernel: messages with an explicit parent."""

    colour = True
    rich = True
    clears = True

    def __init__(self) -> None:
        self.bytes_per_second = _server_limit()
        self.shown_bytes = _shown_limit(CELL_MB)
        self.shows_late = _behind_server()

    def capture(self) -> Any:
        from . import kernel

        return kernel.current_parent()

    def stream(self, parent: Any, name: str, text: bytes) -> None:
        from . import kernel

        kernel.publish_text(1 if name == "stdout" else 2, text, parent)

    def message(self, parent: Any, message_type: str, content: dict[str, Any]) -> None:
        from . import kernel

        kernel.publish(message_type, content, parent)


class IPyKernelHost:
    """ipykernel: its session sends on the iopub thread's socket, with our parent."""

    colour = True
    rich = True
    clears = True

    def __init__(self, ipykernel: Any) -> None:
        self._kernel = ipykernel
        self.bytes_per_second = _server_limit()
        self.shown_bytes = _shown_limit(CELL_MB)
        self.shows_late = _behind_server()

    def capture(self) -> Any:
        return self._kernel.get_parent("shell")

    def stream(self, parent: Any, name: str, text: bytes) -> None:
        content = {"name": name, "text": text.decode(errors="replace")}
        self.message(parent, "stream", content)

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
    clears = False
    bytes_per_second = 0
    shows_late = True

    def __init__(self) -> None:
        self.colour = sys.stdout.isatty()
        self.shown_bytes = _shown_limit(SCRIPT_MB)

    def capture(self) -> Any:
        return None

    def stream(self, parent: Any, name: str, text: bytes) -> None:
        stream = sys.stdout if name == "stdout" else sys.stderr
        stream.write(text.decode(errors="replace"))
        stream.flush()

    def message(self, parent: Any, message_type: str, content: dict[str, Any]) -> None:
        text = content.get("data", {}).get("text/plain")
        if message_type == "display_data" and isinstance(text, str):
            self.stream(parent, "stdout", f"{text}\n".encode(errors="replace"))


def _server_limit() -> int:
    """Bytes per second that a Jupyter server passes on, colours and escapes left room for. It drops
    all text of a kernel that sends more than 3 MB in 3 seconds, what comes after a flood too."""
    return 300_000 if _behind_server() else 0


def _behind_server() -> bool:
    """Whether a Jupyter server has started this kernel."""
    return "JPY_SESSION_NAME" in os.environ


def _shown_limit(default_mb: float) -> int:
    """Bytes, from SERVERLESS_GPU_OUTPUT_MB; ValueError if that is no number of megabytes."""
    text = os.environ.get("SERVERLESS_GPU_OUTPUT_MB", "")
    try:
        megabytes = float(text or default_mb)
    except ValueError:
        megabytes = 0.0
    if not 0 < megabytes <= _MOST_MB:
        raise OptionError(
            f"SERVERLESS_GPU_OUTPUT_MB takes megabytes from 0 to {_MOST_MB:g}, got {text!r}"
        )
    return int(megabytes * _MB)


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
