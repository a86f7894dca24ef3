"""multiprocessing inside a rank sends what the notebook defined, in every start method."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
from serialize_peer import Notebook, Peer

from serverless_gpu import serialize
from serverless_gpu.errors import RankFailure

DATASET = """
    import dataclasses, torch
    SCALE = 2.0
    @dataclasses.dataclass
    class Batch:
        values: torch.Tensor
        def total(self): return float(self.values.sum())
    def collate(items): return Batch(torch.stack(items))
    class Dataset(torch.utils.data.Dataset):
        def __len__(self): return 16
        def __getitem__(self, i): return torch.tensor([float(i)]) * SCALE
    def run(method):
        loader = torch.utils.data.DataLoader(
            Dataset(), batch_size=4, num_workers=1, collate_fn=collate,
            multiprocessing_context=method, worker_init_fn=lambda i: None,
        )
        method_before = Batch.total
        batches = list(loader)
        same = all(type(b) is Batch for b in batches) and Batch.total is method_before
        return [batch.total() for batch in batches], same
    """


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.close()


@pytest.fixture
def pickler() -> Iterator[None]:
    """This process's multiprocessing as in a rank, for one test."""
    serialize.install_forking_pickler()
    yield
    del ForkingPickler.reducer_override


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_loader_with_workers_reads_a_dataset_of_the_notebook(peer: Peer, method: str) -> None:
    notebook = Notebook().cell(DATASET)
    result = peer.run(notebook.run, method)
    assert not isinstance(result, RankFailure), result.traceback
    assert result == ([12.0, 44.0, 76.0, 108.0], True)


def test_what_a_spawned_child_makes_of_a_notebook_class_comes_back_as_one(peer: Peer) -> None:
    notebook = Notebook().cell("""
        import multiprocessing
        class Answer:
            def __init__(self, value): self.value = value
        def work(inbox, outbox):
            while (value := inbox.get()) is not None:
                outbox.put(Answer(value * 2))
        def run():
            context = multiprocessing.get_context("spawn")
            inbox, outbox = context.Queue(), context.Queue()
            child = context.Process(target=work, args=(inbox, outbox))
            child.start()
            inbox.put(21)
            answer = outbox.get(timeout=60)
            inbox.put(None)
            child.join(60)
            return type(answer) is Answer, answer.value, child.exitcode
        """)
    result = peer.run(notebook.run)
    assert not isinstance(result, RankFailure), result.traceback
    assert result == (True, 42, 0)


@pytest.mark.usefixtures("pickler")
def test_all_else_is_pickled_as_before() -> None:
    values: list[Any] = [1, {"a": (2, "b")}, len, pickle.Pickler, {3}, ValueError("x")]
    assert bytes(ForkingPickler.dumps(values)) == pickle.dumps(values)


@pytest.mark.usefixtures("pickler")
def test_a_function_by_value_keeps_its_closure_and_globals() -> None:
    notebook = Notebook().cell("""
        FACTOR = 3
        def scale(x): return x * FACTOR
        def make(offset):
            def inner(x): return scale(x) + offset
            return inner
        inner = make(1)
        """)
    assert pickle.loads(ForkingPickler.dumps(notebook.inner))(2) == 7


@pytest.mark.usefixtures("pickler")
def test_installing_twice_changes_nothing() -> None:
    first = ForkingPickler.reducer_override
    serialize.install_forking_pickler()
    assert ForkingPickler.reducer_override is first
