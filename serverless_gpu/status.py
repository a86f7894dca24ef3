"""The one status line of a call: shown at its start, updated in place, short at its end."""

from __future__ import annotations

import html
import itertools
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from .hosts import Host
from .report import Report

if TYPE_CHECKING:
    from .tracking.client import RunHandle, RunInfo

#: Seconds between two updates, at least.
INTERVAL = 0.25
#: Seconds that nobody sees: a call that has ended by then, without output, shows only its end.
UNSEEN = 0.03
#: Seconds from which it is told what user code waited for at its start.
WORTH_TELLING = 0.05
#: Characters of a line that is not shown in the cell itself.
_LONGEST = 200
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_numbers = itertools.count(1)

_PRESSURE = {
    "asked": "stopping",
    "cut_if_stuck": "stopping: ranks that wait in native code are cut from their collectives",
    "cut": "stopping: collectives are being aborted",
    "killed": "stopping by force: ranks are being killed",
    "given_up": "ranks did not end even by force",
}


@dataclass
class Status:
    """Threads: the one that waits for the call; `open`, `show_again` and `show_link` any. One lock,
    held while publishing."""

    host: Host
    parent: Any
    ranks: int
    device: str
    warm: bool
    run: RunHandle | None
    note: str = ""
    imports: Callable[[], float] = lambda: 0.0  # seconds that the fork server's imports took

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self._id = f"serverless-gpu-{os.getpid()}-{next(_numbers)}"
        self._started = time.monotonic()
        self._clock = time.strftime("%H:%M")
        self._shown: dict[str, Any] | None = None
        self._final: list[str] = []
        self._told = False  # that it is quiet
        self._quiet: Report | None = None
        self._gpus: Report | None = None
        self._ready_after: float | None = 0.0 if self.warm else None
        self._begun_after = 0.0  # seconds, once it is known
        self._startup: Mapping[str, float] = {}

    def open(self) -> None:
        """Shows the line if it is not there yet: what the call shows comes below it."""
        with self._lock:
            if self._shown is None:
                self.show()

    def show_again(self) -> None:
        """Shows the line as it is in a cell that was cleared."""
        with self._lock:
            shown, self._shown = self._shown, None
            if shown is not None:
                self._send(shown)

    def show(
        self,
        view: dict[str, Any] | None = None,
        *,
        ready: bool = True,
        quiet: Report | None = None,
        gpus: Report | None = None,
    ) -> None:
        """Shows the line, or updates it if it has changed. `quiet` and `gpus` are shown under it,
        their details folded."""
        if ready and self._ready_after is None:
            self._ready_after = time.monotonic() - self._started
        if quiet is not None and quiet is self._quiet:
            gpus = self._gpus  # who has opened the details is reading: they close when it changes
        self._quiet, self._gpus = quiet, gpus
        self._publish(self._running(view, quiet is not None), self._live(view), quiet, gpus)

    def finish(
        self,
        mark: str,
        word: str,
        failed: str = "",
        *,
        began: float | None = None,
        startup: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """The final form. `began`: seconds until user code ran, if that is known. `startup`:
        seconds that first uses took in it, by name."""
        self._begun_after = began or 0.0
        self._startup = startup
        seconds = time.monotonic() - self._started
        parts = [f"{mark} {failed or self._who()}", f"{word} {duration(seconds)}"]
        if failed:
            parts.insert(1, self._who())
        if began is not None:
            parts.append(self._start())
        self._final = [*parts, *self._notes()]
        self._publish(self._final, [])

    def look(self) -> None:
        """Takes what is new of the runs of this line and of all others."""
        if self.run is not None:
            self.run.look()

    def lacks_link(self) -> bool:
        """Whether the call was quicker than the store, so that its run was not known yet at the
        last look."""
        run = self.run
        return run is not None and self.host.rich and not run.known and run.error is None

    def settled(self) -> bool:
        """Whether nothing can change any more about the run, by the last look."""
        return self.run is None or not self.host.rich or self.run.over

    def await_news(self, limit_s: float) -> None:
        """Blocks until there may be news of the run, `limit_s` seconds at most."""
        if self.run is not None:
            self.run.wait(limit_s)

    def show_link(self) -> None:
        """The final form again, with the run that is known by now."""
        self._publish(self._final, [])

    def _who(self) -> str:
        return f"{self.ranks} {'rank' if self.ranks == 1 else 'ranks'} · {self.device}"

    def _notes(self) -> list[str]:
        return [self.note] if self.note else []

    def _running(self, view: dict[str, Any] | None, quiet: bool) -> list[str]:
        seconds = time.monotonic() - self._started
        parts = [f"● {self._who()}"]
        if self._ready_after is None:
            parts.append(f"starting: the first call imports torch, {duration(seconds)}")
            return [*parts, *self._notes()]
        parts.append(self._start())
        if view is not None and view["pressure"] in _PRESSURE:
            parts.append(_PRESSURE[view["pressure"]])
        elif view is not None and "raised" in view["states"]:
            parts.append("a rank failed; the others get a moment to end by themselves")
        elif view is not None and "returned" in view["states"]:
            done = view["states"].count("returned")
            parts.append(f"{done} of {self.ranks} done")
        if quiet:
            parts.append(f"running since {self._clock}")
        elif seconds >= 1:
            parts.append(f"running {duration(seconds)}")
        return [*parts, *self._notes()]

    def _start(self) -> str:
        """`warm 3 ms`, or `cold 6.1 s: import 2.2 s, CUDA 900 ms, NCCL 2.4 s`: from the call to the
        user's first line, and what user code then waited for where it began something."""
        told = {name: s for name, s in self._startup.items() if s >= WORTH_TELLING}
        parts = [f"{name} {duration(s)}" for name, s in told.items()]
        if self.warm:
            warm = f"warm {duration(self._begun_after)}" if self._begun_after else "warm"
            return ", ".join([warm, *parts])
        until_begun = max(self._begun_after, self._ready_after or 0.0)
        imports = self.imports()
        if self._ready_after is not None:
            imports = min(imports, self._ready_after)  # they may have begun before the call
        if 0 < imports <= until_begun:
            parts.insert(0, f"import {duration(imports)}")
        why = f": {', '.join(parts)}" if parts else ""
        return f"cold {duration(until_begun + sum(told.values()))}{why}"

    def _live(self, view: dict[str, Any] | None) -> list[str]:
        if view is None:
            return []
        live = [f"[{ranks}] {text}" if self.ranks > 1 else text for ranks, text in view["live"]]
        if view["unshown"]:
            more = (
                f"… {view['unshown']:,} lines more, all in the log (%distributed logs); the last:"
            )
            live += [more, *view["newest"]]
        return [_COLOUR.sub("", line).rstrip("\n")[:_LONGEST] for line in live]

    def _run_forms(self) -> tuple[str, str]:
        """The run's link as text and as HTML; "" if there is none."""
        if self.run is None:
            return "", ""
        text, rich = _link_forms(self.run.info())
        trouble = self.run.error
        if trouble:
            text = f"{text} · {trouble}" if text else trouble
            rich = f"{rich} · {html.escape(trouble)}" if rich else html.escape(trouble)
        return text, rich

    def _publish(
        self,
        parts: list[str],
        live: list[str],
        quiet: Report | None = None,
        gpus: Report | None = None,
    ) -> None:
        text_run, html_run = self._run_forms()
        text = " · ".join([*parts, *([text_run] if text_run else [])])
        rich = " · ".join([*map(html.escape, parts), *([html_run] if html_run else [])])
        body = f'<div role="status" style="font-size:90%;opacity:.85">{rich}</div>'
        if live:
            bars = html.escape("\n".join(live))
            body += f'<pre style="font-size:90%;margin:0;white-space:pre-wrap">{bars}</pre>'
            text += "".join("\n" + line for line in live)
        for known in (quiet, gpus):
            if known is not None:
                body += _folded(known.line, known.details)
                text += f"\n{known.line}"
        self._send({"text/plain": text, "text/html": body})
        if quiet is not None and not self.host.rich and not self._told:
            # A script has no line to update, and somebody may wait in front of it.
            self._told = True
            lines = "\n".join([quiet.line, *quiet.details, ""])
            self.host.stream(self.parent, "stderr", lines.encode(errors="replace"))

    def _send(self, data: dict[str, Any]) -> None:
        with self._lock:
            if data == self._shown:
                return
            kind = "display_data" if self._shown is None else "update_display_data"
            self._shown = data
            message = {"data": data, "metadata": {}, "transient": {"display_id": self._id}}
            if self.host.rich:
                self.host.message(self.parent, kind, message)


def _folded(line: str, details: Sequence[str]) -> str:
    more = html.escape("\n".join(details))
    return (
        f'<details style="font-size:90%"><summary>{html.escape(line)}</summary>'
        f'<pre style="margin:0;white-space:pre-wrap">{more}</pre></details>'
    )


def _link_forms(info: RunInfo | None) -> tuple[str, str]:
    if info is None:
        return "", ""
    if info.url:
        link = html.escape(info.url, quote=True)
        name = html.escape(info.name)
        return (
            f"MLflow run {info.name}: {info.url}",
            f'MLflow run <a href="{link}" target="_blank" rel="noopener">{name}</a>',
        )
    command = info.open_command or ""
    return (
        f"MLflow run {info.name} ({info.run_id}); to see it: {command}",
        f'MLflow run <b title="{info.run_id}">{html.escape(info.name)}</b> '
        '<details style="display:inline-block"><summary>how to see it</summary>'
        f"<code>{html.escape(command)}</code></details>",
    )


def duration(seconds: float) -> str:
    """`3 ms`, `2.4 s`, `3 min 20 s`, `2 h 05 min`."""
    if seconds < 1:
        return f"{max(1, round(seconds * 1000))} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
