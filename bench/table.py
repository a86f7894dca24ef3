"""What was measured, and the one table that shows it."""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_BYTES = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_WIDTHS = (34, 30, 42, 24)


@dataclass(frozen=True)
class Figure:
    """Values of one quantity, measured n times. `unit`: "s", "B" (bytes), "B/s", "x" (a ratio)."""

    values: tuple[float, ...]
    unit: str = "s"
    note: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def p90(self) -> float:
        """The value that nine of ten do not exceed (nearest rank)."""
        ordered = sorted(self.values)
        return ordered[math.ceil(0.9 * len(ordered)) - 1]

    def __str__(self) -> str:
        count = len(self.values)
        spread = f"p90 {quantity(self.p90, self.unit)}, n {count}" if count > 1 else "n 1"
        note = f"; {self.note}" if self.note else ""
        return f"{quantity(self.median, self.unit)} ({spread}){note}"


@dataclass(frozen=True)
class Line:
    """One line of the table. `ours` and the rivals are figures, or words where there is none."""

    work: str
    ours: Figure | str
    rivals: Mapping[str, Figure | str] = field(default_factory=dict)
    goal: str = ""
    met: bool | None = None  # None: there is no goal, or nothing to hold against it

    @property
    def verdict(self) -> str:
        return "" if self.met is None else "met" if self.met else "MISSED"

    def to_json(self) -> dict[str, Any]:
        return {
            "work": self.work,
            "ours": _to_json(self.ours),
            "rivals": {name: _to_json(rival) for name, rival in self.rivals.items()},
            "goal": self.goal,
            "met": self.met,
        }


def figure(values: Iterable[float], unit: str = "s", note: str = "") -> Figure:
    return Figure(tuple(values), unit, note)


def quantity(value: float, unit: str) -> str:
    """`0.83 ms`, `1.45 s`, `367 MB`, `1.10x`."""
    if unit == "x":
        return f"{value:.2f}x"
    scales = _SECONDS if unit == "s" else _BYTES
    rest = "/s" if unit == "B/s" else ""
    size, name = next((s for s in scales if abs(value) >= s[0]), scales[-1])
    return f"{_three_digits(value / size)} {name}{rest}"


def render(lines: Sequence[Line]) -> str:
    """The table as plain text; long cells are wrapped."""
    out = [_joined(["work", "ours", "rivals", "goal", "verdict"]), _joined(["-" * 7] * 5)]
    for line in lines:
        rivals = [f"{name}: {rival}" for name, rival in line.rivals.items()]
        columns = [[line.work], [str(line.ours)], rivals, [line.goal]]
        wrapped = [
            [piece for text in column for piece in textwrap.wrap(text, width)]
            for column, width in zip(columns, _WIDTHS, strict=True)
        ]
        height = max(1, *map(len, wrapped))
        verdict = [line.verdict]
        for i in range(height):
            out.append(_joined([c[i] if i < len(c) else "" for c in [*wrapped, verdict]]))
    return "\n".join(out)


def _joined(cells: Sequence[str]) -> str:
    padded = [cell.ljust(width) for cell, width in zip(cells, _WIDTHS, strict=False)]
    return "  ".join([*padded, *cells[len(_WIDTHS) :]]).rstrip()


def _three_digits(value: float) -> str:
    digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:.{digits}f}"


def _to_json(value: Figure | str) -> Any:
    if isinstance(value, str):
        return value
    return {**asdict(value), "median": value.median, "p90": value.p90, "n": len(value.values)}
