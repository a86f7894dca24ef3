"""Random calls with random faults, one after the other; prints what there is before and after.

Every call's outcome is checked: a fault must give the error that it deserves, the rest must work.
"""

from __future__ import annotations

import gc
import json
import os
import random
import select
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from serverless_gpu import _core, call, distributed, errors, pool, session

call.GRACE = 1.0  # a rank that does not obey is killed soon
READY = os.environ["SOAK_READY"]  # a FIFO: ranks write there once they are where they should be


def announce() -> None:
    with open(READY, "wb", buffering=0) as fifo:
        fifo.write(b"r")


def work(deed: str, argument: Any) -> Any:
    import torch
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    if deed == "sum":
        dist.init_process_group("gloo")
        x = torch.ones(1000)
        dist.all_reduce(x)
        return float(x[0])
    if deed == "argument":
        return float(argument.sum())
    if deed == "result":
        return np.full(2_000_000, rank)
    if deed == "flood":
        for i in range(20_000):
            print("line", i)
        return rank
    if deed == "loader":
        data = torch.utils.data.TensorDataset(torch.arange(64.0))
        loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=2)
        return sum(float(batch.sum()) for (batch,) in loader)
    if rank == 1:
        if deed == "raise":
            raise ValueError("the soak's own")
        if deed == "sigkill":
            os.kill(os.getpid(), signal.SIGKILL)
        if deed == "exit":
            os._exit(3)
        if deed == "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
    if deed in ("raise", "sigkill", "exit", "segfault"):
        dist.init_process_group("gloo")
        dist.barrier()
    announce()
    time.sleep(600)
    return None


def on_ranks(ranks: int, timeout: float | None = None, in_session: bool = False) -> Any:
    return distributed(gpus=ranks, timeout=timeout, session=in_session)(work).distributed


