"""What `clear_output` of ranks takes away: all of the cell, or what these ranks displayed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from serverless_gpu.output import Output, Sink


class Core:
    """A pool that has the output it is given."""

    broken = False

    def __init__(self) -> None:
        self.output_fd = os.eventfd(0)
        self.events: list[tuple[int, list[int], str, bytes]] = []

    def take_output(self) -> list[tuple[int, list[int], str, bytes]]:
        taken, self.events = self.events, []
        return taken


class Screen:
    """A front end: what a cell shows, in order."""

    colour, rich, shows_late = False, True, True
    bytes_per_second, shown_bytes = 0, 1_000_000

    def __init__(self, clears: bool) -> None:
        self.clears = clears
        self.shown: list[str] = ["status"]

    def capture(self) -> Any:
        return None

    def stream(self, parent: Any, name: str, text: bytes) -> None:
        self.shown.append(text.decode().strip())

    def message(self, parent: Any, message_type: str, content: dict[str, Any]) -> None:
        if message_type == "clear_output":
            self.shown.clear()
        else:
            text = str(content["data"].get("text/plain", ""))
            self.shown.append(f"{message_type}: {text}")


class Cell:
    """The cell of a call on ranks 0 and 1."""

    def __init__(self, clears: bool = True) -> None:
        self.core, self.screen = Core(), Screen(clears)
        self.output = Output(self.core, lambda: None)  # type: ignore[arg-type]
        again = lambda: self.screen.shown.append("status")  # noqa: E731
        self.sink = Sink(self.screen, None, 2, None, again, 2)
        self.output.begin(self.sink, lambda: SimpleNamespace(id=1))

    def see(self, *events: tuple[list[int], str, str]) -> list[str]:
        self.core.events = [(1, ranks, kind, text.encode()) for ranks, kind, text in events]
        self.output.drain()
        return self.screen.shown


TEXT = ([], "stdout", "line\n")
CLEAR = json.dumps({"wait": True})


@pytest.fixture
def cell() -> Iterator[Cell]:
    one = Cell()
    yield one
    one.output.close()


def test_all_ranks_at_once_clear_the_lines_and_the_status_line_stays(cell: Cell) -> None:
    assert cell.see(TEXT, ([0, 1], "clear_output", CLEAR)) == ["status"]
    assert cell.see(TEXT, TEXT) == ["status", "line", "line"]
    assert cell.see(([0, 1], "clear_output", CLEAR), TEXT) == ["status", "line"]


def test_one_rank_does_not_take_away_what_others_have_written(cell: Cell) -> None:
    assert cell.see(TEXT, ([1], "clear_output", CLEAR)) == ["status", "line"]


def test_displays_alone_are_replaced_in_place(cell: Cell) -> None:
    shown = json.dumps({"data": {"text/plain": "x"}, "metadata": {}, "transient": {}})
    display = ([0, 1], "display_data", shown)
    seen = cell.see(display, ([0, 1], "clear_output", CLEAR), display)
    assert seen == ["status", "display_data: [0-1] x", "update_display_data: [0-1] x"]


def test_a_late_clear_leaves_the_cell_as_it_was(cell: Cell) -> None:
    cell.see(TEXT)
    cell.output.cell_over()
    assert cell.see(([0, 1], "clear_output", CLEAR)) == ["status", "line"]


def test_what_cannot_be_cleared_is_kept() -> None:
    cell = Cell(clears=False)
    assert cell.see(TEXT, ([0, 1], "clear_output", CLEAR)) == ["status", "line"]
    cell.output.close()
