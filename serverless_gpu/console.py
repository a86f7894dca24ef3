"""Lines of ranks on the kernel's own stderr, so that a notebook that runs in CI is not silent."""

from __future__ import annotations

import contextlib
import os
import re
import sys

_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
#: A line that never ends is written in parts of this many characters.
_LONGEST = 64 << 10


class Console:
    """Whole lines, without colours, each with its cell: `In [3] [0-7] epoch 1`. Progress bars leave
    their last state, as in the cell.

    Threads: one at a time.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._begun: dict[tuple[int, str], str] = {}

    def write(self, call: int, cell: int | None, stream: str, text: str) -> None:
        """Takes text of a call; what has no line end yet waits for it."""
        begun = self._begun.pop((call, stream), "")
        *lines, rest = (begun + text).split("\n")
        if len(rest) > _LONGEST:
            lines, rest = [*lines, rest], ""
        if rest:
            self._begun[call, stream] = rest
        self._put(cell, lines)

    def finish(self, call: int, cell: int | None) -> None:
        """Writes what a call has begun."""
        for key in [key for key in self._begun if key[0] == call]:
            self._put(cell, [self._begun.pop(key)])

    def _put(self, cell: int | None, lines: list[str]) -> None:
        if not lines or self._fd < 0:
            return
        before = f"In [{cell}] " if cell is not None else ""
        data = "".join(f"{before}{_COLOUR.sub('', line)}\n" for line in lines)
        view = memoryview(data.encode(errors="replace"))
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError:
            self._fd = -1  # nobody reads it any more; that is no reason to end a call


def say(line: str) -> None:
    """Writes a line to the stderr that the process started with, if it is our kernel."""
    kernel = sys.modules.get("serverless_gpu.kernel")
    if line and kernel is not None and kernel.in_kernel():
        with contextlib.suppress(OSError):
            os.write(int(kernel.original_stderr_fd()), f"serverless-gpu: {line}".encode())


def find() -> Console | None:
    """The console, if `SERVERLESS_GPU_CONSOLE` or `CI` asks for it. None where stderr is the output
    anyway, as in a script."""
    wanted = os.environ.get("SERVERLESS_GPU_CONSOLE", os.environ.get("CI", ""))
    kernel = sys.modules.get("serverless_gpu.kernel")
    if wanted.strip().lower() in ("", "0", "false", "no", "off"):
        return None
    if kernel is None or not kernel.in_kernel():
        return None
    return Console(int(kernel.original_stderr_fd()))
