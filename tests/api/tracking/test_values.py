"""Values of ranks: parameters that differ, keys and values that MLflow does not take."""

from __future__ import annotations

import os
from typing import Any

import mlflow
import pytest

from .support import LIMIT_S, Notebook, RankFailed, wait_until
from .test_semantics import all_runs


def test_parameters_that_differ_by_rank_are_all_kept(notebook: Notebook) -> None:
    def train() -> None:
        import mlflow

        mlflow.log_param("lr", 0.1)
        mlflow.log_params({"seed": os.environ["RANK"], "depth": 3})

    run = notebook.begin()
    for number, rank in enumerate(notebook.ranks(3)):  # in turn, so that rank 0 is the first
        rank.start(number, run.rank_config(), train)
        wait_until(lambda rank=rank: run.info() and rank.connection.poll(), "the rank is done")
        rank.result()
    run.end("FINISHED", timeout=LIMIT_S)
    [made] = all_runs()
    expected = {"lr": "0.1", "depth": "3", "seed": "0", "rank1/seed": "1", "rank2/seed": "2"}
    assert made.data.params == expected


def test_one_rank_that_changes_its_own_parameter_is_told_at_once(notebook: Notebook) -> None:
    def train() -> None:
        import mlflow

        mlflow.log_param("lr", 1)
        mlflow.log_param("lr", 2)

    with pytest.raises(RankFailed, match=r"MlflowException.*lr"):
        notebook.call(1, train)


@pytest.mark.parametrize(
    ("key", "value"), [("bad key!?", 1.0), ("m", "not a number"), ("", 1.0), ("m", None)]
)
def test_a_bad_key_or_value_raises_in_the_rank(notebook: Notebook, key: str, value: Any) -> None:
    def train() -> None:
        import mlflow

        mlflow.log_metric(key, value)

    with pytest.raises(RankFailed):
        notebook.call(1, train)


@pytest.mark.parametrize(
    ("key", "value", "step"), [("m", "x", 0), ("m", True, 0), ("m", 1.0, "x"), ("m!", 1.0, 0)]
)
def test_a_bad_metric_raises_also_after_a_good_one(
    notebook: Notebook, key: str, value: Any, step: Any
) -> None:
    def train() -> str:
        import mlflow

        mlflow.log_metric("m", 1.0, step=0)
        try:
            mlflow.log_metric(key, value, step=step)
        except Exception as error:
            return type(error).__name__
        return "logged"

    plain = train()
    while mlflow.active_run():
        mlflow.end_run()
    assert notebook.call(1, train) == [plain]


def test_a_tracking_uri_from_the_environment_is_followed_within_a_call(notebook: Notebook) -> None:
    other = f"sqlite:///{os.getcwd()}/other.db"

    def train() -> None:
        import mlflow

        client = mlflow.MlflowClient()
        run_id = mlflow.active_run().info.run_id
        mlflow.log_metric("m", 1.0)
        os.environ["MLFLOW_TRACKING_URI"] = other
        assert mlflow.get_tracking_uri() == other
        assert mlflow.tracking.fluent.MlflowClient().tracking_uri == other
        client.log_metric(run_id, "n", 2.0)

    notebook.call(1, train)
    assert all_runs()[0].data.metrics == {"m": 1.0, "n": 2.0}
