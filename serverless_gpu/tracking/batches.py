"""Metrics and tags on their way from the ranks' packets into a tracking store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from serverless_gpu.tracking.packets import Log, MetricRow, TagRow
from serverless_gpu.tracking.store import unpack_metric

BATCH_METRICS = 1000  # MLflow's own limits for one batch, together at most 1,000
BATCH_TAGS = 100
OUTAGE_LIMIT_S = 600.0  # how long a store may be away before what waits for it is given up

_PAUSE_FIRST_S, _PAUSE_LONGEST_S = 0.2, 5.0
_REMEMBERED = 65_536
_NEVER_RIGHT = (
    *("INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_DOES_NOT_EXIST"),
    *("INVALID_STATE", "PERMISSION_DENIED", "UNAUTHENTICATED"),
)


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


class BatchWriter:
    """Writes in batches; patient with a store that is away, strict with data it refuses.

    Threads: write() in one thread. ``hurry`` may be set by any: from then on nothing is tried
    twice.
    """

    def __init__(self, store_of: Callable[[str], Any], hurry: threading.Event) -> None:
        self._store_of = store_of
        self._hurry = hurry
        self._distinct = Distinct()
        self._lost: dict[str, list[str]] = {}

    def write(self, items: Iterable[Log]) -> None:
        """Writes all items; each run's in their order. Never raises: see take_error."""
        by_run: dict[tuple[str, str], tuple[list[Any], dict[str, str]]] = {}
        for uri, run_id, rows, tags in items:
            metrics, latest = by_run.setdefault((uri, run_id), ([], {}))
            for row in rows:
                stamp = self._distinct.timestamp(run_id, row)
                metrics.append(unpack_metric((*row[:2], stamp, *row[3:])))
            latest.update(tags)
        for (uri, run_id), (metrics, latest) in by_run.items():
            waiting = list(latest.items())
            while metrics or waiting:
                tag_rows, waiting = waiting[:BATCH_TAGS], waiting[BATCH_TAGS:]
                room = BATCH_METRICS - len(tag_rows)
                part, metrics = metrics[:room], metrics[room:]
                self._write_one(uri, run_id, part, tag_rows)

    def take_error(self, run_ids: Iterable[str]) -> str | None:
        """One line about what these runs have lost since the last call, or None."""
        lost = [text for run_id in run_ids for text in self._lost.pop(run_id, [])]
        if not lost:
            return None
        return f"MLflow: {len(lost)} metrics or tags could not be written: {lost[0]}"

    def _write_one(self, uri: str, run_id: str, metrics: list[Any], tags: list[TagRow]) -> None:
        give_up = time.monotonic() + OUTAGE_LIMIT_S
        pause = _PAUSE_FIRST_S
        while True:
            try:
                return self._log_batch(uri, run_id, metrics, tags)
            except Exception as error:
                refused = getattr(error, "error_code", "") in _NEVER_RIGHT
                if refused or self._hurry.is_set() or time.monotonic() > give_up:
                    return self._write_halves(uri, run_id, metrics, tags, error, refused)
            self._hurry.wait(pause)
            pause = min(2 * pause, _PAUSE_LONGEST_S)

    def _write_halves(
        self,
        uri: str,
        run_id: str,
        metrics: list[Any],
        tags: list[TagRow],
        error: Exception,
        refused: bool,
    ) -> None:
        """A store refuses a batch whole, so look for the entry that it will not have."""
        entries = [*metrics, *tags]
        if not refused or len(entries) == 1:
            text = one_line(error)
            names = [tag[0] if isinstance(tag, tuple) else tag.key for tag in entries]
            self._lost.setdefault(run_id, []).extend(f"{name}: {text}" for name in names)
            return
        middle = len(entries) // 2
        for half in (entries[:middle], entries[middle:]):
            half_metrics = [entry for entry in half if not isinstance(entry, tuple)]
            half_tags = [entry for entry in half if isinstance(entry, tuple)]
            self._write_one(uri, run_id, half_metrics, half_tags)

    def _log_batch(self, uri: str, run_id: str, metrics: list[Any], tags: list[TagRow]) -> None:
        from mlflow.entities import RunTag

        self._store_of(uri).log_batch(run_id, metrics, [], [RunTag(*tag) for tag in tags])


def one_line(error: BaseException) -> str:
    """The first line of an error's text, short enough for a status line."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:300]
