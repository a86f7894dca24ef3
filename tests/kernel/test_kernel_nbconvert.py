"""Notebooks that run without a user."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nbformat

from tests.support.kernel_client import NAME, PATIENCE


def execute(cells: list[str], tmp_path: Path, *options: str) -> tuple[int, nbformat.NotebookNode]:
    """Run a notebook with nbconvert; exit status and the notebook as it was saved."""
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source) for source in cells],
        metadata={"kernelspec": {"name": NAME, "display_name": "", "language": "python"}},
    )
    path = tmp_path / "notebook.ipynb"
    nbformat.write(notebook, path)
    command = [sys.executable, "-m", "nbconvert", "--to", "notebook", "--execute", "--inplace"]
    done = subprocess.run(
        [*command, *options, str(path)], env=os.environ, timeout=3 * PATIENCE, check=False
    )
    return done.returncode, nbformat.read(path, as_version=4)


def text(cell: nbformat.NotebookNode) -> str:
    return "".join(each.get("text", "") for each in cell.outputs)


def test_twenty_thousand_prints_are_in_the_saved_notebook(tmp_path: Path) -> None:
    code = "for number in range(20000): print('line', number)"
    status, notebook = execute([code, "1 + 1"], tmp_path)
    assert status == 0
    assert text(notebook.cells[0]).splitlines() == [f"line {number}" for number in range(20000)]
    assert notebook.cells[1].outputs[0].data["text/plain"] == "2"


def test_an_error_fails_the_run(tmp_path: Path) -> None:
    status, _ = execute(["1 / 0", "print('must not run')"], tmp_path)
    assert status != 0


def test_errors_can_be_allowed(tmp_path: Path) -> None:
    status, notebook = execute(["1 / 0", "print('runs')"], tmp_path, "--allow-errors")
    assert status == 0
    assert notebook.cells[0].outputs[0].ename == "ZeroDivisionError"
    assert text(notebook.cells[1]) == "runs\n"


def test_a_cell_that_takes_too_long_is_interrupted(tmp_path: Path) -> None:
    options = ("--ExecutePreprocessor.timeout=3", "--ExecutePreprocessor.interrupt_on_timeout=True")
    status, notebook = execute(
        ["import time; time.sleep(1000)", "print('runs')"], tmp_path, *options, "--allow-errors"
    )
    assert status == 0
    assert notebook.cells[0].outputs[0].ename == "KeyboardInterrupt"
    assert text(notebook.cells[1]) == "runs\n"
