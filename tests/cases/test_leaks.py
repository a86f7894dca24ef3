"""However a call, its ranks or the notebook end: what they had started is gone, and soon."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.support import kernel_client, scripts
from tests.support.kernel_client import TestKernel, gone_within
from tests.support.notebook import Notebook, plain

ENV = {"SERVERLESS_GPU_ACCELERATOR": "cpu", "SERVERLESS_GPU_MLFLOW": "off"}
_PR_SET_CHILD_SUBREAPER = 36


def numbers(text: str) -> list[int]:
    """The pids that ranks have printed as `pid 123`."""
    return [int(found) for found in re.findall(r"pid (\d+)", plain(text))]


#: Ranks that nothing but force ends, each in another way.
DEAF = """
@distributed(gpus=4)
def deaf():
    import atexit, ctypes, signal
    pg(); rank = dist.get_rank()
    signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGINT, signal.SIG_IGN)
    atexit.register(time.sleep, 9999)
    print("pid", os.getpid(), flush=True)
    if rank == 0: time.sleep(9999)
    if rank == 1: ctypes.CDLL(None).sleep(9999)
    if rank == 2:
        lock = ctypes.create_string_buffer(64)
        for _ in range(2): ctypes.PyDLL(None).pthread_mutex_lock(lock)
    dist.barrier()
deaf.distributed()
"""


def restart(kernel: TestKernel) -> None:
    kernel.manager.restart_kernel(now=False)


def shut_down(kernel: TestKernel) -> None:
    kernel.manager.shutdown_kernel()


def kill(kernel: TestKernel) -> None:
    os.kill(kernel.pid, signal.SIGKILL)


@pytest.mark.parametrize("end", [restart, shut_down, kill], ids=lambda end: end.__name__)
def test_c002_c019_c049_nothing_is_left_of_a_notebook(end: Callable[[TestKernel], None]) -> None:
    with kernel_client.running(ENV) as kernel:
        notebook = Notebook(kernel)
        notebook.ok("%%distributed --gpus 2\nimport torch; kept = torch.ones(1_000_000)")
        below = psutil.Process(kernel.pid)
        sent = kernel.send(DEAF)
        ranks: list[int] = []
        for message in kernel.published(_deadline(), "four ranks that have begun"):
            if message["parent_header"].get("msg_id") == sent:
                ranks += numbers(message["content"].get("text", ""))
            if len(ranks) == 4:
                break
        pids = {*ranks, *(child.pid for child in below.children(recursive=True))}
        assert len(pids) >= 8  # the session's ranks, the fork server, the guard's halves
        end(kernel)
        left = [pid for pid in pids if not gone_within(pid, 20)]
        assert not left


def _deadline() -> float:
    return time.monotonic() + kernel_client.PATIENCE


def test_c002_one_call_releases_the_ranks(notebook: Notebook) -> None:
    said = notebook.ok(
        """
        @distributed(gpus=2)
        def who():
            torch.KEEP = torch.ones(5_000_000); print("pid", os.getpid())
        who.distributed()
        """
    )
    notebook.ok("%distributed stop")
    assert len(numbers(said)) == 2
    assert all(gone_within(pid, 20) for pid in numbers(said))


LOADER = """
class Slow(torch.utils.data.Dataset):
    def __len__(self): return 1000
    def __getitem__(self, i): time.sleep(0 if i == 0 else 9999); return i
@distributed(gpus=2, timeout={timeout})
def f(kill=False):
    import signal
    loader = iter(torch.utils.data.DataLoader(Slow(), num_workers=3, batch_size=1)); next(loader)
    pids = [os.getpid(), *(worker.pid for worker in loader._workers)]
    print(*(f"pid {{pid}}" for pid in pids), flush=True)
    if kill and os.environ["RANK"] == "1": os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(9999)
f.distributed({kill})
"""


@pytest.mark.parametrize("ending", ["stop", "timeout", "kill"])
def test_c047_loader_workers_end_with_their_rank(notebook: Notebook, ending: str) -> None:
    timeout = "3" if ending == "timeout" else "None"
    cell = LOADER.format(timeout=timeout, kill=ending == "kill")
    if ending == "stop":
        run = notebook.stop(cell, at="pid")
        assert run.content["ename"] == "KeyboardInterrupt"
    else:
        run = notebook.run(cell)
        assert run.status == "error"
        assert ("did not end within" if ending == "timeout" else "SIGKILL") in notebook.shown(run)
    pids = numbers(run.out)
    assert len(pids) in (4, 8)  # Stop may come when one rank has its workers
    assert all(gone_within(pid, 20) for pid in pids)


def test_c049_deaf_ranks_are_killed_and_it_is_said(notebook: Notebook) -> None:
    notebook.ok("from serverless_gpu import call; before = call.GRACE; call.GRACE = 1.0")
    run = notebook.stop(DEAF, at="pid")
    notebook.ok("call.GRACE = before")
    assert run.content["ename"] == "KeyboardInterrupt"
    # Rank 3 is let out of its barrier, by an error.
    assert "ranks 0-2 had to be killed" in notebook.shown(run)
    assert all(gone_within(pid, 20) for pid in numbers(run.out))


@pytest.fixture
def subreaper() -> Iterator[None]:
    """Orphans become this process's children, as under systemd or a container's init."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    yield
    prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest.mark.usefixtures("subreaper")
def test_c085_ranks_end_with_the_notebook_under_a_subreaper(tmp_path: Path) -> None:
    code = """
        import os, time
        from serverless_gpu import distributed
        @distributed(gpus=2)
        def f():
            print("ready", flush=True); time.sleep(9999)
        f.distributed()
    """
    with scripts.running(code, tmp_path, **ENV) as script:
        script.wait_for("ready")
        script.process.send_signal(signal.SIGKILL)
        script.process.wait(scripts.PATIENCE)
        assert not scripts.wait_until_none(script.mark)


def test_c023_a_rank_alone_in_a_collective_is_no_success_and_can_be_stopped(
    notebook: Notebook,
) -> None:
    run = notebook.stop(
        """
        @distributed(gpus=2)
        def epoch():
            pg(); n = 10 + dist.get_rank()
            for i in range(n):
                if i == 10: print("one batch more", flush=True)
                x = torch.ones(1); dist.all_reduce(x)
            return n
        epoch.distributed()
        """,
        at="one batch more",
    )
    assert run.content["ename"] == "KeyboardInterrupt"


def test_a_session_says_what_went_with_a_killed_rank(notebook: Notebook) -> None:
    notebook.ok("from serverless_gpu import call; before = call.GRACE; call.GRACE = 1.0")
    notebook.ok(
        """
        %%distributed --gpus 2
        import os, signal, time
        rank = int(os.environ["RANK"]); model, step = "model", 7
        def helper(): pass
        """
    )
    run = notebook.stop(
        """
        %%distributed
        if rank == 1:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # deaf from here on
            print("ready", flush=True)
        time.sleep(9999)
        """,
        at="ready",
    )
    notebook.ok("call.GRACE = before")
    assert "rank 1 had to be killed" in notebook.shown(run)
    assert "Rank 1 had ended and is replaced." in plain(run.out)
    assert "Gone with it: rank, model, step, helper; imports too." in plain(run.out)
    notebook.ok("%%distributed --ranks 0 --pull model,step\npass")
    notebook.ok("assert (model, step) == (['model'], [7])")
