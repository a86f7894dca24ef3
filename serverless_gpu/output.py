"""Brings what ranks write and display into the cells that they belong to."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from . import _core
from .errors import format_ranks
from .hosts import Host
from .links import LOOK, LateLinks

#: Milliseconds that the pump sleeps at most before it looks whether its pool is still sound.
_LOOK = 1000
#: Finished calls whose late lines still find their cell.
_KEPT = 50

_DIM, _PLAIN = "\x1b[90m", "\x1b[0m"


@dataclass
class Sink:
    """The cell of one call, and what its ranks have displayed there."""

    host: Host
    parent: Any
    world: int
    show_ranks: frozenset[int] | None  # None: all
    results: dict[int, dict[str, Any]] = field(default_factory=dict)
    shown_ids: dict[int, str] = field(default_factory=dict)
    clear_next: set[int] = field(default_factory=set)
    displays: int = 0
    last_output: float = 0.0  # time.monotonic() when ranks last wrote or displayed something


class Output:
    """Takes output from the pool and hands it to the host of each call.

    Threads: any; one lock, held while messages are published so that their order stays. Has a
    thread of its own until `close`.
    """

    def __init__(self, core: _core.RankPool) -> None:
        self._core = core
        self._lock = threading.RLock()
        self._sinks: dict[int, Sink] = {}
        console = os.environ.get("SERVERLESS_GPU_CONSOLE", os.environ.get("CI", ""))
        self._console = _console_fd() if console not in ("", "0", "false") else -1
        self.links = LateLinks()
        self._closing = os.eventfd(0, os.EFD_CLOEXEC)
        # Not a cell's thread: what it publishes has its own parent.
        self._thread = threading.Thread(
            target=self._pump, name="serverless-gpu-output", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Ends the thread, which would not survive the interpreter's end, and lets go of the pool.

        What has come until now is published.
        """
        os.eventfd_write(self._closing, 1)
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self.drain()
        os.close(self._closing)
        del self._core

    def begin(self, sink: Sink, start: Any) -> Any:
        """Calls `start`, which begins a call and returns its ticket, and connects it to `sink`."""
        with self._lock:
            ticket = start()
            self._sinks[ticket.id] = sink
            while len(self._sinks) > _KEPT:
                del self._sinks[next(iter(self._sinks))]
            return ticket

    def drain(self) -> None:
        """Publishes all that is there. After a call has ended that is all it has written."""
        with self._lock:
            for call, rank, kind, content, fd in self._core.take_output():
                if fd >= 0:
                    with open(fd, "rb") as f:
                        content = f.read()
                sink = self._sinks.get(call)
                if sink is not None:
                    self._dispatch(sink, rank, kind, content)

    def finish(self, call: int) -> None:
        """Everything of a call that has ended, the values of its last expression included."""
        with self._lock:
            self.drain()
            sink = self._sinks.get(call)
            if sink is not None and sink.results:
                self._show_results(sink)

    def _pump(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # the main thread's
        ready = select.poll()
        ready.register(self._core.output_fd, select.POLLIN)
        ready.register(self._closing, select.POLLIN)
        while not self._core.broken:
            pause = LOOK if self.links.missing() else _LOOK
            fds = [fd for fd, _ in ready.poll(pause * 1000)]
            self.links.look()
            if self._core.output_fd in fds:
                self.drain()
            if self._closing in fds:
                return

    def _dispatch(self, sink: Sink, rank: int, kind: str, content: bytes) -> None:
        sink.last_output = time.monotonic()
        if kind in ("stdout", "stderr"):
            text = content.decode(errors="replace")
            sink.host.stream(sink.parent, kind, text)
            self._to_console(text)
            return
        if sink.show_ranks is not None and rank not in sink.show_ranks:
            return
        message = json.loads(content)
        if kind == "execute_result":
            sink.results[rank] = message
        elif kind == "clear_output":
            self._clear(sink, rank, bool(message["wait"]))
        else:
            self._display(sink, rank, kind, message)

    def _display(self, sink: Sink, rank: int, kind: str, message: dict[str, Any]) -> None:
        wanted = message["transient"].get("display_id")
        if wanted is not None:
            display_id = f"rank-{id(sink)}-{rank}-{wanted}"
        else:
            sink.displays += 1
            display_id = f"rank-{id(sink)}-{sink.displays}"
        if rank in sink.clear_next:
            sink.clear_next.discard(rank)
            if rank in sink.shown_ids and kind == "display_data":
                display_id, kind = sink.shown_ids[rank], "update_display_data"
        sink.shown_ids[rank] = display_id
        message["transient"] = {"display_id": display_id}
        message["data"] = caption(message["data"], format_ranks([rank]), sink)
        sink.host.message(sink.parent, kind, message)

    def _clear(self, sink: Sink, rank: int, wait: bool) -> None:
        """Clears this rank's last display only: other ranks' output is not its to take away."""
        if wait:
            sink.clear_next.add(rank)
        elif rank in sink.shown_ids:
            empty = {"data": {}, "metadata": {}, "transient": {"display_id": sink.shown_ids[rank]}}
            sink.host.message(sink.parent, "update_display_data", empty)
            sink.clear_next.add(rank)

    def _show_results(self, sink: Sink) -> None:
        groups: dict[str, list[int]] = {}
        for rank in sorted(sink.results):
            groups.setdefault(json.dumps(sink.results[rank], sort_keys=True), []).append(rank)
        sink.results = {}
        for text, ranks in groups.items():
            message = json.loads(text)
            message["data"] = caption(message["data"], format_ranks(ranks), sink)
            message["transient"] = {}
            sink.host.message(sink.parent, "display_data", message)

    def _to_console(self, text: str) -> None:
        if self._console < 0:
            return
        plain = text.replace(_DIM, "").replace(_PLAIN, "")
        lines = "".join(f"{line}\n" for line in plain.splitlines())
        # The reader of the console may be gone; that is no reason to end a call.
        try:
            os.write(self._console, lines.encode())
        except OSError:
            self._console = -1


def _console_fd() -> int:
    """The kernel's own stderr, which cells do not capture; -1 where stderr is the output anyway."""
    kernel = sys.modules.get("serverless_gpu.kernel")
    if kernel is not None and kernel.in_kernel():
        return int(kernel.original_stderr_fd())
    return -1


def caption(data: dict[str, Any], ranks: str, sink: Sink) -> dict[str, Any]:
    """The MIME bundle with its ranks named, in every form that has room for it."""
    if sink.world == 1:
        return data
    data = dict(data)
    plain = data.get("text/plain")
    if isinstance(plain, str):
        prefix = f"{_DIM}[{ranks}]{_PLAIN} " if sink.host.colour else f"[{ranks}] "
        data["text/plain"] = prefix + plain
    label = f'<div style="opacity:.65;font-size:85%">[{ranks}]</div>'
    html = data.get("text/html")
    if isinstance(html, list):
        html = "".join(html)
    if isinstance(html, str):
        data["text/html"] = label + html
    elif (png := data.pop("image/png", None)) is not None:
        source = f"data:image/png;base64,{png.strip()}"
        data["text/html"] = f'{label}<img alt="figure of rank {ranks}" src="{source}">'
    return data
