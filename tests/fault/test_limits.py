"""Descriptors, processes, shared memory and disks run out: the error names the limit, the notebook
lives, and the next call works once there is enough."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support import cgroups, pressed

pytestmark = pytest.mark.timeout(240)

ALL = str([1.0] * 8)


def limits_were_named_and_lifted(lines: dict[str, str]) -> None:
    """The limit of processes, by both calls under it; the call after them had its ranks."""
    for low in ("low0", "low1"):
        assert lines[low].startswith("PoolError "), lines
        assert "ulimit -u" in lines[low] and "pids.max" in lines[low]
    assert lines["lifted"] == ALL, lines


def test_a_low_limit_of_descriptors_is_named_and_can_be_lifted(tmp_path: Path) -> None:
    code = """
import resource
for turn in range(2):
    attempt(f"low{turn}", lambda: eight.distributed(np.ones(100_000)))
attempt("own", lambda: len(os.listdir("/proc/self/fd")) < 24)
resource.setrlimit(resource.RLIMIT_NOFILE, (1000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
attempt("lifted", lambda: eight.distributed(np.ones(100_000)))
"""
    lines = pressed.lines_of(code, tmp_path, before="ulimit -S -n 24")
    for low in ("low0", "low1"):
        assert "the notebook is out of file descriptors (ulimit -n is 24" in lines[low], lines
        assert "raise it with resource.setrlimit, or use fewer ranks" in lines[low]
    assert lines["own"] == "True"  # the notebook itself can go on
    assert lines["lifted"] == ALL, lines


def test_eight_ranks_need_few_descriptors(tmp_path: Path) -> None:
    code = """
for turn in range(3):
    attempt(f"turn{turn}", lambda: eight.distributed(np.ones(100_000)))
attempt("spare", lambda: len([open("/dev/null") for _ in range(16)]))
"""
    lines = pressed.lines_of(code, tmp_path, before="ulimit -S -n 128")
    assert [lines[f"turn{turn}"] for turn in range(3)] == [ALL] * 3, lines
    assert lines["spare"] == "16"


def test_ranks_may_open_as_many_files_as_the_system_allows(tmp_path: Path) -> None:
    code = """
@distributed(gpus=2)
def limit():
    import resource
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]

attempt("limit", limit.distributed)
"""
    lines = pressed.lines_of(code, tmp_path, before="ulimit -S -n 200; ulimit -H -n 2000")
    assert lines["limit"] == "[2000, 2000]"


@pytest.mark.parametrize(
    ("processes", "refused"),
    [
        (2, "the rank processes could not be started: "),
        (6, "rank 0 could not run: no fork server can be started (Resource temp"),
        (9, "no process can be made for a rank (Resource temporarily unavailable; ulimit -u"),
    ],
    ids=["no guard", "no fork server", "no ranks"],
)
def test_a_low_limit_of_processes_is_named_and_can_be_lifted(
    processes: int, refused: str, tmp_path: Path
) -> None:
    code = """
for turn in range(2):
    attempt(f"low{turn}", lambda: eight.distributed(np.ones(100_000)))
open(os.environ["PIDS_LIMIT"], "w").write("max")
attempt("lifted", lambda: eight.distributed(np.ones(100_000)))
"""
    with cgroups.limited("pids", processes) as join:
        limit = join.split("> ")[1].replace("cgroup.procs", "pids.max")
        lines = pressed.lines_of(code, tmp_path, before=join, PIDS_LIMIT=limit)
    assert refused in lines["low0"] and refused in lines["low1"], lines
    limits_were_named_and_lifted(lines)


@pytest.mark.parametrize(
    ("processes", "refused"),
    [
        (1, "the rank processes could not be started: "),
        (4, "rank 0 could not run: no fork server can be started (Resource temp"),
        (5, "rank 0 could not run: no fork server can be started (Resource temp"),
        (
            6,
            "rank 0 could not run: no process can be made for a rank (Resource temporarily "
            "unavailable; ulimit -u is 6,",
        ),
    ],
    ids=["no guard", "half a guard", "no fork server", "no ranks"],
)
def test_a_users_own_limit_of_processes_is_named_and_raising_it_in_the_notebook_is_enough(
    processes: int, refused: str, tmp_path: Path
) -> None:
    code = """
import resource
for turn in range(2):
    attempt(f"low{turn}", lambda: eight.distributed(np.ones(100_000)))
hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
resource.setrlimit(resource.RLIMIT_NPROC, (hard, hard))
attempt("lifted", lambda: eight.distributed(np.ones(100_000)))

@distributed(gpus=2)
def limit():
    return resource.getrlimit(resource.RLIMIT_NPROC)[0]

attempt("ranks", lambda: limit.distributed() == [hard, hard])
"""
    before = pressed.as_another_user(f"prlimit --nproc={processes}:")
    alone = {"HOME": str(tmp_path), "OPENBLAS_NUM_THREADS": "1"}  # numpy's threads count, too
    lines = pressed.lines_of(code, tmp_path, before=before, **alone)
    assert refused in lines["low0"], lines
    limits_were_named_and_lifted(lines)
    assert lines["ranks"] == "True"


@pytest.mark.parametrize("processes", [20, 22, 24])
def test_a_limit_that_lets_some_ranks_start_is_named_and_raising_it_in_the_notebook_is_enough(
    processes: int, tmp_path: Path
) -> None:
    """What cannot start is, from the lowest limit up: a rank, a rank's thread, the rendezvous."""
    code = """
import resource
for turn in range(2):
    attempt(f"low{turn}", lambda: eight.distributed(np.ones(100_000)))
hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
resource.setrlimit(resource.RLIMIT_NPROC, (hard, hard))
attempt("lifted", lambda: eight.distributed(np.ones(100_000)))
"""
    before = pressed.as_another_user(f"prlimit --nproc={processes}:")
    alone = {"HOME": str(tmp_path), "OPENBLAS_NUM_THREADS": "1"}  # numpy's threads count, too
    lines = pressed.lines_of(code, tmp_path, before=before, **alone)
    for low in ("low0", "low1"):
        assert lines[low] == ALL or ("ulimit -u" in lines[low] and "pids.max" in lines[low]), lines
    assert lines["lifted"] == ALL, lines


def test_a_full_shared_memory_is_named_and_arguments_do_not_need_it(tmp_path: Path) -> None:
    code = """
@distributed(gpus=2)
def more(array):
    return array + 1

@distributed(gpus=2)
def touch():
    if os.environ["RANK"] == "0":
        return
    import mmap
    with open("/dev/shm/large", "w+b") as file:
        os.unlink(file.name)
        file.truncate(100_000_000)
        memory = mmap.mmap(file.fileno(), 100_000_000)
        memory[:] = b"x" * 100_000_000

@distributed(gpus=2)
def load():
    if os.environ["RANK"] == "0":
        return
    import torch
    class Large(torch.utils.data.Dataset):
        def __len__(self):
            return 8
        def __getitem__(self, i):
            return torch.ones(2_000_000)
    for _ in torch.utils.data.DataLoader(Large(), num_workers=1):
        pass

attempt("arrays", lambda: [len(one) for one in more.distributed(np.ones(2_000_000))])
attempt("bus", touch.distributed)
attempt("load", load.distributed)
attempt("after", fine.distributed)
"""
    lines = pressed.lines_of(code, tmp_path, before=pressed.mounted("/dev/shm", "4m"))
    assert lines["arrays"] == "[2000000, 2000000]"
    assert "was killed by SIGBUS | A bus error comes when shared memory is used up" in lines["bus"]
    for line in (lines["bus"], lines["load"]):
        assert "/dev/shm holds 4 MiB. In a container, start it with --shm-size=8g" in line
    assert lines["after"] == "[0, 1]", lines


@pytest.mark.parametrize("tracking", ["off", "always"])
def test_a_full_disk_stops_no_call(tracking: str, tmp_path: Path) -> None:
    code = """
@distributed(gpus=2)
def flood():
    for i in range(60_000):
        print("line", i, "x" * 80)
    return "done"

@distributed(gpus=2)
def store():
    import tempfile
    if os.environ["RANK"] == "1":
        with tempfile.TemporaryFile() as file:
            file.write(b"x" * 10_000_000)

@distributed(gpus=2)
def together():
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    x = torch.ones(1)
    dist.all_reduce(x)
    return x.item()

from serverless_gpu import logs
pool.get().ready.wait(60)  # imports look for a folder of temporary files that is not full
attempt("flood", flood.distributed)
last = pool.running()
held = sum(path.stat().st_size for path in (last.folder / "logs").glob("*/*"))
lost = sum(loss[0] for loss in last.core.log_losses()[1].values())
whole = 2 * sum(len(f"line {i} {'x' * 80}\\n") for i in range(60_000))
attempt("counted", lambda: whole <= held + lost < whole + 10_000)  # the file's own words
attempt("logs", lambda: logs.of_last_call(last, None).splitlines()[0])
attempt("free", lambda: os.statvfs(os.environ["TMPDIR"]).f_bfree)
attempt("full", together.distributed)
attempt("store", store.distributed)
pool.stop()
attempt("anew", together.distributed)
"""
    folder = tmp_path / "small"
    folder.mkdir()
    before = pressed.mounted(folder, "2m")
    env = {"TMPDIR": str(folder), "XDG_RUNTIME_DIR": "", "SERVERLESS_GPU_MLFLOW": tracking}
    lines = pressed.lines_of(code, tmp_path, before=before, **env)
    assert lines["flood"] == "['done', 'done']"
    assert lines["counted"] == "True"
    lack = (
        r"The logs of ranks 0-1 in \S+/logs/call-%s lack [\d,]+ bytes that could not be written "
        r"\(No space left on device; see df -h\)"
    )
    assert re.fullmatch(lack % 1, lines["logs"]), lines["logs"]
    assert re.fullmatch(lack % r"\d", "The " + lines["The"]), lines["The"]
    assert lines["free"] == "0"
    assert lines["full"] == "[2.0, 2.0]", lines
    assert "No space left on device | A disk is full" in lines["store"]
    assert lines["anew"] == "[2.0, 2.0]", lines
