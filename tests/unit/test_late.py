"""What is said of lines that came when their cell was over."""

from __future__ import annotations

from pathlib import Path

from serverless_gpu.late import LateLines

LOGS = Path("/logs")


def test_late_lines_of_a_call_are_told_once_with_their_cell_and_their_log() -> None:
    late = LateLines()
    assert late.note(lambda: LOGS) == ""
    late.add(7, 4, b"[0] one\n[1] one\n")
    late.add(7, 4, b"[0] two\n")
    assert late.note(lambda: LOGS) == "3 late lines of cell 4 are in /logs/call-7"
    assert late.note(lambda: LOGS) == ""


def test_those_of_several_cells_are_told_together() -> None:
    late = LateLines()
    late.add(7, 4, b"a\n")
    late.add(9, 12, b"b\n")
    assert late.note(lambda: LOGS) == "2 late lines of cell 4, 12 are in /logs"


def test_what_nobody_was_told_of_is_told_at_the_end() -> None:
    late = LateLines()
    assert late.farewell() == ""
    late.add(7, None, b"a\n")
    assert late.farewell().startswith("1 late line came when that was over")
