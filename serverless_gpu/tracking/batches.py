"""What ranks log on its way into a tracking store; what the store does not take is kept.

A store that is away costs the ranks nothing: after a moment of patience its batches go to a file
(spool.py), the store is asked again every few seconds, and gets the file when it is back.
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serverless_gpu.tracking.packets import Log, TagRow
from serverless_gpu.tracking.pending import Distinct, Pending
from serverless_gpu.tracking.replay import Replayed, replay
from serverless_gpu.tracking.spool import Spool
from serverless_gpu.tracking.store import pack_metric, unpack_metric
from serverless_gpu.tracking.trouble import (
    impatient,
    in_vain,
    one_line,
    refused,
    replay_command,
    why,
)
from serverless_gpu.tracking.url import without_credentials

PROBE_S = 5.0  # for a store that was away to answer
SLICE_S = 1.0  # of writing what was kept, before ranks' questions are answered again

_PAUSES_S = (0.2, 0.4, 0.8)  # between tries before a store is away: sqlite may be locked
_RETRY_FIRST_S, _RETRY_LONGEST_S = 2.0, 30.0
_PATIENCE_S = 1.0  # a try that took longer is the last
_AT_ONCE_S = 0.5  # since the last try, at least


@dataclass
class _Away:
    """A store that does not answer, or does not let us in."""

    pause: float = _RETRY_FIRST_S
    failed_at: float = 0.0  # monotonic seconds, of the last try
    retry_at: float = 0.0


class BatchWriter:
    """Writes in batches; patient with a store that is away, strict with data it refuses.

    Threads: one; but save_rest() may be called in another when that one is stuck for good, and
    ``hurry`` be set by any: from then on nothing is tried twice.
    """

    def __init__(
        self,
        store_of: Callable[[str], Any],
        hurry: threading.Event,
        make_spool: Callable[[str], Spool] = Spool,
    ) -> None:
        self._store_of = store_of
        self._hurry = hurry
        self._make_spool = make_spool
        self._distinct = Distinct()
        self._lost: dict[str, list[str]] = {}
        self._waiting: dict[tuple[str, str], Pending] = {}
        self._away: dict[str, _Away] = {}
        self._spools: dict[str, Spool] = {}
        self._why: dict[str, str] = {}  # why something is kept, the first cause
        self._aside: dict[str, str] = {}  # what is told once about a file that is left to the user
        self._held: collections.Counter[str] = collections.Counter()

    # ---- what ranks log

    def write(self, items: Iterable[Log]) -> None:
        """Writes all items; each run's in their order. Never raises: see trouble, take_error."""
        for uri, run_id, rows, tags in items:
            pending = self._waiting.setdefault((uri, run_id), Pending())
            for row in rows:
                stamp = self._distinct.timestamp(run_id, row)
                pending.metrics.append(unpack_metric((*row[:2], stamp, *row[3:])))
            pending.tags.update(tags)
        for (uri, run_id), pending in list(self._waiting.items()):
            while any(batch := pending.batch()):
                self._write_one(uri, run_id, *batch)
                pending.done(*batch)
            del self._waiting[(uri, run_id)]

    def write_params(self, uri: str, run_id: str, params: list[Any]) -> None:
        """Errors: what the store raises because it refuses them."""
        if uri not in self._away:
            store = self._store_of(uri)
            try:
                if len(params) == 1:
                    return store.log_param(run_id, params[0])  # type: ignore[no-any-return]
                return store.log_batch(run_id, [], params, [])  # type: ignore[no-any-return]
            except Exception as error:
                if refused(error):
                    raise
                self.failed(uri, error)
        self.keep(uri, log=[run_id, [], [[param.key, param.value] for param in params], []])

    def end(self, uri: str, run_id: str, status: str, tags: dict[str, str], at: int) -> None:
        """``at`` in ms. Errors: what the store raises because it refuses the end."""
        from mlflow.entities import RunStatus

        self.write([(uri, run_id, [], list(tags.items()))])
        if uri not in self._away:
            number = RunStatus.from_string(status)
            try:
                self._store_of(uri).update_run_info(run_id, number, at, None)
                return
            except Exception as error:
                if refused(error):
                    raise
                self.failed(uri, error)
        self.keep(uri, end=[run_id, status, at])

    def take_error(self, run_ids: Iterable[str]) -> str | None:
        """One line about what these runs have lost since the last call, or None."""
        lost = [text for run_id in run_ids for text in self._lost.pop(run_id, [])]
        if not lost:
            return None
        return f"MLflow: {len(lost)} metrics or tags could not be written: {lost[0]}"

    # ---- a store that is away

    def away(self, uri: str) -> bool:
        return uri in self._away

    def unsettled(self) -> bool:
        """Whether something has to be tried again later, see retry()."""
        return bool(self._away) or any(spool.path for spool in self._spools.values())

    def failed(self, uri: str, error: Exception) -> None:
        """The store has not done something. If it is away, nobody asks it for a while."""
        self._why.setdefault(uri, why(uri, error))
        if refused(error):
            return
        away = self._away.setdefault(uri, _Away())
        away.failed_at = time.monotonic()
        away.retry_at = away.failed_at + away.pause
        away.pause = min(2 * away.pause, _RETRY_LONGEST_S)

    def probe(self, uri: str) -> None:
        """Asks the store anything, to see whether it is away."""
        try:
            with impatient(PROBE_S):
                self._store_of(uri).search_experiments(max_results=1)
        except Exception as error:
            self.failed(uri, error)

    def reason(self, uri: str) -> str:
        """Why the store is away, in a few words."""
        return self._why.get(uri, f"{without_credentials(uri)} is away")

    def keep(self, uri: str, **record: Any) -> None:
        """Keeps a record (spool.py) for a store. Never raises: what cannot be kept is lost."""
        try:
            self.spool(uri).keep(**record)
        except OSError as error:
            run_id = str(next(iter(record.values()))[0]) if "copy" not in record else ""
            self._lost.setdefault(run_id, []).append(one_line(error))

    def keep_file(self, uri: str, run_id: str, folder: str, path: Path) -> None:
        """Keeps a copy of an artifact. Errors: OSError."""
        copy = self.spool(uri).keep_file(path)
        self.keep(uri, artifact=[run_id, folder, str(copy)])

    def spool(self, uri: str) -> Spool:
        return self._spools.get(uri) or self._spools.setdefault(uri, self._make_spool(uri))

    def hold(self, uri: str, count: int) -> None:
        """With +1, what is kept for the store is not written until there is a -1 for each."""
        self._held[uri] += count

    def take_notice(self, uri: str) -> str | None:
        """One line about a file that the user has to see to; once."""
        return self._aside.pop(uri, None)

    def trouble(self, uri: str) -> str | None:
        """One line while something is kept for the store."""
        path = self.spool(uri).path
        if path is None:
            return None
        reason = self._why.get(uri, "the store was away")
        return f"MLflow: {reason}; kept until the store is back, or you run: {replay_command(path)}"

    def retry(self, now: float, *, at_once: bool = False) -> dict[str, Replayed]:
        """Asks stores that are away again, when their time has come or ``at_once``; one that is
        back gets what was kept. Takes PROBE_S and SLICE_S for each. Gives what was written."""
        written = {}
        for uri in {*self._away, *(uri for uri, spool in self._spools.items() if spool.path)}:
            away = self._away.get(uri)
            due = away.failed_at + _AT_ONCE_S if away and at_once else away and away.retry_at
            if self._held[uri] or (due and due > now):
                continue
            try:
                written[uri] = self._drain(uri)
            except Exception as error:
                self.failed(uri, error)
            else:
                self._away.pop(uri, None)
        return written

    def save_rest(self, logs: Iterable[Log]) -> None:
        """The last thing before the process ends: what is in memory, and `logs`, into files."""
        for (uri, run_id), pending in list(self._waiting.items()):
            rows = [pack_metric(metric) for metric in pending.metrics[pending.written :]]
            if rows or pending.tags:
                self.keep(uri, log=[run_id, rows, [], list(pending.tags.items())])
        for uri, run_id, metrics, tags in logs:
            self.keep(uri, log=[run_id, metrics, [], tags])

    def _drain(self, uri: str) -> Replayed:
        spool = self.spool(uri)
        with impatient(PROBE_S):
            if spool.path is None:
                self._store_of(uri).search_experiments(max_results=1)
                done = Replayed(complete=True)
            else:
                done = self._replay(uri, spool, spool.path)
        for text in done.refused:
            self._lost.setdefault(text.split(":")[0].removeprefix("run "), []).append(text)
        if done.complete:
            spool.discard(stand_in=not done.refused)
            self._why.pop(uri, None)
        return done

    def _replay(self, uri: str, spool: Spool, path: Path) -> Replayed:
        try:
            return replay(path, uri, SLICE_S)
        except Exception as error:
            if not refused(error):
                raise
        # The store is there and will not have a whole run, so the user has to do something first.
        spool.set_aside()
        reason = self._why.get(uri, uri)
        self._aside[uri] = f"MLflow: {reason}; kept until you run: {replay_command(path)}"
        return Replayed()

    # ---- one batch

    def _write_one(self, uri: str, run_id: str, metrics: list[Any], tags: list[TagRow]) -> None:
        pauses = iter(_PAUSES_S)
        while uri not in self._away:
            began = time.monotonic()
            try:
                return self._log_batch(uri, run_id, metrics, tags)
            except Exception as error:
                if refused(error):
                    return self._write_halves(uri, run_id, metrics, tags, error)
                tired = self._hurry.is_set() or time.monotonic() - began > _PATIENCE_S
                pause = None if tired or in_vain(error) else next(pauses, None)
                if pause is None:
                    self.failed(uri, error)
                else:
                    self._hurry.wait(pause)
        self.keep(uri, log=[run_id, [pack_metric(metric) for metric in metrics], [], tags])

    def _write_halves(
        self,
        uri: str,
        run_id: str,
        metrics: list[Any],
        tags: list[TagRow],
        error: Exception,
    ) -> None:
        """A store refuses a batch whole, so look for the entry that it will not have."""
        entries = [*metrics, *tags]
        if len(entries) == 1:
            name = entries[0][0] if isinstance(entries[0], tuple) else entries[0].key
            self._lost.setdefault(run_id, []).append(f"{name}: {one_line(error)}")
            return
        middle = len(entries) // 2
        for half in (entries[:middle], entries[middle:]):
            half_metrics = [entry for entry in half if not isinstance(entry, tuple)]
            half_tags = [entry for entry in half if isinstance(entry, tuple)]
            self._write_one(uri, run_id, half_metrics, half_tags)

    def _log_batch(self, uri: str, run_id: str, metrics: list[Any], tags: list[TagRow]) -> None:
        from mlflow.entities import RunTag

        self._store_of(uri).log_batch(run_id, metrics, [], [RunTag(*tag) for tag in tags])
