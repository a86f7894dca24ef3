"""Notebooks run by papermill: parameters reach ranks, and what goes wrong ends the job."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support import jobs
from tests.support.notebook import PREAMBLE


def execute(folder: Path, cells: list[str], *flags: str) -> jobs.Executed:
    """Runs the cells after two others: the usual first one and `lr = 0.1`, the parameters."""
    jobs.write(folder / "job.ipynb", [PREAMBLE, "lr = 0.1", *cells], parameters=1)
    command = [sys.executable, "-m", "papermill", "--no-progress-bar", *flags]
    return jobs.run([*command, "job.ipynb", "out.ipynb"], folder, "out.ipynb")


def shown(ended: jobs.Executed) -> str:
    """By all cells: papermill adds some of its own."""
    cells = ended.notebook.cells
    return "".join(ended.output(n) for n, cell in enumerate(cells) if cell.cell_type == "code")


TRAINS = """
@distributed(gpus=2)
def train():
    if lr > 1 and os.environ["RANK"] == "1": raise AssertionError(f"diverged at {lr}")
    return lr
train.distributed()
"""


def test_parameters_reach_ranks(tmp_path: Path) -> None:
    ended = execute(tmp_path, [TRAINS, "%%distributed --push lr\nlr * 2"], "-p", "lr", "0.5")
    assert ended.code == 0, ended.said
    assert ended.notebook.cells[3].outputs[-1].data["text/plain"] == "[0.5, 0.5]"
    assert any("1.0" in str(one) for one in ended.notebook.cells[4].outputs)


def test_a_failing_rank_fails_the_job_and_its_error_is_in_the_notebook(tmp_path: Path) -> None:
    ended = execute(tmp_path, [TRAINS, "print('not reached')"], "-p", "lr", "3")
    assert ended.code == 1
    for said in (ended.said, shown(ended)):
        assert "Traceback of rank 1" in said and "AssertionError: diverged at 3" in said, said
    assert "not reached" not in shown(ended)


def test_a_cell_beyond_its_time_ends_the_job(tmp_path: Path) -> None:
    hangs = "%%distributed --gpus 2\nprint('begun', flush=True)\ntime.sleep(3600)"
    ended = execute(
        tmp_path, ["%%distributed --gpus 2\nimport time", hangs], "--execution-timeout", "5"
    )
    assert ended.code == 1
    assert "CellTimeoutError" in ended.said
    assert "[0-1] begun" in shown(ended)
