"""Models logged while the store was away are in it afterwards, whole, under new ids."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import mlflow
import numpy
import pytest
import torch
from mlflow import MlflowClient

from serverless_gpu.tracking import making
from serverless_gpu.tracking.client import capture_context
from serverless_gpu.tracking.packets import Begin
from serverless_gpu.tracking.replay import replay
from serverless_gpu.tracking.spool import Spool

needs_logged_models = pytest.mark.skipif(
    not hasattr(MlflowClient, "search_logged_models"), reason="MLflow 2 keeps models in their runs"
)


@pytest.fixture
def kept(clean_environment: None, empty_store: Path, tmp_path: Path) -> Spool:
    """A run that was made in a stand-in store, and a model in it."""
    spool = Spool(f"sqlite:///{shutil.copy(empty_store, os.path.abspath('mlflow.db'))}", tmp_path)
    context = capture_context(None)
    begin = Begin(
        call="call",
        tracking_uri=spool.uri,
        experiment=context.experiment,
        experiment_id=None,
        parent_run_id=None,
        run_id=None,
        run_name="away",
        protected=(),
        tags={},
        lazy=False,
        cwd=os.getcwd(),
        environment={},
        started_ms=1000,
    )
    uri, run = making.make_stand_in(spool, begin)
    mlflow.set_tracking_uri(uri)
    mlflow.set_experiment(experiment_id=run.info.experiment_id)
    model = torch.nn.Linear(1, 1)
    torch.nn.init.constant_(model.weight, 3.0)
    with mlflow.start_run(run_id=run.info.run_id):
        example = numpy.zeros((1, 1), "float32")
        options = {"input_example": example, "pip_requirements": ["torch"]}
        logged: Any = mlflow.pytorch.log_model(model, "net", **options)
        known = {"model_id": logged.model_id} if hasattr(logged, "model_id") else {}
        mlflow.log_metric("accuracy", 0.5, **known)
    mlflow.set_tracking_uri(None)  # type: ignore[arg-type]
    return spool


@needs_logged_models
def test_a_model_is_copied_with_its_run_and_all_that_names_it(kept: Spool) -> None:
    assert kept.path is not None
    for _ in range(2):  # what is written twice counts once
        text = kept.path.read_text()
        assert replay(kept.path, kept.uri).complete
        kept.path.write_text(text)
    shutil.rmtree(kept.path.with_suffix(".artifacts"))
    kept.path.with_suffix(".db").unlink()
    client = MlflowClient(tracking_uri=kept.uri)
    experiments = [one.experiment_id for one in client.search_experiments()]
    [run] = client.search_runs(experiments)
    [model] = client.search_logged_models(experiments)
    assert (model.name, model.source_run_id) == ("net", run.info.run_id)
    assert model.status.name == "READY"
    assert [one.model_id for one in run.outputs.model_outputs] == [model.model_id]
    metrics = client.get_logged_model(model.model_id).metrics or []
    assert [(one.key, one.value, one.run_id) for one in metrics] == [
        ("accuracy", 0.5, run.info.run_id)
    ]
    mlflow.set_tracking_uri(kept.uri)
    info = mlflow.models.get_model_info(f"models:/{model.model_id}")
    assert (info.run_id, info.model_id) == (run.info.run_id, model.model_id)
    loaded = mlflow.pytorch.load_model(f"models:/{model.model_id}")
    assert loaded.weight.item() == 3.0


def test_a_run_whose_store_was_away_starts_when_its_call_did(kept: Spool) -> None:
    assert kept.path is not None
    assert replay(kept.path, kept.uri).complete
    client = MlflowClient(tracking_uri=kept.uri)
    [run] = client.search_runs([one.experiment_id for one in client.search_experiments()])
    assert (run.info.run_name, run.info.start_time) == ("away", 1000)
