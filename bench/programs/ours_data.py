"""A cell for our kernel: large arrays to the ranks and back."""

import time

from serverless_gpu import distributed, session


@distributed(gpus=8, session=True)
def take(array) -> float:
    """Looks at some of the array."""
    return float(array[:: max(1, len(array) // 1000)].sum())


def send(array) -> float:
    """Seconds of a call with the array as its argument."""
    step = max(1, len(array) // 1000)
    expected = float(array[::step].sum())
    began = time.perf_counter()
    sums = take.distributed(array)
    seconds = time.perf_counter() - began
    assert sums == [expected] * 8, sums
    return seconds


def fetch() -> float:
    """Seconds until every rank's block is here."""
    began = time.perf_counter()
    blocks = session().pull("block")
    seconds = time.perf_counter() - began
    assert [block[-1] for block in blocks] == list(range(8))
    return seconds