class Soak:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.fifo = os.open(READY, os.O_RDWR | os.O_NONBLOCK)
        self.counts: dict[str, int] = {}
        self.deck: list[str] = []

    def one(self) -> None:
        ranks = self.random.choice((2, 3, 4))
        deeds: dict[str, Callable[[int], None]] = {
            "sum": self.sum,
            "argument": self.argument,
            "result": self.result,
            "flood": lambda n: self.expect(list(range(n)), on_ranks(n), "flood"),
            "loader": lambda n: self.expect([2016.0] * n, on_ranks(n), "loader"),
            "session": self.session_cell,
            "raise": lambda n: self.fails(ValueError, on_ranks(n), "raise"),
            "sigkill": lambda n: self.fails(errors.RankDiedError, on_ranks(n), "sigkill"),
            "exit": lambda n: self.fails(errors.RankDiedError, on_ranks(n), "exit"),
            "segfault": lambda n: self.fails(errors.RankDiedError, on_ranks(n), "segfault"),
            "deadline": lambda n: self.fails(
                errors.DistributedTimeoutError, on_ranks(n, timeout=0.5), "sleep"
            ),
            "stop": self.stopped,
            "session killed": self.session_killed,
            "fork server": lambda n: self.without("fork_server", n),
            "rendezvous": lambda n: self.without("rendezvous", n),
            "tracker": lambda n: self.without("tracker", n),
        }
        if not self.deck:  # a shuffled deck, so that a short soak has each of them too
            self.deck = self.random.sample(sorted(deeds), len(deeds))
        name = self.deck.pop()
        self.counts[name] = self.counts.get(name, 0) + 1
        print("call", name, ranks, flush=True)
        try:
            deeds[name](ranks)
        except BaseException as error:
            raise AssertionError(f"{name} on {ranks} ranks: {error!r}") from error

    def expect(self, value: Any, run: Any, deed: str, argument: Any = None) -> None:
        got = run(deed, argument)
        assert got == value, f"{got!r}, not {value!r}"

    def fails(self, kind: type[BaseException], run: Any, deed: str) -> None:
        try:
            run(deed, None)
        except kind:
            self.drain()
            return
        raise AssertionError(f"no {kind.__name__}")

    def sum(self, ranks: int) -> None:
        self.expect([float(ranks)] * ranks, on_ranks(ranks), "sum")

    def argument(self, ranks: int) -> None:
        self.expect([4e6] * ranks, on_ranks(ranks), "argument", np.ones(4_000_000))

    def result(self, ranks: int) -> None:
        got = on_ranks(ranks)("result", None)
        assert [int(one[-1]) for one in got] == list(range(ranks))

    def session_cell(self, ranks: int) -> None:
        one = session()
        one.run("kept = globals().get('kept', 0) + 1", options=call.CallOptions(mlflow="off"))
        assert min(one.pull("kept")) >= 1

    def session_killed(self, ranks: int) -> None:
        one = session()
        self.session_cell(ranks)
        kill = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
        try:
            one.run(kill, ranks=[0])
        except errors.RankDiedError:
            return
        raise AssertionError("no RankDiedError")

    def stopped(self, ranks: int) -> None:
        def press() -> None:
            for _ in range(ranks):
                assert select.select([self.fifo], [], [], 60)[0], "ranks did not get ready"
                os.read(self.fifo, 1)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=press)
        thread.start()
        try:
            self.fails(KeyboardInterrupt, on_ranks(ranks), "sleep")
        finally:
            thread.join()

    def without(self, victim: str, ranks: int) -> None:
        """A process of ours is killed; at the latest the second call after that works."""
        owner = pool.get()
        pids = owner.core.pids()
        if victim == "fork_server":
            pid = pids["fork_server"]
        else:
            service = owner._store if victim == "rendezvous" else owner._tracker_service
            if service is None or service[0] not in pids["children"]:
                return
            pid = pids["children"][service[0]]
        handle = os.pidfd_open(pid)
        os.kill(pid, signal.SIGKILL)
        assert select.select([handle], [], [], 30)[0], f"{victim} did not die"
        os.close(handle)
        try:
            self.sum(ranks)
        except errors.RankError:
            self.sum(ranks)

    def drain(self) -> None:
        while select.select([self.fifo], [], [], 0)[0]:
            os.read(self.fifo, 100)


def settle() -> None:
    """Until what the last call left behind is gone: retired ranks end, spares come up."""
    pool.get().ready.wait(60)
    work_off = on_ranks(2)
    work_off("sum", None)
    session().stop()
    limit, before, quiet = time.monotonic() + 60, None, 0
    while quiet < 20 and time.monotonic() < limit:
        now = sorted(pid for pid, _, _ in _core.descendants(os.getpid()))
        quiet = quiet + 1 if now == before else 0
        before = now
        time.sleep(0.05)
    gc.collect()


def state() -> dict[str, int]:
    folder = Path(pool.get().core.folder)
    status = Path("/proc/self/status").read_text()
    return {
        "processes": len(_core.descendants(os.getpid())),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "shm": len(os.listdir("/dev/shm")),
        "rss_mib": int(status.split("VmRSS:")[1].split()[0]) >> 10,
        "files": sum(not p.is_dir() and "logs" not in p.parts for p in folder.rglob("*")),
        "log_kib": sum(p.stat().st_size for p in folder.rglob("*.log")) >> 10,
    }


def main(calls: int, seed: int) -> None:
    soak = Soak(seed)
    session().run("", gpus=2)
    for _ in range(3):
        soak.sum(4)  # all that is made once is there
        soak.result(4)
    soak.argument(4)
    soak.expect(list(range(4)), on_ranks(4), "flood")  # the allocator keeps what that needs
    settle()
    before = state()
    for number in range(calls):
        soak.one()
        if number % 50 == 49:
            print("at", number + 1, json.dumps(state()), flush=True)
    settle()
    print("counts", json.dumps(soak.counts), flush=True)
    print("before", json.dumps(before), flush=True)
    print("after", json.dumps(state()), flush=True)
