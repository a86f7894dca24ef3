"""Notebooks run by nbconvert in CI: they end, they fail when a rank fails, and they say why."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support import jobs
from tests.support.notebook import PREAMBLE


def execute(folder: Path, cells: list[str], *flags: str, **env: str) -> jobs.Executed:
    """Runs the cells, after the usual first one, by nbconvert; nothing of it may be left."""
    jobs.write(folder / "ci.ipynb", [PREAMBLE, *cells])
    convert = [sys.executable, "-m", "nbconvert", "--execute", "--to", "notebook"]
    return jobs.run(
        [*convert, *flags, "--output", "out.ipynb", "ci.ipynb"], folder, "out.ipynb", **env
    )


FAILS = """
@distributed(gpus=2)
def f():
    print("useful line")
    if os.environ["RANK"] == "1": raise AssertionError("accuracy 0.1 < 0.9")
f.distributed()
"""


def test_c088_a_failing_rank_fails_the_job_and_says_why(tmp_path: Path) -> None:
    ended = execute(tmp_path, [FAILS, "print('not reached')"])
    assert ended.code != 0
    assert "accuracy 0.1 < 0.9" in ended.said and "rank 1" in ended.said
    assert ended.notebook is None


def test_c088_with_allow_errors_the_notebook_holds_both(tmp_path: Path) -> None:
    magic = "%%distributed --gpus 2\nimport os\nassert os.environ['RANK'] == '0', 'rank check'"
    ended = execute(tmp_path, [FAILS, magic, "print('reached')"], "--allow-errors")
    assert ended.code == 0
    assert "useful line" in ended.output(1) and "accuracy 0.1 < 0.9" in ended.output(1)
    assert "rank check" in ended.output(2) and "rank 1" in ended.output(2)
    assert ended.output(3) == "reached\n"


KILLED = """
@distributed(gpus=2)
def f(whom):
    import signal
    pg()
    if dist.get_rank() == 1: os.kill(whom or os.getpid(), signal.SIGKILL)
    dist.barrier()
"""


@pytest.mark.parametrize(
    ("whom", "said"), [("0", "rank 1"), ("os.getpid()", "Kernel died")], ids=["rank", "kernel"]
)
def test_c026_a_killed_process_ends_the_job(tmp_path: Path, whom: str, said: str) -> None:
    ended = execute(tmp_path, [KILLED + f"f.distributed({whom})"])
    assert ended.code != 0
    assert said in ended.said


def test_c035_the_cell_timeout_stops_ranks_and_the_next_cell_runs(tmp_path: Path) -> None:
    cell = "@distributed(gpus=2)\ndef f(): time.sleep(3600)\nf.distributed()"
    ended = execute(
        tmp_path,
        [cell, "print('cell 2 ran')"],
        "--ExecutePreprocessor.timeout=10",
        "--ExecutePreprocessor.interrupt_on_timeout=True",
        "--allow-errors",
    )
    assert ended.code == 0
    assert "KeyboardInterrupt" in ended.output(1)
    assert ended.output(2) == "cell 2 ran\n"


def test_c089_much_output_without_home_or_terminal(tmp_path: Path) -> None:
    cell = """
@distributed(gpus=4)
def f():
    for i in range(25_000): print("line", i, "x" * 100)
f.distributed()
import resource
print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""
    home = tmp_path / "home"
    home.mkdir(mode=0o500)
    ended = execute(tmp_path, [cell], HOME=str(home), PYTHONUNBUFFERED="1")
    assert ended.code == 0, ended.said[-2000:]
    shown = ended.output(1)
    assert "line 24999" in shown
    assert int(shown.rpartition("peak ")[2]) < 1500


def test_in_ci_lines_of_ranks_are_live_on_stderr_with_their_cell(tmp_path: Path) -> None:
    cell = """
%%distributed --gpus 2
import sys
print("same on all")
for step in range(50): sys.stderr.write(f"\\rstep {step}/49")
sys.stderr.write("\\n")
print("\\x1b[31mred\\x1b[0m, no newline", end="")
""".strip()
    done = execute(tmp_path, [cell], CI="true")
    assert done.code == 0, done.said
    lines = [line for line in done.said.splitlines() if line.startswith("In [")]
    # Ranks that start far apart on a loaded machine have a line each.
    for text in ("same on all", "red, no newline", "step 49/49"):
        said = [line for line in lines if text in line]
        assert said in (
            [f"In [2] [0-1] {text}"],
            [f"In [2] [0] {text}", f"In [2] [1] {text}"],
            [f"In [2] [1] {text}", f"In [2] [0] {text}"],
        )
    assert len([line for line in lines if "step" in line]) <= 2
    assert done.output(1).count("same on all") == len([ln for ln in lines if "same" in ln])
    assert "In [2]" not in done.output(1)
    done = execute(tmp_path, [cell], CI="", SERVERLESS_GPU_CONSOLE="0")
    assert done.code == 0 and "same on all" not in done.said
