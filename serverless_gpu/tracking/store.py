"""The tracking store that MLflow sees in a rank.

It is duck-typed rather than a subclass: metrics and tags go to the tracker one way, after MLflow's
own validators have run here; every other method, also one that a newer MLflow adds, is asked of
the real store in the tracker.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from serverless_gpu.tracking.link import Link, TrackerGone
from serverless_gpu.tracking.packets import MetricRow, TagRow
from serverless_gpu.tracking.settings import PER_RANK_VARIABLE

_GOOD_KEYS = 4096
_MODEL_FIELDS = ("model_id", "dataset_name", "dataset_digest")


def pack_metric(metric: Any, prefix: str = "") -> MetricRow:
    """An mlflow Metric as a row of built-in types."""
    row = (prefix + metric.key, metric.value, metric.timestamp, metric.step)
    try:
        extra = (metric.model_id, metric.dataset_name, metric.dataset_digest)
    except AttributeError:  # MLflow 2
        return row
    return row if extra == (None, None, None) else row + extra


def unpack_metric(row: MetricRow) -> Any:
    """The mlflow Metric of a row."""
    from mlflow.entities import Metric

    return Metric(*row[:4], **dict(zip(_MODEL_FIELDS, row[4:], strict=False)))


def pack_inputs(datasets: list[Any] | None, models: list[Any] | None = None) -> list[list[Any]]:
    """Inputs of a run as built-in types: of each data set its fields and tags; ids of models."""
    told = [one.to_dictionary() for one in datasets or []]
    return [
        [[one["dataset"], one["tags"]] for one in told],
        [model.model_id for model in models or []],
    ]


def unpack_inputs(datasets: list[Any], models: list[str]) -> dict[str, list[Any]]:
    """What a store's log_inputs takes besides the run's id."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    told: dict[str, list[Any]] = {
        "datasets": [
            DatasetInput(Dataset(**fields), [InputTag(*tag) for tag in tags.items()])
            for fields, tags in datasets
        ]
    }
    if models:
        from mlflow.entities import LoggedModelInput

        told["models"] = [LoggedModelInput(model) for model in models]
    return told


