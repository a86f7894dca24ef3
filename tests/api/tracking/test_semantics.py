"""What MLflow calls of ranks mean: one run for the call, whatever the ranks do."""

from __future__ import annotations

import os
from typing import Any

import mlflow
import pytest
from mlflow import MlflowClient

from .support import LIMIT_S, Notebook, RankFailed, info_of, wait_until


def all_runs(uri: str | None = None) -> list[Any]:
    client = MlflowClient(tracking_uri=uri or f"sqlite:///{os.getcwd()}/mlflow.db")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    return list(client.search_runs(experiments))


def by_name() -> dict[str, Any]:
    return {run.info.run_name: run for run in all_runs()}


def test_eight_ranks_log_into_one_run_and_nothing_is_lost(notebook: Notebook) -> None:
    def train() -> str:
        import mlflow

        for step in range(200):
            mlflow.log_metric("loss", 1.0 / (1 + step), step=step, timestamp=1_000 + step)
        return mlflow.active_run().info.run_id

    ids = notebook.call(8, train)
    [run] = all_runs()
    assert ids == [run.info.run_id] * 8
    assert run.info.status == "FINISHED"
    client = MlflowClient(tracking_uri=f"sqlite:///{os.getcwd()}/mlflow.db")
    history = client.get_metric_history(run.info.run_id, "loss")
    # All ranks log the same; a SQL store drops rows that are equal in everything.
    assert len(history) == 8 * 200
    assert sorted({point.step for point in history}) == list(range(200))


def test_each_ranks_metrics_are_all_there_in_their_order(notebook: Notebook) -> None:
    def train() -> None:
        import mlflow

        for step in range(2000):
            mlflow.log_metric("m" + os.environ["RANK"], float(step), step=step)

    notebook.call(8, train)
    client = MlflowClient(tracking_uri=f"sqlite:///{os.getcwd()}/mlflow.db")
    for rank in range(8):
        history = client.get_metric_history(all_runs()[0].info.run_id, f"m{rank}")
        assert [point.step for point in history] == list(range(2000))
        assert [point.value for point in history] == list(range(2000))


@pytest.mark.parametrize("nested", [False, True])
def test_start_run_without_a_name_enters_the_calls_run(notebook: Notebook, nested: bool) -> None:
    def train() -> str:
        import mlflow

        with mlflow.start_run() as run:
            mlflow.log_metric("m", 1.0)
        return run.info.run_id

    assert set(notebook.call(2, train)) == {run.info.run_id for run in all_runs()}
    assert len(all_runs()) == 1


def test_logging_first_and_starting_the_run_later_is_no_mistake(notebook: Notebook) -> None:
    def train() -> set[str]:
        import mlflow

        mlflow.log_metric("early", 1.0)
        ids = {mlflow.active_run().info.run_id}
        with mlflow.start_run(run_name="mine") as run:
            ids.add(run.info.run_id)
            with mlflow.start_run(nested=True) as child:
                pass
            assert child.info.run_id not in ids
        mlflow.log_metric("late", 1.0)
        with mlflow.start_run(nested=True, run_name="second"):
            return ids

    assert notebook.call(1, train) == [{by_name()["mine"].info.run_id}]
    assert set(by_name()["mine"].data.metrics) == {"early", "late"}
    assert len(all_runs()) == 3


def test_starting_a_run_inside_a_started_run_raises_as_in_mlflow(notebook: Notebook) -> None:
    def train() -> None:
        import mlflow

        with mlflow.start_run(), mlflow.start_run():
            pass

    with pytest.raises(RankFailed, match="already active"):
        notebook.call(1, train)


def start_with_name_and_tags() -> None:
    import mlflow

    mlflow.start_run(run_name="mine", tags={"team": "vision"}, description="a note")


def test_the_first_name_tags_and_note_are_taken_over(notebook: Notebook) -> None:
    notebook.call(2, start_with_name_and_tags)
    [run] = all_runs()
    assert run.info.run_name == "mine"
    assert run.data.tags["team"] == "vision"
    assert run.data.tags["mlflow.note.content"] == "a note"


def test_a_call_that_is_named_keeps_its_name(notebook: Notebook) -> None:
    run = notebook.begin("from the notebook")
    notebook.run(run, notebook.ranks(2), start_with_name_and_tags)
    run.end("FINISHED", timeout=LIMIT_S)
    assert [made.info.run_name for made in all_runs()] == ["from the notebook"]
    assert info_of(run).name == "from the notebook"


def test_the_handle_learns_the_name_that_a_rank_gave(notebook: Notebook) -> None:
    run = notebook.begin()
    notebook.run(run, notebook.ranks(1), start_with_name_and_tags)
    wait_until(lambda: info_of(run).name == "mine", "the new name is told")


def test_a_rank_cannot_end_the_run_early(notebook: Notebook) -> None:
    def train() -> str:
        import mlflow

        with mlflow.start_run() as run:
            mlflow.log_metric("m", 1.0)
        mlflow.end_run()
        return mlflow.get_run(run.info.run_id).info.status

    run = notebook.begin()
    assert notebook.run(run, notebook.ranks(2), train) == ["RUNNING"] * 2
    run.end("FINISHED", timeout=LIMIT_S)
    assert [made.info.status for made in all_runs()] == ["FINISHED"]


