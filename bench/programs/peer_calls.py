"""A cell for ipykernel: the same with ipyparallel."""

import time

import ipyparallel

cluster = ipyparallel.Cluster(n=8, log_level=40)
client = cluster.start_and_connect_sync()
view = client[:]
view.block = True


def nothing(rank: int) -> int:
    return rank


view.push({"nothing": nothing})
view.scatter("rank", range(8), flatten=True)


def measure(count: int) -> list[float]:
    """Seconds of each of `count` calls."""
    seconds = []
    for _ in range(count):
        began = time.perf_counter()
        values = view.apply_sync(lambda: rank)  # noqa: F821  (of the engine)
        seconds.append(time.perf_counter() - began)
        assert values == list(range(8)), values
    return seconds
