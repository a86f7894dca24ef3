"""The writer, against stores that refuse or are away."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE

from serverless_gpu.tracking import batches
from serverless_gpu.tracking.batches import BatchWriter
from serverless_gpu.tracking.packets import Log
from serverless_gpu.tracking.pending import Distinct
from serverless_gpu.tracking.runs import verdict
from serverless_gpu.tracking.spool import Spool, records


class FakeStore:
    """Keeps what it takes; `before` may raise instead."""

    def __init__(self, before: Callable[[list[str]], None] = lambda keys: None) -> None:
        self.batches: list[list[str]] = []
        self.stamps: list[int] = []
        self._before = before

    def log_batch(self, run_id: str, metrics: Any, params: Any, tags: Any) -> None:
        keys = [entry.key for entry in [*metrics, *tags]]
        self._before(keys)
        self.batches.append(keys)
        self.stamps += [metric.timestamp for metric in metrics]

    def keys(self) -> list[str]:
        return [key for batch in self.batches for key in batch]


def log(*keys: str, tags: int = 0) -> Log:
    return (
        "uri",
        "run",
        [(key, 1.0, 10, 0) for key in keys],
        [(f"t{n}", "v") for n in range(tags)],
    )


def written_by(store: FakeStore, hurry: bool, *items: Log) -> str | None:
    """What the writer says it has lost."""
    event = threading.Event()
    if hurry:
        event.set()
    writer = BatchWriter(lambda uri: store, event)
    writer.write(items)
    assert writer.trouble("uri") is None
    return writer.take_error(["run"])


def test_batches_keep_within_mlflows_limits_and_lose_nothing() -> None:
    store = FakeStore()
    names = [f"m{number}" for number in range(2500)]
    assert written_by(store, False, log(*names, tags=250)) is None
    assert sorted(store.keys()) == sorted([*names, *(f"t{number}" for number in range(250))])
    for batch in store.batches:
        assert len(batch) <= 1000
        assert len([key for key in batch if key.startswith("t")]) <= 100


def test_a_store_that_comes_back_gets_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_PAUSES_S", (0.001, 0.001))
    failures = iter([ConnectionError("away"), MlflowException("busy"), None])

    def before(keys: list[str]) -> None:
        if error := next(failures):
            raise error

    store = FakeStore(before)
    assert written_by(store, False, log("a", "b")) is None
    assert store.keys() == ["a", "b"]


def test_nothing_is_tried_twice_once_the_notebook_is_gone(tmp_path: Path) -> None:
    attempts: list[list[str]] = []

    def before(keys: list[str]) -> None:
        attempts.append(keys)
        raise ConnectionError("away")

    event = threading.Event()
    event.set()
    store = FakeStore(before)
    writer = BatchWriter(lambda uri: store, event, lambda uri: Spool(uri, tmp_path))
    writer.write([log("a"), log("b")])
    writer.write([log("c")])
    assert attempts == [["a", "b"]]
    [path] = tmp_path.iterdir()
    kept = [record["log"] for _, record in records(path)]
    assert [row[0] for _, rows, _, _ in kept for row in rows] == ["a", "b", "c"]
    assert str(writer.trouble("uri")).startswith("MLflow: uri: away; kept until")


def test_what_cannot_even_be_kept_is_said_to_be_lost(tmp_path: Path) -> None:
    def before(keys: list[str]) -> None:
        raise ConnectionError("away")

    blocked = tmp_path / "file"
    blocked.write_text("")
    event = threading.Event()
    event.set()
    store = FakeStore(before)
    writer = BatchWriter(lambda uri: store, event, lambda uri: Spool(uri, blocked))
    writer.write([log("a")])
    assert "Not a directory" in str(writer.take_error(["run"]))


def test_one_entry_that_the_store_refuses_costs_only_itself() -> None:
    def before(keys: list[str]) -> None:
        if "bad" in keys:
            raise MlflowException("no such thing", error_code=INVALID_PARAMETER_VALUE)

    store = FakeStore(before)
    lost = written_by(store, False, log("a", "b", "bad", "c", tags=3))
    assert lost == "MLflow: 1 metrics or tags could not be written: bad: no such thing"
    assert sorted(store.keys()) == ["a", "b", "c", "t0", "t1", "t2"]


def test_equal_metrics_get_distinct_timestamps() -> None:
    store = FakeStore()
    assert written_by(store, False, log("m", "m", "other"), log("m")) is None
    assert sorted(store.stamps) == [10, 10, 11, 12]
    distinct = Distinct()
    nan = float("nan")
    assert [distinct.timestamp("r", ("m", nan, 5, 0)) for _ in range(3)] == [5, 6, 7]
    assert distinct.timestamp("r", ("m", nan, 6, 0)) == 8
    assert distinct.timestamp("other run", ("m", nan, 5, 0)) == 5


@pytest.mark.parametrize(
    ("status", "said", "expected"),
    [
        ("FINISHED", [], "FINISHED"),
        ("FINISHED", ["FINISHED", "FAILED", "KILLED"], "FAILED"),
        ("FINISHED", ["KILLED"], "KILLED"),
        ("FAILED", ["KILLED"], "FAILED"),
        ("KILLED", ["FAILED"], "KILLED"),
    ],
)
def test_the_notebooks_verdict_counts_most(status: str, said: list[str], expected: str) -> None:
    assert verdict(status, said) == expected
