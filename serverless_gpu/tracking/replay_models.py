"""Models that were logged into a stand-in store, copied along with their run.

MLflow 3 keeps a model beside its run, with an id of its own that its files and the metrics measured
with it name. MLflow 2 keeps it among the run's files, where nothing needs to be done.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from serverless_gpu.tracking.packets import MetricRow
from serverless_gpu.tracking.store import pack_metric

COPIED = "serverless_gpu.copied_to"  # tag of what has been copied, in the stand-in store

_DESCRIPTION = "MLmodel"
_HISTORY = "mlflow.log-model.history"


class Models:
    """The models of one run. Errors, of all methods: what the store raises; OSError."""

    def __init__(self, source: Any, run: Any, client: Any, target: str) -> None:
        """``source`` and ``client`` are mlflow clients of the stand-in store and of the store,
        ``run`` the mlflow Run in the former, ``target`` its id in the latter."""
        self._source, self._client = source, client
        self._run, self._target = run, target
        self.ids: dict[str, str] = {}  # in the stand-in store -> in the store
        self._measured: dict[MetricRow, MetricRow] = {}  # a metric -> its model and data set

    def copy(self, experiment: str) -> None:
        if not hasattr(self._source, "search_logged_models"):  # MLflow 2
            return
        ours = f"source_run_id = '{self._run.info.run_id}'"
        for model in self._source.search_logged_models(
            [self._run.info.experiment_id], filter_string=ours
        ):
            self.ids[model.model_id] = self._copy(model, experiment)
        self._link()

    def row(self, row: MetricRow) -> MetricRow:
        """A metric of the run, with the model that it was measured with: a run's history leaves
        that out."""
        return (*row[:4], *self._measured.get(row[:4], row[4:]))

    def tag(self, key: str, value: str) -> str:
        """The value of a tag of the run, right for the copy."""
        if key != _HISTORY:
            return value
        for old, new in {self._run.info.run_id: self._target, **self.ids}.items():
            value = value.replace(old, new)
        return value

    def _copy(self, model: Any, experiment: str) -> str:
        tags = dict(model.tags)
        copied = tags.pop(COPIED, None)
        made = (
            self._client.get_logged_model(copied)
            if copied
            else self._client.create_logged_model(
                experiment,
                name=model.name,
                source_run_id=self._target,
                tags=tags,
                params=dict(model.params),
                model_type=model.model_type,
            )
        )
        self._source.set_logged_model_tags(model.model_id, {COPIED: made.model_id})
        for metric in self._source.get_logged_model(model.model_id).metrics or []:
            row = pack_metric(metric)
            self._measured[row[:4]] = (made.model_id, *row[5:])
        folder = model.artifact_location.removeprefix("file://")
        if os.path.isdir(folder):
            self._client.log_model_artifacts(made.model_id, folder)
            self._describe(model, made, Path(folder) / _DESCRIPTION)
        if model.status.is_finalized(model.status):
            self._client.finalize_logged_model(made.model_id, model.status)
        return str(made.model_id)

    def _describe(self, model: Any, made: Any, path: Path) -> None:
        """Its own description names the run, the model and the place of its files."""
        if not path.is_file():
            return
        text = path.read_text()
        for old, new in (
            (model.artifact_location, made.artifact_location),
            (model.model_id, made.model_id),
            (self._run.info.run_id, self._target),
        ):
            text = text.replace(old, new)
        with tempfile.TemporaryDirectory(prefix="sgpu-") as scratch:
            changed = Path(scratch) / _DESCRIPTION
            changed.write_text(text)
            self._client.log_model_artifact(made.model_id, str(changed))

    def _link(self) -> None:
        """The run says which models came out of it."""
        from mlflow.entities import LoggedModelOutput

        wanted = {self.ids[model]: step for model, step in _outputs(self._run) if model in self.ids}
        if not wanted:
            return
        for model, _ in _outputs(self._client.get_run(self._target)):
            wanted.pop(model, None)  # a link that is written twice is refused
        if wanted:
            links = [LoggedModelOutput(model, step) for model, step in wanted.items()]
            self._client.log_outputs(self._target, links)


def _outputs(run: Any) -> list[tuple[str, int]]:
    """(model id, step) of what came out of a run."""
    return [(one.model_id, one.step) for one in run.outputs.model_outputs] if run.outputs else []
