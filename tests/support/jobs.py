"""Notebooks that a program runs: written, run to the program's end, and read again."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat

from tests.support import scripts
from tests.support.notebook import plain


@dataclass(frozen=True)
class Executed:
    code: int
    said: str
    notebook: Any  # None if it was not written

    def output(self, cell: int) -> str:
        """What a cell shows, errors included."""
        parts = []
        for one in self.notebook.cells[cell].outputs:
            parts.append(one.get("text", "") or "\n".join(one.get("traceback", [])))
        return plain("".join(parts))


def write(path: Path, cells: Sequence[str], parameters: int | None = None) -> None:
    """parameters: the cell with papermill's tag."""
    notebook = nbformat.v4.new_notebook()
    notebook.metadata.kernelspec = {
        "name": "serverless-gpu",
        "display_name": "Serverless GPU",
        "language": "python",
    }
    for number, cell in enumerate(cells):
        tags = ["parameters"] if number == parameters else []
        notebook.cells.append(nbformat.v4.new_code_cell(cell, metadata={"tags": tags}))
    nbformat.write(notebook, path)


def run(command: Sequence[str], folder: Path, out: str, **env: str) -> Executed:
    """Runs the program in the folder; `out` is the notebook that it writes there. None of its
    processes may be left."""
    mark = uuid.uuid4().hex
    ended = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **env, "SERVERLESS_GPU_TEST_MARK": mark},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=scripts.PATIENCE,
    )
    left = scripts.wait_until_none(mark)
    assert not left, f"{len(left)} processes are left"
    path = folder / out
    read = nbformat.read(path, as_version=4) if path.exists() else None
    return Executed(ended.returncode, plain(ended.stdout), read)