@pytest.mark.parametrize(
    ("noted", "ended", "status"),
    [
        ("FAILED", "FINISHED", "FAILED"),
        ("KILLED", "FINISHED", "KILLED"),
        ("FAILED", "KILLED", "KILLED"),
        ("FINISHED", "FAILED", "FAILED"),
    ],
)
@pytest.mark.parametrize("started", [True, False])
def test_what_ranks_say_about_the_end_counts_only_for_a_finished_call(
    notebook: Notebook, noted: str, ended: Any, status: str, started: bool
) -> None:
    def train() -> None:
        import mlflow

        if os.environ["RANK"] == "1":
            if started:
                mlflow.start_run()
            mlflow.end_run(noted)
        else:
            mlflow.end_run()

    run = notebook.begin()
    notebook.run(run, notebook.ranks(2), train)
    run.end(ended, {"serverless_gpu.failed_rank": "1"}, timeout=LIMIT_S)
    [made] = all_runs()
    assert made.info.status == status
    assert made.data.tags["serverless_gpu.failed_rank"] == "1"


def test_what_a_rank_says_before_its_call_is_known_counts_too(notebook: Notebook) -> None:
    """The rank is quicker than the notebook's Begin."""

    def train() -> None:
        import mlflow

        mlflow.end_run("FAILED")

    other = notebook.begin()  # so that the tracker is there
    info_of(other)
    [rank] = notebook.ranks(1)
    rank.start(0, {**other.rank_config(), "call": "call2"}, train)
    rank.result()
    run = notebook.begin()
    run.end("FINISHED", timeout=LIMIT_S)
    made = mlflow.MlflowClient(info_of(other).tracking_uri).get_run(info_of(run).run_id)
    assert made.info.status == "FAILED"


def test_nested_runs_of_one_name_are_shared_and_of_several_names_are_not(
    notebook: Notebook,
) -> None:
    def train() -> None:
        import mlflow

        rank = os.environ["RANK"]
        with mlflow.start_run():
            for turn in range(2):
                with mlflow.start_run(nested=True, run_name="fold"):
                    mlflow.log_metric("turn", turn)
            with mlflow.start_run(nested=True, run_name="own" + rank):
                mlflow.log_param("rank", rank)

    notebook.call(2, train)
    runs = all_runs()
    top = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    children = [run for run in runs if run not in top]
    assert len(top) == 1
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {top[0].info.run_id}
    assert sorted(run.info.run_name for run in children) == ["fold", "fold", "own0", "own1"]
    assert {run.info.status for run in runs} == {"FINISHED"}
    folds = [run.data.metrics["turn"] for run in children if run.info.run_name == "fold"]
    assert sorted(folds) == [0.0, 1.0]


def test_a_nested_run_that_a_rank_leaves_with_an_error_is_failed(notebook: Notebook) -> None:
    def train() -> None:
        import mlflow

        with mlflow.start_run(nested=True, run_name="shared"):
            if os.environ["RANK"] == "1":
                raise ValueError("boom")

    with pytest.raises(RankFailed, match="boom"):
        notebook.call(2, train)
    assert by_name()["shared"].info.status == "FAILED"


def test_ranks_can_log_to_the_notebooks_run_but_not_end_it(notebook: Notebook) -> None:
    def train(run_id: str) -> None:
        import mlflow

        with mlflow.start_run(run_id=run_id):
            mlflow.log_metric("from_ranks", 1.0)

    with mlflow.start_run(run_name="notebook") as own:
        notebook.call(2, train, own.info.run_id)
        now = mlflow.get_run(own.info.run_id)
        assert now.info.status == "RUNNING"
        assert now.data.metrics == {"from_ranks": 1.0}
    assert mlflow.get_run(own.info.run_id).info.status == "FINISHED"


def test_set_experiment_in_all_ranks_makes_one_and_the_run_stays_the_calls(
    notebook: Notebook,
) -> None:
    def train() -> str:
        import mlflow

        mlflow.set_experiment("race")
        with mlflow.start_run() as run:
            mlflow.log_metric("m", 1.0)
        return run.info.run_id

    assert len(set(notebook.call(8, train))) == 1
    client = MlflowClient(tracking_uri=f"sqlite:///{os.getcwd()}/mlflow.db")
    names = [experiment.name for experiment in client.search_experiments()]
    assert sorted(names) == ["Default", "project", "race"]
    assert len(all_runs()) == 1


def test_another_tracking_uri_gets_one_run_for_all_ranks(notebook: Notebook) -> None:
    other = f"sqlite:///{os.getcwd()}/other.db"

    def train() -> str:
        import mlflow

        mlflow.set_tracking_uri(other)
        with mlflow.start_run(run_name="there") as run:
            mlflow.log_metric("m", float(os.environ["RANK"]))
        return run.info.run_id

    ids = notebook.call(3, train)
    [run] = all_runs(other)
    assert ids == [run.info.run_id] * 3
    assert run.info.status == "FINISHED"
    assert "m" not in all_runs()[0].data.metrics
