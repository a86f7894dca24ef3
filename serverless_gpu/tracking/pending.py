"""What ranks have logged and no store has yet."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from serverless_gpu.tracking.packets import MetricRow, TagRow

BATCH_METRICS = 1000  # MLflow's own limits for one batch, together at most 1,000
BATCH_TAGS = 100

_REMEMBERED = 65_536


class Distinct:
    """Bumps the timestamp of a metric that equals an earlier one in run, key, step, value and
    timestamp: SQL stores drop such rows silently, and ranks that compute the same loss in the same
    millisecond are the rule."""

    def __init__(self) -> None:
        self._next_free: dict[tuple[Any, ...], int] = {}

    def timestamp(self, run_id: str, row: MetricRow) -> int:
        key, value, stamp, step = row[:4]
        first = int(stamp)
        # NaN differs from itself, yet two NaN rows are equal to a store.
        same = (run_id, key, step, "nan" if value != value else value)
        free = self._next_free.get((*same, first), first)
        while (*same, free) in self._next_free:
            free = self._next_free[(*same, free)]
        self._next_free[(*same, free)] = free + 1
        self._next_free[(*same, first)] = free + 1
        while len(self._next_free) > _REMEMBERED:
            del self._next_free[next(iter(self._next_free))]
        return free


@dataclass
class Pending:
    """Of one run: not yet in its store, and not yet in a file."""

    metrics: list[Any] = field(default_factory=list)
    tags: dict[str, str] = field(default_factory=dict)
    written: int = 0  # of the metrics

    def batch(self) -> tuple[list[Any], list[TagRow]]:
        tags = list(self.tags.items())[:BATCH_TAGS]
        return self.metrics[self.written : self.written + BATCH_METRICS - len(tags)], tags

    def done(self, metrics: list[Any], tags: list[TagRow]) -> None:
        self.written += len(metrics)
        for key, value in tags:
            if self.tags.get(key) == value:
                del self.tags[key]
