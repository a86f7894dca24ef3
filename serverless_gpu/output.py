"""Brings what ranks write and display into the cells that they belong to."""

from __future__ import annotations

import json
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import _core, console, displays, hosts
from .hosts import Host
from .late import LateLines
from .links import LOOK, LateLinks

#: Milliseconds that the pump sleeps at most before it looks whether its pool is still sound.
_LOOK = 1000
#: Finished calls whose late lines still find their cell.
_KEPT = 50


@dataclass
class Sink:
    """The cell of one call, and what its ranks have sent there."""

    host: Host
    parent: Any
    world: int
    above: Callable[[], None] | None = None  # shows what is above all that ranks send
    again: Callable[[], None] | None = None  # shows it again, in a cell that was cleared
    members: int = 0  # ranks that the call runs on
    number: int | None = field(default_factory=hosts.cell_number)
    results: dict[int, dict[str, Any]] = field(default_factory=dict)  # of last expressions, by rank
    cell_over: bool = False
    written: bool = False  # there are lines in the cell
    last_output: float = 0.0  # time.monotonic() when ranks last wrote or displayed something

    def __post_init__(self) -> None:
        self.displays = displays.Cell(displays.Place(self.host, self.parent, self.world))

    def open(self) -> None:
        """To be called before anything is shown."""
        above, self.above = self.above, None
        if above is not None:
            above()


class Output:
    """Takes output from the pool and hands it to the host of each call.

    Threads: any; one lock, held while messages are published so that their order stays. Has a
    thread of its own until `close`.
    """

    def __init__(self, core: _core.RankPool, lost: Callable[[], None]) -> None:
        """`lost` is called in the thread if the pool ends by itself."""
        self._core = core
        self._lost = lost
        self._lock = threading.RLock()
        self._sinks: dict[int, Sink] = {}
        self._console = console.find()
        self._displays = displays.Displays()
        self.links = LateLinks()
        self._late = LateLines()
        self._closing = os.eventfd(0, os.EFD_CLOEXEC)
        # Not a cell's thread: what it publishes has its own parent.
        self._thread = threading.Thread(
            target=self._pump, name="serverless-gpu-output", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Ends the thread, which would not survive the interpreter's end.

        What has come until now is published.
        """
        os.eventfd_write(self._closing, 1)
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self.drain()
        os.close(self._closing)

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
            for call, ranks, kind, content in self._core.take_output():
                sink = self._sinks.get(call)
                if sink is not None:
                    self._dispatch(call, sink, set(ranks), kind, content)

    def cell_over(self) -> None:
        """The notebook's cell has ended: what calls until now still print is late."""
        with self._lock:
            for sink in self._sinks.values():
                sink.cell_over = True

    def late_note(self, folder: Callable[[], Path]) -> str:
        """What is to be said, once, of late lines that no front end shows. `folder`: of logs."""
        with self._lock:
            return self._late.note(folder)

    def farewell(self) -> None:
        """The notebook ends: nobody will be told of late lines by a next call."""
        with self._lock:
            self.drain()
            if self._console is None:
                console.say(self._late.farewell())

    def finish(self, call: int) -> None:
        """Everything of a call that has ended, the values of its last expression included."""
        with self._lock:
            self.drain()
            sink = self._sinks.get(call)
            if sink is None:
                return
            self._show_results(sink)
            if self._console is not None:
                self._console.finish(call, sink.number)

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
        self._lost()

    def _dispatch(self, call: int, sink: Sink, ranks: set[int], kind: str, content: bytes) -> None:
        sink.last_output = time.monotonic()
        sink.open()
        if kind in ("stdout", "stderr"):
            sink.written = True
            sink.host.stream(sink.parent, kind, content)
            if sink.cell_over and not sink.host.shows_late:
                self._late.add(call, sink.number, content)
            if self._console is not None:
                self._console.write(call, sink.number, kind, content.decode(errors="replace"))
            return
        message = json.loads(content)
        if kind == "execute_result":
            sink.results.update(dict.fromkeys(ranks, message))
        elif kind == "clear_output" and self._may_clear_all(sink, ranks):
            sink.host.message(sink.parent, kind, {"wait": True})
            sink.displays = displays.Cell(sink.displays.place)
            sink.written = False
            if sink.again is not None:
                sink.again()
        elif kind == "clear_output":
            self._displays.clear(sink.displays, ranks, bool(message["wait"]))
        else:
            name = message["transient"].get("display_id")
            self._displays.show(sink.displays, ranks, kind, message, name)

    @staticmethod
    def _may_clear_all(sink: Sink, ranks: set[int]) -> bool:
        """Whether the cell itself is to be cleared, its lines too: if all ranks want that at once,
        nobody loses what others still want to see. Displays alone are better replaced in place."""
        everybody = len(ranks) == sink.members
        return everybody and sink.written and not sink.cell_over and sink.host.clears

    def _show_results(self, sink: Sink) -> None:
        """Values of last expressions, in rank order, equal ones once."""
        groups: dict[str, set[int]] = {}
        for rank in sorted(sink.results):
            text = json.dumps(sink.results[rank], sort_keys=True)
            groups.setdefault(text, set()).add(rank)
        sink.results = {}
        for text, ranks in groups.items():
            sink.open()
            sink.displays.clear_next.clear()
            self._displays.show(sink.displays, ranks, "display_data", json.loads(text), None)
