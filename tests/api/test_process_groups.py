"""torch.distributed as people write it: every form of init, again and again."""

from __future__ import annotations

import os
import warnings
from typing import Any

import pytest
from rank_code import rank_number

from serverless_gpu import distributed, outcome, sessions

FORMS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "gloo": {"backend": "gloo"},
    "env": {"backend": "gloo", "init_method": "env://"},
    "env without backend": {"init_method": "env://"},
    "tcp": {"backend": "gloo", "init_method": "tcp://127.0.0.1:29500", "numbers": True},
    "localhost": {"backend": "gloo", "init_method": "tcp://localhost:23456", "numbers": True},
    "file": {"backend": "gloo", "init_method": "file://{folder}/meet", "numbers": True},
    "numbers": {"backend": "gloo", "numbers": True},
    "nccl": {"backend": "nccl"},
    "both": {"backend": "cpu:gloo,cuda:nccl"},
}


@distributed(gpus=2)
def all_reduce(options: dict[str, Any]) -> Any:
    import torch
    import torch.distributed as dist

    options = dict(options)
    if options.pop("numbers", False):
        options |= {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
    totals, said = [], []
    for round_number in range(2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            dist.init_process_group(**options)
        x = torch.full((3,), float(dist.get_rank() + round_number))
        dist.all_reduce(x)
        totals.append(x.tolist())
        said += [str(one.message) for one in caught]
        dist.destroy_process_group()
    return totals, dist.is_initialized(), [text for text in said if "gloo" in text]


all_reduce._function.__module__ = "__main__"


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_init_works_again_and_again(form: str, tmp_path: Any) -> None:
    options = {
        name: value.format(folder=tmp_path) if isinstance(value, str) else value
        for name, value in FORMS[form].items()
    }
    for totals, left, warned in all_reduce.distributed(options):
        assert totals == [[1.0] * 3, [3.0] * 3]
        assert not left
        assert bool(warned) == ("nccl" in str(options.get("backend")))


def test_init_twice_and_destroy_twice_are_harmless() -> None:
    @distributed(gpus=2)
    def twice() -> Any:
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        dist.init_process_group("gloo")
        dist.init_process_group()
        x = torch.ones(1)
        dist.all_reduce(x)
        dist.destroy_process_group()
        dist.destroy_process_group()
        return float(x), dist.is_initialized()

    assert twice.distributed() == [(2.0, False)] * 2


def test_a_group_that_was_never_destroyed_troubles_no_later_call() -> None:
    @distributed(gpus=2)
    def once(number: int) -> float:
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        x = torch.full((1,), float(number))
        dist.all_reduce(x)
        return float(x)

    for number in range(5):
        assert once.distributed(number) == [2.0 * number] * 2


def test_groups_within_groups_and_object_collectives_work() -> None:
    @distributed(gpus=4)
    def groups() -> Any:
        import torch
        import torch.distributed as dist

        dist.init_process_group()
        pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        mine = pairs[dist.get_rank() // 2]
        x = torch.tensor([float(dist.get_rank())])
        dist.all_reduce(x, group=mine)
        everyone: list[Any] = [None] * 4
        dist.all_gather_object(everyone, {"rank": dist.get_rank()})
        gathered = [torch.zeros(1) for _ in range(4)]
        dist.all_gather(gathered, x)
        dist.barrier()
        return float(x), [one["rank"] for one in everyone], [float(one) for one in gathered]

    expected = [0, 1, 2, 3], [1.0, 1.0, 5.0, 5.0]
    out = groups.distributed()
    assert out == [(1.0, *expected), (1.0, *expected), (5.0, *expected), (5.0, *expected)]


def test_data_parallel_training_agrees_on_every_rank() -> None:
    @distributed(gpus=2)
    def train() -> Any:
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        dist.init_process_group("gloo")
        torch.manual_seed(0)
        model = DistributedDataParallel(torch.nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(dist.get_rank())
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).sum().backward()
            optimizer.step()
        return [p.detach().clone() for p in model.parameters()]

    first, second = train.distributed()
    assert all(bool((a == b).all()) for a, b in zip(first, second, strict=True))


def test_a_privileged_rank_that_works_alone_keeps_the_others_waiting() -> None:
    @distributed(gpus=4)
    def build(path: str) -> int:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        if dist.get_rank() == 0:
            with open(path, "wb") as f:
                f.write(b"x" * 1000)
        dist.barrier()
        return os.path.getsize(path)

    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        assert build.distributed(f"{folder}/cache") == [1000] * 4


CREATE = "import torch.distributed as dist, torch; dist.init_process_group('gloo')"
SUM = "x = torch.ones(1); dist.all_reduce(x); x = x.item()"


def test_a_session_s_group_lives_from_cell_to_cell(session: sessions.Session) -> None:
    session.run(CREATE, gpus=2)
    for _ in range(3):
        session.run(SUM)
        assert session.pull("x") == [2.0, 2.0]
    session.run("dist.destroy_process_group(); " + CREATE + "\n" + SUM)
    assert session.pull("x") == [2.0, 2.0]


def test_a_session_without_init_says_how_to_make_a_group(session: sessions.Session) -> None:
    with pytest.raises(ValueError, match="init_process_group"):
        session.run("import torch, torch.distributed as dist\n" + SUM, gpus=2)


@pytest.mark.usefixtures("quick_grace")
def test_a_session_s_group_is_made_anew_after_a_failure(session: sessions.Session) -> None:
    session.run(CREATE + "\nmine = dist.get_rank() * 10", gpus=3)
    with pytest.raises(ValueError, match="bad batch"):
        session.run("if dist.get_rank() == 1: raise ValueError('bad batch')\n" + SUM)
    session.run(SUM)
    assert session.pull("x") == [3.0] * 3
    assert session.pull("mine") == [0, 10, 20]
    session.run("dist.init_process_group('gloo')\n" + SUM)  # as a cell that is run again does
    assert session.pull("x") == [3.0] * 3


@pytest.mark.usefixtures("quick_grace")
def test_collectives_pair_rightly_after_they_were_cut(session: sessions.Session) -> None:
    session.run(CREATE, gpus=3)
    loop = """
        r, i = dist.get_rank(), 0
        while True:
            if r == 0 and i == 5: raise KeyError("stop here")
            x = torch.full((1 + i,), float(i)); dist.all_reduce(x); i += 1
    """
    import textwrap

    for _ in range(2):
        with pytest.raises(KeyError, match="stop here"):
            session.run(textwrap.dedent(loop))
        for _ in range(3):
            session.run("x = torch.tensor([1., 2.]); dist.all_reduce(x); x = x.tolist()")
            assert session.pull("x") == [[3.0, 6.0]] * 3


def test_another_backend_replaces_the_group() -> None:
    @distributed(gpus=2)
    def change() -> Any:
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        store = dist.distributed_c10d._get_default_store()
        store.set(f"key{rank_number()}", "value")
        dist.barrier()
        other = store.get(f"key{1 - rank_number()}")
        dist.init_process_group("cpu:gloo")
        x = torch.ones(1)
        dist.all_reduce(x)
        return other, float(x)

    assert change.distributed() == [(b"value", 2.0)] * 2


def test_the_time_that_making_the_group_took_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the status line ends with: gloo's by gloo's name, NCCL's by NCCL's."""
    told: list[dict[str, float]] = []
    words = outcome.final_words

    def remember(ended: outcome.Ended) -> tuple[str, str, str]:
        told.append(ended.startup)
        return words(ended)

    monkeypatch.setattr(outcome, "final_words", remember)
    all_reduce.distributed(FORMS["nccl"])
    distributed(gpus=2)(rank_number).distributed()
    all_reduce.distributed({"backend": "undefined"})
    assert list(told[2]) == ["gloo"], "by the name of what is made, though nobody has named it"
    assert list(told[0]) == ["gloo"] and told[0]["gloo"] > 0
    assert told[1] == {}


def test_the_first_collective_is_timed_and_then_it_is_torchs_own_again() -> None:
    """NCCL makes its communicator there; here gloo stands for it. DistributedDataParallel's first
    is one of its own."""

    @distributed(gpus=2)
    def first_use() -> Any:
        import torch
        import torch.distributed as dist

        from serverless_gpu.rank import startup

        dist.init_process_group("gloo")
        own = dist.all_reduce
        told = []
        for use in (
            lambda: torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2)),
            lambda: dist.all_reduce(torch.ones(1)),
        ):
            startup.take()
            startup.group_made("nccl")
            use()
            use()
            told.append(list(startup.take()))
        startup.take()
        try:
            torch.empty(1, device="cuda")
        except (AssertionError, RuntimeError):
            told.append(list(startup.take()))
        return told, dist.all_reduce is own

    for told, restored in first_use.distributed():
        assert told == [["NCCL"], ["NCCL"], ["CUDA"]]
        assert restored
