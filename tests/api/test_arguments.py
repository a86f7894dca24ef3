"""What goes to ranks: identity, sharing of large arrays, late and changed definitions, refusals."""

from __future__ import annotations

import socket
import sqlite3
import threading
from typing import Any

import numpy as np
import pytest
from rank_code import rank_number

from serverless_gpu import UnpicklableError, distributed


def test_arguments_keep_what_they_share() -> None:
    import torch

    @distributed(gpus=2)
    def loop(config: Any, net: Any, optimizer: Any, scheduler: Any, *, again: Any) -> Any:
        before = net.weight.detach().clone()
        net(torch.ones(4)).sum().backward()
        optimizer.step()
        scheduler.step()
        same = optimizer.param_groups[0]["params"][0] is net.weight
        owned = scheduler.optimizer is optimizer and again is config["net"] is net
        return same, owned, not torch.equal(before, net.weight)

    net = torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)

    out = loop.distributed({"net": net}, net, optimizer, scheduler, again=net)

    assert out == [(True, True, True)] * 2


def test_large_arrays_are_shared_until_they_are_written() -> None:
    @distributed(gpus=2)
    def write(array: np.ndarray) -> Any:
        first = float(array[0])
        before = own_kilobytes()
        total = float(array.sum())
        after = own_kilobytes()
        array[0] = rank_number()
        return first, total, float(array[0]), after - before

    array = np.ones(8_000_000)  # 64 MB

    out = write.distributed(array)

    assert [one[:3] for one in out] == [(1.0, 8e6, 0.0), (1.0, 8e6, 1.0)]
    assert all(grown < 8_000 for *_, grown in out), "reading made a private copy"
    assert array[0] == 1.0


def own_kilobytes() -> int:
    with open("/proc/self/smaps_rollup") as f:
        lines = f.read().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Anonymous"))


own_kilobytes.__module__ = "__main__"


def test_tensors_frames_and_read_only_arrays_arrive_writable() -> None:
    import pandas as pd
    import torch

    @distributed(gpus=2)
    def use(tensor: Any, frame: Any, array: Any) -> Any:
        tensor.add_(rank_number())
        frame["x"] += rank_number()
        return float(tensor[0]), float(frame["x"].iloc[0]), array.flags.writeable

    tensor = torch.ones(1_000_000)
    frame = pd.DataFrame({"x": np.ones(1_000_000)})
    array = np.ones(1_000_000)

    out = use.distributed(tensor, frame, array)

    assert out == [(1.0, 1.0, True), (2.0, 2.0, True)]
    assert float(tensor[0]) == 1.0
    assert float(frame["x"].iloc[0]) == 1.0


def test_a_definition_is_taken_as_it_is_at_the_call() -> None:
    names: dict[str, Any] = {"__name__": "__main__", "distributed": distributed}
    exec("@distributed(gpus=2)\ndef run(x): return helper(x) * SCALE", names)
    exec("def helper(x): return x + 1\nSCALE = 3", names)
    assert names["run"].distributed(1) == [6, 6]
    exec("SCALE = 10\ndef helper(x): return -x", names)
    assert names["run"].distributed(1) == [-10, -10]


def test_what_cannot_travel_is_named_before_anything_starts() -> None:
    class Writer:
        def __init__(self) -> None:
            self.lock = threading.Lock()

    state = {"opts": {"writer": Writer()}}

    @distributed(gpus=2)
    def use(x: int) -> int:
        state["opts"]["writer"].lock.acquire()
        return x

    with pytest.raises(UnpicklableError) as caught:
        use.distributed(1)
    text = str(caught.value)
    assert "state" in text and "writer" in text and "use" in text
    assert len(text.splitlines()) <= 3


@pytest.mark.parametrize("make", [socket.socket, lambda: sqlite3.connect(":memory:")])
def test_an_argument_that_cannot_travel_is_named(make: Any) -> None:
    value = make()

    @distributed(gpus=2)
    def use(thing: Any) -> None: ...

    with pytest.raises(UnpicklableError, match="thing"):
        use.distributed(value)
    value.close()


def test_arguments_of_a_call_are_let_go() -> None:
    """Neither the notebook nor its shared memory keeps them."""
    import gc
    import os
    import weakref

    class Big:
        def __init__(self) -> None:
            self.array = np.zeros(1_000_000)

    @distributed(gpus=2)
    def use(big: Any) -> int:
        return len(big.array)

    big = Big()
    gone = weakref.ref(big)
    assert use.distributed(big) == [1_000_000] * 2
    before = set(os.listdir("/proc/self/fd"))
    assert use.distributed(big) == [1_000_000] * 2
    memory = [
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in set(os.listdir("/proc/self/fd")) - before
        if os.path.islink(f"/proc/self/fd/{fd}")
    ]
    del big
    gc.collect()
    assert gone() is None
    assert not [name for name in memory if "memfd" in name]
