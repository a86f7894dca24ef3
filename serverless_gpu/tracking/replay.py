"""Writes what was kept in a spool (spool.py) into its store; whatever is written twice counts once.

Used by the tracker when a store is back, and by ``serverless-gpu mlflow-replay FILE``.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from serverless_gpu.tracking import spool
from serverless_gpu.tracking.making import experiment_id
from serverless_gpu.tracking.pending import BATCH_METRICS, BATCH_TAGS
from serverless_gpu.tracking.replay_models import COPIED, Models
from serverless_gpu.tracking.store import pack_metric, unpack_inputs, unpack_metric
from serverless_gpu.tracking.trouble import one_line, refused, towards, unreachable, why
from serverless_gpu.tracking.url import without_credentials

_PARENT = "mlflow.parentRunId"
_END_NUMBER = {"FINISHED": 3, "FAILED": 4, "KILLED": 5}


@dataclass
class Replayed:
    """What replay() has done. `copied`: (run in the stand-in store, run in the store)."""

    values: int = 0
    copied: dict[str, str] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)  # the store will never take these
    complete: bool = False


def replay(path: Path, uri: str, limit_s: float | None = None) -> Replayed:
    """Writes records in their order, for about `limit_s` seconds, and notes in the file how far it
    has come. ``complete`` once nothing is left.

    Errors: what the store raises if it is (still) away; OSError.
    """
    done = Replayed()
    writer = _Writer(uri, done)
    deadline = None if limit_s is None else time.monotonic() + limit_s
    with towards(uri):
        for offset, record in spool.records(path):
            writer.write(record)
            spool.mark_written(path, offset)
            if deadline is not None and time.monotonic() > deadline:
                return done
    done.complete = True
    return done


def command(path: Path, to: str | None) -> int:
    """``serverless-gpu mlflow-replay``: the exit status; the file goes once all is written."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    try:
        uri = to or spool.uri_of(path)
    except (spool.SpoolError, OSError) as error:
        print(f"serverless-gpu: {error}", file=sys.stderr)
        return 1
    try:
        held = spool.claim(path)
    except OSError as error:
        print(f"serverless-gpu: {error}", file=sys.stderr)
        return 1
    try:
        done = replay(path, uri)
    except Exception as error:  # whatever MLflow, requests or a database raise
        print(f"serverless-gpu: {why(uri, error)}; {path} stays", file=sys.stderr)
        return 1
    finally:
        os.close(held)
    for text in done.refused:
        print(f"refused by the store: {text}", file=sys.stderr)
    runs = f", {len(done.copied)} whole runs" if done.copied else ""
    print(f"Written to {without_credentials(uri)}: {done.values} values{runs}.")
    if done.refused:
        return 1
    spool.remove(path, stand_in=True)
    return 0


class _Writer:
    def __init__(self, uri: str, done: Replayed) -> None:
        from mlflow import MlflowClient

        self._uri = uri
        self._client = MlflowClient(tracking_uri=uri)
        self._store: Any = self._client._tracking_client.store
        self._done = done

    def write(self, record: dict[str, Any]) -> None:
        if "log" in record:
            self._log(*record["log"])
        elif "inputs" in record:
            run_id, datasets, models = record["inputs"]
            inputs = unpack_inputs(datasets, models)
            self._try(run_id, functools.partial(self._store.log_inputs, run_id, **inputs), count=1)
        elif "end" in record:
            run_id, status, at = record["end"]
            self._try(run_id, self._store.update_run_info, run_id, _END_NUMBER[status], at, None)
        elif "artifact" in record:
            run_id, folder, path = record["artifact"]
            try:
                self._client.log_artifact(run_id, path, folder or None)
            except Exception as error:  # a store may take metrics and no artifacts
                if unreachable(error):
                    raise
                self._done.refused.append(f"run {run_id}: {Path(path).name}: {one_line(error)}")
        elif "copy" in record:
            self._copy(record["copy"])

    def _log(self, run_id: str, rows: list[Any], params: list[Any], tags: list[Any]) -> None:
        from mlflow.entities import Param, RunTag

        metrics = [unpack_metric(tuple(row)) for row in rows]
        for at in range(0, len(metrics), BATCH_METRICS):
            part = metrics[at : at + BATCH_METRICS]
            self._try(run_id, self._store.log_batch, run_id, part, [], [], count=len(part))
        for at in range(0, max(len(params), len(tags)), BATCH_TAGS):
            some = [Param(*param) for param in params[at : at + BATCH_TAGS]]
            others = [RunTag(*tag) for tag in tags[at : at + BATCH_TAGS]]
            count = len(some) + len(others)
            self._try(run_id, self._store.log_batch, run_id, [], some, others, count=count)

    def _try(self, run_id: str, method: Any, *args: Any, count: int = 0) -> None:
        try:
            method(*args)
        except Exception as error:
            if not refused(error):
                raise
            self._done.refused.append(f"run {run_id}: {one_line(error)}")
        else:
            self._done.values += count

    def _copy(self, asked: dict[str, Any]) -> None:
        """A run and what is nested in it, from the stand-in store."""
        from mlflow import MlflowClient

        source = MlflowClient(tracking_uri=asked["store"])
        top = source.get_run(asked["run_id"])
        name = asked["experiment"]
        experiment = asked["experiment_id"] or experiment_id(self._client, self._uri, name)
        target = self._copy_run(source, top, experiment, asked["parent_run_id"], asked["into"])
        inside = f"tags.`{_PARENT}` = '{top.info.run_id}'"
        for child in source.search_runs([top.info.experiment_id], inside):
            self._copy_run(source, child, experiment, target, None)

    def _copy_run(
        self, source: Any, run: Any, experiment: str, parent: str | None, into: str | None
    ) -> str:
        tags = {key: value for key, value in run.data.tags.items() if key != _PARENT}
        target = tags.pop(COPIED, None) or into
        if parent:
            tags[_PARENT] = parent
        if target is None:
            made = self._client.create_run(
                experiment, start_time=run.info.start_time, run_name=run.info.run_name
            )
            target = str(made.info.run_id)
        source.set_tag(run.info.run_id, COPIED, target)
        models = Models(source, run, self._client, target)
        models.copy(experiment)
        rows = [
            models.row(pack_metric(metric))
            for key in run.data.metrics
            for metric in source.get_metric_history(run.info.run_id, key)
        ]
        told = [(key, models.tag(key, value)) for key, value in tags.items()]
        self._log(target, rows, list(run.data.params.items()), told)
        if run.inputs is not None and run.inputs.dataset_inputs:
            self._store.log_inputs(target, run.inputs.dataset_inputs)
        folder = run.info.artifact_uri.removeprefix("file://")
        if os.path.isdir(folder):
            self._client.log_artifacts(target, folder)
        if run.info.end_time is not None:
            self._client.set_terminated(target, run.info.status, run.info.end_time)
        self._done.copied[run.info.run_id] = target
        return target