class FanInStore:
    """One tracking URI as ranks see it, for the time of one call.

    Threads: any.
    Errors: what MLflow's store would raise, raised in the caller. When the tracker is gone there
    is one warning for the process, and this rank goes on with the real store.
    """

    def __init__(self, uri: str, link: Link, open_real: Callable[[], Any]) -> None:
        from mlflow.utils import validation
        from mlflow.utils.async_logging.run_operations import RunOperations

        self._uri = uri
        self._link = link
        per_rank = os.environ.get(PER_RANK_VARIABLE, "0").lower() not in ("", "0", "false")
        self._prefix = f"rank{link.config.rank}/" if per_rank else ""
        self._open_real = open_real
        self._validation: Any = validation  # not typed in MLflow
        self._check_metric = self._validation._validate_metric
        self._done: Any = RunOperations
        self._known: set[str] = set()
        # MLflow looks at each key anew, a third of the time of a log_metric.
        self._good_keys: set[str] = set()
        self._run_id: str | None = None  # of the call, for the day the tracker is gone
        self._alone = False

    # ---- one way

    def log_metric(self, run_id: str, metric: Any) -> None:
        key = metric.key
        plain = type(metric.value) is float and type(metric.step) is int
        if not (plain and key in self._good_keys and type(metric.timestamp) is int):
            self._check_metric(key, metric.value, metric.timestamp, metric.step)
            if len(self._good_keys) < _GOOD_KEYS:
                self._good_keys.add(key)
        self._send(run_id, [pack_metric(metric, self._prefix)], [])

    def set_tag(self, run_id: str, tag: Any) -> None:
        # Newer validators return a tag cut to the allowed length, older ones None.
        tag = self._validation._validate_tag(tag.key, tag.value) or tag
        self._send(run_id, [], [(tag.key, tag.value)])

    def log_batch(
        self, run_id: str, metrics: Sequence[Any], params: Sequence[Any], tags: Sequence[Any]
    ) -> None:
        checked = self._validation._validate_batch_log_data(metrics, params, tags)
        metrics, params, tags = checked or (metrics, params, tags)
        self._validation._validate_batch_log_limits(metrics, params, tags)
        if params:  # answered, so that a changed value raises here
            self._ask("log_batch", run_id, [], list(params), [])
        if metrics or tags:
            rows = [pack_metric(metric, self._prefix) for metric in metrics]
            self._send(run_id, rows, [(tag.key, tag.value) for tag in tags])

    def log_metric_async(self, run_id: str, metric: Any) -> Any:
        self.log_metric(run_id, metric)
        return self._done([])

    def set_tag_async(self, run_id: str, tag: Any) -> Any:
        self.set_tag(run_id, tag)
        return self._done([])

    def log_param_async(self, run_id: str, param: Any) -> Any:
        self._ask("log_param", run_id, param)
        return self._done([])

    def log_batch_async(
        self, run_id: str, metrics: Sequence[Any], params: Sequence[Any], tags: Sequence[Any]
    ) -> Any:
        self.log_batch(run_id, metrics, params, tags)
        return self._done([])

    def flush_async_logging(self) -> None:
        self._ask("!flush")

    def end_async_logging(self) -> None:
        """Nothing is queued in this process."""

    def shut_down_async_logging(self) -> None:
        """Nothing is queued in this process."""

    # ---- answered

    def call_run(self) -> Any:
        """The mlflow Run of the call, made now if it does not exist yet; None without a tracker."""
        return None if self._alone else self._ask("!run")

    def away(self, *, probe: bool) -> str | None:
        """Where files are kept if the store is away, else None. ``probe``: it is asked anew."""
        folder: str | None = self._ask("!away", probe)
        return folder

    def keep_files(self, run_id: str, copies: list[tuple[str, str]]) -> None:
        """Has files uploaded when the store is back: (folder in the run, copy) of each."""
        self._ask("!keep", run_id, copies)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if self._alone:
            return functools.partial(self._ask, name)
        is_method, value = self._ask("!attr", name)
        if not is_method:
            return value
        method = functools.partial(self._ask, name)
        self.__dict__[name] = method
        return method

    # ---- with the tracker, or alone

    def _send(self, run_id: str, metrics: list[MetricRow], tags: list[TagRow]) -> None:
        if not self._alone:
            try:
                if run_id not in self._known:  # an unknown run raises in the caller, as ever
                    self._ask("get_run", run_id)
                    self._known.add(run_id)
                return self._link.send((self._uri, run_id, metrics, tags))
            except TrackerGone as gone:
                self._go_alone(gone)
        from mlflow.entities import RunTag

        rows = [unpack_metric(row) for row in metrics]
        self._open_real().log_batch(run_id, rows, [], [RunTag(*tag) for tag in tags])

    def _ask(self, method: str, *args: Any, **kwargs: Any) -> Any:
        if not self._alone:
            try:
                value = self._link.ask(self._uri, method, args, kwargs)
            except TrackerGone as gone:
                self._go_alone(gone)
            else:
                if method in ("!run", "create_run") and self._run_id is None:
                    self._run_id = value.info.run_id
                return value
        return self._do_alone(method, *args, **kwargs)

    def _go_alone(self, reason: TrackerGone) -> None:
        self._alone = True
        self.__dict__.pop("create_run", None)
        _warn_once(f"MLflow: {reason}; ranks now write to {self._uri} directly, which is slower")

    def _do_alone(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """The real store, without what only the tracker may do: the call's run is still not ended
        by a rank and, once known, still entered rather than made again."""
        if method == "!flush":
            return None
        real = self._open_real()
        if method == "!attr":
            value = getattr(real, args[0])
            return (True, None) if callable(value) else (False, value)
        if method in ("!run", "!away"):
            return None
        run_id = kwargs.get("run_id") or (args[0] if args else None)
        if method == "create_run" and self._run_id is not None:
            tags = kwargs.get("tags") or (args[3] if len(args) > 3 else [])
            if not any(tag.key == "mlflow.parentRunId" for tag in tags):
                return real.get_run(self._run_id)
        if method == "update_run_info" and run_id == self._run_id:
            return real.get_run(run_id).info
        return getattr(real, method)(*args, **kwargs)


_warned = False


def _warn_once(text: str) -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(text, RuntimeWarning, stacklevel=2)
