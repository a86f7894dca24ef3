"""What frameworks log in ranks lands in the call's run, too."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import pytest
from mlflow import MlflowClient

from .support import Notebook
from .test_semantics import all_runs


def needs(*packages: str) -> pytest.MarkDecorator:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"without {', '.join(missing)}")


def the_run() -> Any:
    """The one run there is; more would be a framework's own."""
    [run] = all_runs()
    return run


def artifacts() -> set[str]:
    client = MlflowClient(tracking_uri=f"sqlite:///{os.getcwd()}/mlflow.db")
    return {one.path for one in client.list_artifacts(the_run().info.run_id)}


@needs("matplotlib", "PIL", "pandas")
def test_figures_images_tables_and_texts(notebook: Notebook) -> None:
    def train() -> str:
        import matplotlib

        matplotlib.use("agg")
        import matplotlib.pyplot as plt
        import mlflow
        import numpy

        rank = os.environ["RANK"]
        figure, axes = plt.subplots()
        axes.plot([1, 2])
        mlflow.log_figure(figure, f"figure{rank}.png")
        mlflow.log_image(numpy.zeros((4, 4, 3), "uint8"), f"image{rank}.png")
        mlflow.log_dict({"a": 1}, f"dict{rank}.json")
        mlflow.log_text("text", f"text{rank}.txt")
        open(f"file{rank}.txt", "w").close()
        mlflow.log_artifact(f"file{rank}.txt")
        mlflow.log_table({"a": [1]}, f"table{rank}.json")
        mlflow.set_tags({"t": 1, "rank" + rank: 2})
        return mlflow.last_active_run().info.run_id

    assert notebook.call(2, train) == [the_run().info.run_id] * 2
    kinds = ("figure{}.png", "image{}.png", "dict{}.json", "text{}.txt", "file{}.txt")
    expected = {kind.format(rank) for kind in (*kinds, "table{}.json") for rank in range(2)}
    assert expected <= artifacts()
    assert {"t", "rank0", "rank1"} <= set(the_run().data.tags)


@needs("sklearn")
def test_autolog_of_sklearn(notebook: Notebook) -> None:
    def train() -> None:
        import mlflow
        from sklearn.linear_model import LinearRegression

        mlflow.sklearn.autolog(log_models=False, log_datasets=False)
        LinearRegression().fit([[0.0], [1.0]], [0.0, 1.0])

    notebook.call(2, train)
    assert the_run().data.params["fit_intercept"] == "True"
    assert "training_r2_score" in the_run().data.metrics


@needs("pandas", "scipy")
def test_a_model_is_logged_once_and_can_be_loaded(notebook: Notebook) -> None:
    def train() -> str | None:
        import mlflow
        import numpy
        import torch

        if os.environ["RANK"] != "0":
            return None
        model = torch.nn.Linear(1, 1)
        example = numpy.zeros((1, 1), "float32")
        uri = mlflow.pytorch.log_model(model, "model", input_example=example).model_uri
        loaded = mlflow.pytorch.load_model(uri)
        assert torch.equal(loaded.weight, model.weight)
        return mlflow.models.get_model_info(uri).run_id

    assert notebook.call(2, train)[0] == the_run().info.run_id


@needs("lightning")
def test_lightnings_logger_and_autolog(notebook: Notebook) -> None:
    def train(autolog: bool) -> None:
        import lightning
        import mlflow
        import torch
        from lightning.pytorch.loggers import MLFlowLogger

        class Model(lightning.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.layer = torch.nn.Linear(1, 1)

            def training_step(self, batch: Any, _index: int) -> Any:
                loss = self.layer(batch).square().mean()
                self.log("train_loss", loss, on_step=False, on_epoch=True)
                return loss

            def configure_optimizers(self) -> Any:
                return torch.optim.SGD(self.parameters(), lr=0.1)

        if autolog:
            mlflow.pytorch.autolog(log_models=False)
        trainer = lightning.Trainer(
            max_epochs=1,
            accelerator="cpu",
            devices=1,
            logger=False if autolog else MLFlowLogger(experiment_name="project"),
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Model(), torch.utils.data.DataLoader(torch.ones(4, 1)))

    for autolog in (False, True):
        notebook.call(1, train, autolog)
    assert [run.info.status for run in all_runs()] == ["FINISHED"] * 2
    assert all("train_loss" in run.data.metrics for run in all_runs())


@needs("transformers", "accelerate")
def test_the_callback_of_transformers(notebook: Notebook) -> None:
    def train() -> None:
        import torch
        from transformers import Trainer, TrainingArguments

        class Model(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = torch.nn.Linear(1, 1)

            def forward(self, x: Any, labels: Any) -> Any:
                return {"loss": (self.layer(x) - labels).square().mean()}

        data = [{"x": torch.ones(1), "labels": torch.ones(1)} for _ in range(4)]
        arguments = TrainingArguments(
            output_dir="out",
            max_steps=2,
            logging_steps=1,
            report_to=["mlflow"],
            use_cpu=True,
            save_strategy="no",
            disable_tqdm=True,
        )
        os.environ.pop("RANK")  # there is no process group here
        Trainer(model=Model(), args=arguments, train_dataset=data).train()

    notebook.call(1, train)
    assert the_run().info.status == "FINISHED"
    assert "loss" in the_run().data.metrics
    assert the_run().data.params["max_steps"] == "2"
