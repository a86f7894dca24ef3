"""Something to say about a call while it runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Report:
    """line: all of it in short. details: a line for each thing, shown one click away."""

    line: str
    details: tuple[str, ...]
