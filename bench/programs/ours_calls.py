"""A cell for our kernel: calls that do nothing but answer with the rank."""

import os
import time

from serverless_gpu import distributed, session


@distributed(gpus=8, session=True)
def in_session() -> int:
    return int(os.environ["RANK"])


@distributed(gpus=8, session=True, mlflow="off")
def in_session_untracked() -> int:
    return int(os.environ["RANK"])


@distributed(gpus=8)
def on_clean_ranks() -> int:
    return int(os.environ["RANK"])


@distributed(gpus=8, mlflow="off")
def on_clean_ranks_untracked() -> int:
    return int(os.environ["RANK"])


def measure(function, count: int) -> list[float]:
    """Seconds of each of `count` calls."""
    seconds = []
    for _ in range(count):
        began = time.perf_counter()
        values = function.distributed()
        seconds.append(time.perf_counter() - began)
        assert values == list(range(8)), values
    return seconds


def rank_pid(rank: int) -> int:
    return session().status()["ranks"][rank]["pid"]
