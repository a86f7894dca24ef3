"""Memory runs out: the error says so, by the system's own count, and the notebook goes on."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support import cgroups, pressed

pytestmark = pytest.mark.timeout(240)

KILLS = """
@distributed(gpus=2)
def grow():
    held = []
    while os.environ["RANK"] == "1":
        held.append(b"x" * 10_000_000)
    import time
    time.sleep(600)

@distributed(gpus=2)
def killed():
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    import time
    time.sleep(600)
"""


def test_a_rank_that_the_system_killed_for_its_memory_is_named_so(tmp_path: Path) -> None:
    code = (
        KILLS
        + """
attempt("first", fine.distributed)
attempt("grow", grow.distributed)
attempt("killed", killed.distributed)
attempt("after", fine.distributed)
"""
    )
    with cgroups.limited("memory", 1500 << 20) as join:
        lines = pressed.lines_of(code, tmp_path, before=join)
    assert lines["first"] == "[0, 1]", lines
    assert lines["grow"].startswith("RankDiedError rank 1 (pid "), lines
    assert (
        "was killed by SIGKILL: the system was out of memory (cgroup limit 1.5 GiB; the rank"
        in (lines["grow"])
    )
    assert "somebody sent it" in lines["killed"], lines
    assert "Not for want of memory" in lines["killed"], lines
    assert "out of memory" not in lines["killed"], lines
    assert lines["after"] == "[0, 1]", lines


def test_a_worker_of_a_rank_that_the_system_killed_is_named_too(tmp_path: Path) -> None:
    code = """
@distributed(gpus=2)
def load():
    if os.environ["RANK"] == "0":
        return 0
    import torch
    class Greedy(torch.utils.data.Dataset):
        def __len__(self):
            return 8
        def __getitem__(self, i):
            held = []
            while True:
                held.append(b"x" * 10_000_000)
    for _ in torch.utils.data.DataLoader(Greedy(), num_workers=1):
        pass

attempt("load", load.distributed)
attempt("after", fine.distributed)
"""
    with cgroups.limited("memory", 1500 << 20) as join:
        lines = pressed.lines_of(code, tmp_path, before=join)
    assert "DataLoader worker" in lines["load"], lines
    assert "The system was out of memory (cgroup limit 1.5 GiB) and killed" in lines["load"]
    assert lines["after"] == "[0, 1]", lines


def test_what_does_not_fit_is_refused_before_the_system_kills_the_notebook(tmp_path: Path) -> None:
    code = """
@distributed(gpus=2)
def first_of(array):
    return float(array[0])

@distributed(gpus=2)
def back(count):
    import numpy as np
    return np.ones(count if os.environ["RANK"] == "0" else 1)

attempt("small", lambda: first_of.distributed(np.ones(10_000_000)))
large = np.ones(100_000_000)
attempt("argument", lambda: first_of.distributed(large))
del large
attempt("result", lambda: back.distributed(80_000_000))
attempt("after", lambda: [len(one) for one in back.distributed(10_000_000)])
"""
    with cgroups.limited("memory", 1500 << 20) as join:
        lines = pressed.lines_of(code, tmp_path, before=join)
    assert lines["small"] == "[1.0, 1.0]"
    assert lines["argument"].startswith("OSError [Errno 12] 0.7 GiB of shared memory are needed")
    assert "the result cannot be returned: [Errno 12] 0.6 GiB" in lines["result"]
    assert lines["after"] == "[10000000, 1]", lines
