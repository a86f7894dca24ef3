"""Each process behind a notebook is killed before, during and after a call: the notebook goes on,
and nothing is left when it ends. (What needs no Python is in the C++ tests beside this.)"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(240)

#: Seconds in which everything must be gone; it takes a quarter of one on a quiet machine.
END_LIMIT = 30.0

NOTEBOOK = """
import os, signal, sys, threading, time
from serverless_gpu import distributed, pool, _core

victim, moment = sys.argv[1:]

@distributed(gpus=2)
def total():
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    x = torch.ones(1)
    dist.all_reduce(x)
    return x.item()

@distributed(gpus=2)
def work():
    import time
    print("working", flush=True)
    time.sleep(2)
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    dist.barrier()
    return "worked"

def pid_of(victim):
    owner = pool.get()
    pids = owner.core.pids()
    if victim == "warden":
        return pids["guard"]
    if victim == "keeper":
        below = _core.descendants(pids["guard"])
        return next(pid for pid, parent, _ in below if parent == pids["guard"])
    if victim == "fork_server":
        return pids["fork_server"]
    child, _ = {"rendezvous": owner._store, "tracker": owner._tracker_service}[victim]
    deadline = time.monotonic() + 60  # the first call may be over before there is a tracker
    while child not in owner.core.pids()["children"]:
        assert time.monotonic() < deadline, f"no {victim}"
        time.sleep(0.01)
    return owner.core.pids()["children"][child]

def kill():
    pid = pid_of(victim)
    handle = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    import select
    assert select.select([handle], [], [], 30)[0], "the victim did not die"

assert total.distributed() == [2.0, 2.0]
outcome = "none"
if moment == "during":
    timer = threading.Timer(0.7, kill)
    timer.start()
    try:
        outcome = str(work.distributed())
    except BaseException as error:
        outcome = f"{type(error).__name__}: {error}"
    timer.join()
else:
    kill()
print("outcome", outcome.splitlines()[0], flush=True)

# A death may be noticed by the call that runs into it; the one after that works in any case.
tries = []
for _ in range(3):
    try:
        tries.append(total.distributed())
        break
    except Exception as error:
        tries.append(f"{type(error).__name__}: {error}")
print("after", tries, flush=True)
folder = pool.running().core.folder
print("folder", folder, flush=True)
if moment == "last":
    os.kill(os.getpid(), signal.SIGKILL)
"""

VICTIMS = ("warden", "keeper", "fork_server", "rendezvous", "tracker")
#: "idle": between two calls; "during": in one; "last": between calls, then the notebook is killed.
MOMENTS = ("idle", "during", "last")


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "notebook.py"
    path.write_text(textwrap.dedent(NOTEBOOK))
    yield path


def marked(mark: str) -> list[int]:
    """Processes with the test's mark in their environment: all below its notebook."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            environment = Path("/proc", entry, "environ").read_bytes()
        except OSError:
            continue
        if mark.encode() in environment:
            found.append(int(entry))
    return found


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("victim", VICTIMS)
def test_the_notebook_goes_on_and_nothing_is_left(
    victim: str, moment: str, script: Path, tmp_path: Path
) -> None:
    # A mark of this test's own is in the environment of all that descends from the notebook.
    mark = f"VICTIM_TEST={tmp_path}"
    env = {**os.environ, "VICTIM_TEST": str(tmp_path), "SERVERLESS_GPU_ACCELERATOR": "cpu"}
    done = subprocess.run(
        [sys.executable, str(script), victim, moment],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=200,
    )
    lines = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    assert done.returncode == (-9 if moment == "last" else 0), done.stderr[-2000:]
    assert lines["after"].endswith("[2.0, 2.0]]"), (lines, done.stderr[-1000:])
    if moment == "during" and victim in ("tracker", "fork_server"):
        assert lines["outcome"] == "['worked', 'worked']"  # none of the call's business
    if moment == "during" and victim in ("warden", "keeper"):
        assert "guard" in lines["outcome"]
    limit = time.monotonic() + END_LIMIT
    for pid in marked(mark):
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        left = select.select([handle], [], [], max(0.0, limit - time.monotonic()))[0]
        os.close(handle)
        assert left, f"process {pid} is left {END_LIMIT:.0f} s after the notebook's end"
    assert marked(mark) == []
    assert not Path(lines["folder"]).exists()
