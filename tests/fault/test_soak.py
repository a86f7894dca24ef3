"""Random faults in a row, and storms: afterwards there is what was there before, and no more.

SERVERLESS_GPU_SOAK=200 makes the soak longer; SERVERLESS_GPU_SOAK_SEED is its seed.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support import pressed, scripts

CALLS = int(os.environ.get("SERVERLESS_GPU_SOAK", "20"))
SEED = os.environ.get("SERVERLESS_GPU_SOAK_SEED", "7")

#: What may come on top: caches of the allocator, modules that are imported late.
RSS_GROWTH_MIB = 64

pytestmark = pytest.mark.timeout(120 + 10 * CALLS)


def test_after_many_calls_with_faults_nothing_is_left_of_them(tmp_path: Path) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).resolve().parents[2])!r})
from tests.fault import soak_notebook
soak_notebook.main({CALLS}, {SEED})
"""
    fifo = tmp_path / "ready"
    os.mkfifo(fifo)
    env = {"SERVERLESS_GPU_ACCELERATOR": "cpu", "SOAK_READY": str(fifo)}
    # A /dev/shm of its own: what others put into theirs at the same time is not counted.
    before = pressed.mounted("/dev/shm", "1g")
    script = scripts.run(code, tmp_path, timeout=60 + 10 * CALLS, before=before, **env)
    assert script.code == 0, script.text[-3000:]
    lines = dict(line.split(" ", 1) for line in script.lines if " " in line)
    first, last = json.loads(lines["before"]), json.loads(lines["after"])
    print("\n".join(line for line in script.lines if line.split(" ")[0] in ("at", "counts")))
    print(first, last, sep="\n")
    assert last["rss_mib"] <= first["rss_mib"] + RSS_GROWTH_MIB
    for name in ("processes", "descriptors", "threads", "shm", "files"):
        assert last[name] <= first[name], f"{name}: {first[name]} before, {last[name]} after"


STORM = """
import gc, os, threading, time
from serverless_gpu import distributed, pool, session, sessions, _core, errors

one = session()

def alive():
    return {pid for pid, _, _ in _core.descendants(os.getpid())}

def settled():
    limit, before, quiet = time.monotonic() + 60, None, 0
    while quiet < 10 and time.monotonic() < limit:
        now = alive()
        quiet = quiet + 1 if now == before else 0
        before = now
        time.sleep(0.05)
    return len(before), len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

one.run("x = 1", gpus=2)
one.restart()
one.run("x = 1")
before = settled()
for turn in range(10):
    one.restart()
for turn in range(10):
    one.stop()
    one.run("import os", gpus=2)

busy = threading.Thread(target=lambda: outcomes.append(attempt()))
outcomes = []
def attempt():
    try:
        one.run("import time; print('begun', flush=True); time.sleep(1.5)")
        return "ran"
    except BaseException as error:
        return repr(error)
busy.start()
for turn in range(10):
    one.restart()
    one.stop()
    one.restart()
busy.join()
print("outcomes", outcomes, flush=True)
one.run("import os", gpus=2)
print("before", before, flush=True)
print("after", settled(), flush=True)
"""


def test_a_storm_of_restarts_and_stops_leaves_what_one_leaves(tmp_path: Path) -> None:
    env = {"SERVERLESS_GPU_ACCELERATOR": "cpu", "SERVERLESS_GPU_MLFLOW": "off"}
    script = scripts.run(STORM, tmp_path, **env)
    assert script.code == 0, script.text[-3000:]
    lines = dict(line.split(" ", 1) for line in script.lines if " " in line)
    assert lines["outcomes"] == "['ran']", script.text
    before = [int(n) for n in lines["before"].strip("()").split(",")]
    after = [int(n) for n in lines["after"].strip("()").split(",")]
    assert all(a <= b for a, b in zip(after, before, strict=True)), (before, after)
