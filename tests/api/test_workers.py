"""Processes and threads that user code starts in a rank: they work, and they end with it."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import psutil
import pytest
from rank_code import rank_number

from serverless_gpu import RankDiedError, distributed
from serverless_gpu.sessions import Session


def notebook(source: str) -> dict[str, Any]:
    """What a cell defines: classes of `__main__`, for cloudpickle and for multiprocessing."""
    names: dict[str, Any] = {"__name__": "__main__", "distributed": distributed}
    exec(source, names)
    return names


LOADER = """
import os, torch
class Squares(torch.utils.data.Dataset):
    def __len__(self): return 16
    def __getitem__(self, i): return torch.tensor([float(i)]), os.getpid()
@distributed(gpus=2)
def load(method):
    loader = torch.utils.data.DataLoader(
        Squares(), batch_size=4, num_workers=2, persistent_workers=method == "fork",
        multiprocessing_context=method)
    total, pids = 0.0, set()
    for epoch in range(2 if method == "fork" else 1):
        for values, workers in loader:
            total += values.sum().item()
            pids.update(workers.tolist())
    return total, sorted(pids), os.getpid()
"""


@pytest.mark.parametrize(("method", "total"), [("fork", 240), ("spawn", 120), ("forkserver", 120)])
def test_loaders_with_workers_read_a_dataset_of_the_notebook(method: str, total: int) -> None:
    out = notebook(LOADER)["load"].distributed(method)

    assert [one[0] for one in out] == [total, total]
    pids = [pid for _, workers, rank in out for pid in [*workers, rank]]
    assert len(set(pids)) >= 4
    left = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    assert not psutil.wait_procs(left, timeout=10)[1]


def test_loaders_left_in_the_middle_leave_no_worker() -> None:
    @distributed(gpus=2)
    def start() -> list[int]:
        import torch

        iterator = iter(torch.utils.data.DataLoader(list(range(1000)), num_workers=2))
        next(iterator)
        start.kept = iterator
        return [worker.pid for worker in iterator._workers]

    pids = [pid for one in start.distributed() for pid in one]
    assert len(pids) == 4
    left = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    assert not psutil.wait_procs(left, timeout=10)[1]


POOL = """
import multiprocessing
def work(x): return x * 2, __name__
@distributed(gpus=2)
def run(method):
    with multiprocessing.get_context(method).Pool(2) as pool:
        return pool.map(work, range(3))
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_pool_of_the_user_s_own_works(method: str) -> None:
    out = notebook(POOL)["run"].distributed(method)
    assert [[value for value, _ in one] for one in out] == [[0, 2, 4]] * 2


def test_the_usual_guard_of_main_modules_is_harmless() -> None:
    source = """
started = []
@distributed(gpus=2)
def run():
    started.append(__name__)
    if __name__ == "__main__":
        started.append("guarded")
    return started
"""
    assert notebook(source)["run"].distributed() == [["__main__", "guarded"]] * 2


def test_subprocesses_of_ranks_are_heard(capfd: pytest.CaptureFixture[str]) -> None:
    @distributed(gpus=2)
    def shell() -> str:
        import subprocess

        subprocess.run(["sh", "-c", "echo heard from $RANK; echo complaint >&2"], check=True)
        return subprocess.check_output(["sh", "-c", "echo $WORLD_SIZE"], text=True)

    assert shell.distributed() == ["2\n", "2\n"]
    said = capfd.readouterr()
    assert "[0] heard from 0" in said.out and "[1] heard from 1" in said.out
    assert "complaint" in said.err


def test_a_forked_child_that_comes_back_does_not_answer_for_the_rank() -> None:
    @distributed(gpus=2)
    def fork() -> Any:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            return "the child's"
        return os.waitpid(pid, 0)[1], os.getpid() == parent

    assert fork.distributed() == [(0, True)] * 2


def test_threads_that_go_on_do_not_hold_up_the_call() -> None:
    @distributed(gpus=2)
    def background() -> str:
        import threading

        threading.Thread(target=time.sleep, args=(3600,)).start()
        return "returned"

    assert background.distributed() == ["returned"] * 2
    assert background.distributed() == ["returned"] * 2


def test_nothing_of_a_call_is_left_in_shared_memory() -> None:
    @distributed(gpus=2)
    def share() -> float:
        import torch

        class Big(torch.utils.data.Dataset):
            def __len__(self) -> int:
                return 8

            def __getitem__(self, i: int) -> Any:
                return torch.ones(100_000)

        loader = torch.utils.data.DataLoader(Big(), batch_size=4, num_workers=2)
        return sum(float(batch.sum()) for batch in loader)

    before = set(os.listdir("/dev/shm"))
    for _ in range(3):
        assert share.distributed() == [800_000.0] * 2
    ours = [
        name
        for name in set(os.listdir("/dev/shm")) - before
        if os.stat(f"/dev/shm/{name}").st_uid == os.getuid()
        and name.startswith(("torch", "psm", "sem"))
    ]
    assert ours == []


def test_each_rank_leads_a_session_of_processes(session: Session) -> None:
    @distributed(gpus=2)
    def led() -> tuple[int, int, int]:
        return os.getpid(), os.getsid(0), os.getpgrp()

    for ranks in (led.distributed(), distributed(gpus=2, session=True)(led).distributed()):
        assert [one[1:] for one in ranks] == [(one[0], one[0]) for one in ranks]


def test_what_a_rank_started_ends_with_it_and_not_with_another(session: Session) -> None:
    @distributed(gpus=2, session=True)
    def start() -> list[int]:
        import subprocess

        daemon = "sleep 3600 >/dev/null & echo $!"
        said = subprocess.run(["setsid", "sh", "-c", daemon], stdout=subprocess.PIPE, text=True)
        job = subprocess.Popen(["sleep", "3600"], preexec_fn=os.setpgrp)
        return [job.pid, int(said.stdout)]

    @distributed(gpus=2, session=True)
    def die() -> None:
        if rank_number() == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    first, second = ([psutil.Process(pid) for pid in pids] for pids in start.distributed())
    with pytest.raises(RankDiedError, match="SIGKILL"):
        die.distributed()
    assert not psutil.wait_procs(first, timeout=10)[1]
    assert all(one.status() != psutil.STATUS_ZOMBIE for one in second)
    session.stop()
    assert not psutil.wait_procs(second, timeout=10)[1]
