"""A cell for our kernel, after ours_calls.py: calls until 8 ranks have answered."""

import time

from serverless_gpu import RankDiedError, RankError, session


@distributed(gpus=8, session=True)  # noqa: F821
def answer() -> int:
    return 8


@distributed(gpus=8, session=True)  # noqa: F821
def all_reduce() -> int:
    import torch
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("gloo")
    one = torch.ones(1)
    dist.all_reduce(one)
    return int(one.item())


def until_eight(function) -> int:
    """Calls made until one has answered from 8 ranks; the others met the death."""
    calls = 0
    while True:
        calls += 1
        try:
            values = function.distributed()
        except (RankDiedError, RankError):
            continue
        assert values == [8] * 8, values
        return calls


def once_known(pid: int, function) -> int:
    """The same, begun when the pool has seen the end of process `pid`: a call that begins sooner
    has ranks wait for the dead one in a collective, until their grace is over."""
    while any(rank["pid"] == pid for rank in session().status()["ranks"]):
        time.sleep(0.001)
    return until_eight(function)
