"""What a cell does not show but keeps: ``%%capture``, ``redirect_stdout``.

Both put something else into the place of ``sys.stdout`` or of the shell's display publisher, which
messages to a cell pass by. So what a call shows is given to what stood there when it began.
"""

from __future__ import annotations

import io
import sys
from typing import Any

from .hosts import Host

_KEPT = (io.StringIO, io.TextIOWrapper)  # no other stream: it may lead to the cell by itself


def around(host: Host) -> Host:
    """The host of a call that begins now: `host`, or what captures part of what it would show."""
    if not host.rich:
        return host  # a script writes to what sys.stdout is
    streams = {"stdout": sys.stdout, "stderr": sys.stderr}
    kept = {name: each for name, each in streams.items() if isinstance(each, _KEPT)}
    displays = _displays()
    return _Capturing(host, kept, displays) if kept or displays is not None else host


class _Capturing:
    """A host for a call whose output is captured. Threads: as the host it stands before."""

    def __init__(
        self, host: Host, streams: dict[str, Any], displays: list[dict[str, Any]] | None
    ) -> None:
        self._host = host
        self._streams = streams
        self._displays = displays
        self.colour = host.colour and not streams
        self.rich = host.rich
        self.clears = False  # what a file has been given stays there
        self.bytes_per_second = host.bytes_per_second
        self.shown_bytes = host.shown_bytes
        self.shows_late = host.shows_late

    def capture(self) -> Any:
        return self._host.capture()

    def stream(self, parent: Any, name: str, text: bytes) -> None:
        stream = self._streams.get(name)
        if stream is None or stream.closed:  # a line that came after the file was closed
            self._host.stream(parent, name, text)
        else:
            stream.write(text.decode(errors="replace"))

    def message(self, parent: Any, message_type: str, content: dict[str, Any]) -> None:
        if self._displays is None:
            self._host.message(parent, message_type, content)
            return
        if message_type == "update_display_data":
            shown = _find(self._displays, content["transient"]["display_id"])
            if shown is None:  # of an earlier cell
                self._host.message(parent, message_type, content)
            else:
                shown.update(data=content["data"], metadata=content["metadata"])
            return
        self._displays.append({**content, "update": False})


def _displays() -> list[dict[str, Any]] | None:
    """Where the shell's displays are kept at the moment; None if they are shown."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    module = sys.modules.get("IPython.core.displaypub")
    publisher = getattr(shell, "display_pub", None)
    if module is None or not isinstance(publisher, module.CapturingDisplayPublisher):
        return None
    outputs: list[dict[str, Any]] = publisher.outputs
    return outputs


def _find(displays: list[dict[str, Any]], display_id: str) -> dict[str, Any] | None:
    for shown in displays:
        if (shown.get("transient") or {}).get("display_id") == display_id:
            return shown
    return None
