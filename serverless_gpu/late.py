"""Lines that ranks print when the cell they belong to is over.

Front ends of a Jupyter server show them in their cell. Who executes a notebook without one, as
nbconvert and papermill do, listens to one cell at a time and drops them: so they are counted, and
it is said where they are.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


class LateLines:
    """Threads: one at a time."""

    def __init__(self) -> None:
        self._lines: dict[int, int] = {}  # not told of yet, by call
        self._cells: dict[int, int | None] = {}  # the cell's number, by call

    def add(self, call: int, cell: int | None, text: bytes) -> None:
        self._lines[call] = self._lines.get(call, 0) + text.count(b"\n")
        self._cells[call] = cell

    def note(self, folder: Callable[[], Path]) -> str:
        """For the next status line: `3 late lines of cell 4 are in FOLDER`; "" if there are none.
        They are told of once. `folder`: of all logs."""
        if not any(self._lines.values()):
            return ""
        logs = folder()
        where = logs / f"call-{max(self._lines)}" if len(self._lines) == 1 else logs
        note = f"{self._count()} {self._verb()} in {where}"
        self._lines, self._cells = {}, {}
        return note

    def farewell(self) -> str:
        """The same when there is no next one, and the logs go; "" if there are none."""
        if not any(self._lines.values()):
            return ""
        return (
            f"{self._count()} came when that was over, so the notebook lacks them; "
            "with SERVERLESS_GPU_CONSOLE=1 they are shown here\n"
        )

    def _count(self) -> str:
        count = sum(self._lines.values())
        cells = sorted({cell for cell in self._cells.values() if cell is not None})
        word = "line" if count == 1 else "lines"
        whose = f" of cell {', '.join(map(str, cells))}" if cells else ""
        return f"{count} late {word}{whose}"

    def _verb(self) -> str:
        return "is" if sum(self._lines.values()) == 1 else "are"
