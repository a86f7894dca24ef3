"""A cell for ipykernel, after peer_calls.py: large arrays by ipyparallel."""


def send(array) -> float:
    """Seconds until all engines have the array and have looked at it."""
    step = max(1, len(array) // 1000)
    expected = float(array[::step].sum())
    began = time.perf_counter()  # noqa: F821
    view.push({"kept": array})  # noqa: F821
    view.execute("found = float(kept[::max(1, len(kept) // 1000)].sum())")  # noqa: F821
    sums = view.pull("found")  # noqa: F821
    seconds = time.perf_counter() - began  # noqa: F821
    assert sums == [expected] * 8, sums
    return seconds


def fetch() -> float:
    """Seconds until every engine's block is here."""
    began = time.perf_counter()  # noqa: F821
    blocks = view.pull("block")  # noqa: F821
    seconds = time.perf_counter() - began  # noqa: F821
    assert [block[-1] for block in blocks] == list(range(8))
    return seconds
