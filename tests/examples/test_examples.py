"""Each example runs as a user would run it in CI, and shows what it promises."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from serverless_gpu import accelerator

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.ipynb"))
pytestmark = pytest.mark.timeout(420)


def execute(notebook: Path, folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "nbconvert", "--to", "notebook", "--execute"]
    command += ["--ExecutePreprocessor.timeout=300", "--output-dir", str(folder), str(notebook)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    executed: dict[str, Any] = json.loads((folder / notebook.name).read_text())
    return executed


def outputs(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [o for c in notebook["cells"] if c["cell_type"] == "code" for o in c["outputs"]]


def text_of(output: dict[str, Any]) -> str:
    text = output.get("text") or output.get("data", {}).get("text/plain", "")
    return re.sub(r"\x1b\[[\d;]*m", "", "".join(text))


@pytest.mark.parametrize("notebook", EXAMPLES, ids=lambda path: path.stem)
def test_every_call_of_an_example_ends_with_its_status_and_its_run(
    notebook: Path, tmp_path: Path
) -> None:
    executed = execute(notebook, tmp_path)
    # The doctor's own call is no run.
    cells = [c for c in executed["cells"] if not c["source"][0].startswith("%distributed")]
    shown = outputs({"cells": cells})
    status = [t for o in shown if (t := text_of(o))[:1] in tuple("✓✗■●")]
    assert status, "no call of the example has a status line"
    assert all(t[0] in "✓✗" for t in status), status
    assert all("MLflow run" in t for t in status), status
    for cell in executed["cells"]:
        wanted = "raises-exception" in cell["metadata"].get("tags", [])
        errors = [o for o in cell.get("outputs", []) if o["output_type"] == "error"]
        assert bool(errors) == wanted, cell["source"]


def test_first_steps_shows_ranks_results_and_the_error_of_the_rank_that_failed(
    tmp_path: Path,
) -> None:
    executed = execute(EXAMPLES[0], tmp_path)
    shown = [text_of(o) for o in outputs(executed)]
    assert "[0, 1, 4, 9, 16, 25, 36, 49]" in shown
    assert "[0, 10, 20, 30, 40, 50, 60, 70]" in shown
    assert "[0-7] 224.0" in shown  # state of the session after the failure, all ranks alike
    assert sum("hello from every rank" in text for text in shown) >= 1
    error = next(o for o in outputs(executed) if o["output_type"] == "error")
    traceback = "\n".join(error["traceback"])
    assert "a bad batch on rank 3" in error["evalue"]
    assert 'raise ValueError("a bad batch on rank 3")' in re.sub(r"\x1b\[[\d;]*m", "", traceback)
    assert "serverless_gpu/" not in traceback


def test_what_goes_wrong_is_named_and_the_next_call_works(tmp_path: Path) -> None:
    notebook = next(path for path in EXAMPLES if path.stem == "05_when_things_go_wrong")
    shown = [text_of(o) for o in outputs(execute(notebook, tmp_path))]
    text = "\n".join(shown)
    assert shown.count("[4.0, 4.0, 4.0, 4.0]") == 4
    assert "rank 2: ValueError: bad batch" in text
    assert re.search(r"rank 3 \(pid \d+\) was killed by SIGKILL", text)
    assert re.search(r"\[1-3\] in all_reduce at Cell In\[\d+\], line \d+", text)
    assert "[0-3] 6.0" in shown  # the session's variables after a failure
    assert "[1] False" in shown  # those of a rank that died


def test_output_is_merged_under_its_ranks(tmp_path: Path) -> None:
    notebook = next(path for path in EXAMPLES if path.stem == "03_output")
    executed = execute(notebook, tmp_path)
    text = "\n".join(text_of(o) for o in outputs(executed))
    assert sorted(re.findall(r"\[([\d,-]+)\] rank \d has its own figure", text)) == list("01234567")
    assert text.count("40/40") <= 8, "a bar has left more than its last state"
    assert "--- rank 3" in text and "line 19" in text
    assert len([o for o in outputs(executed) if "image/png" in o.get("data", {})]) == 2
    assert "step on 1" in text and "step on 0" not in text


def test_examples_are_saved_without_outputs() -> None:
    for path in EXAMPLES:
        notebook = json.loads(path.read_text())
        assert outputs(notebook) == [], f"{path.name}: clear its outputs before saving"
        assert notebook["metadata"]["kernelspec"]["name"] == "serverless-gpu"


def test_tracking_shows_one_run_for_all_ranks_and_what_is_in_it(tmp_path: Path) -> None:
    notebook = next(path for path in EXAMPLES if path.stem == "06_tracking")
    text = "\n".join(text_of(o) for o in outputs(execute(notebook, tmp_path)))
    assert "one run for all ranks: True" in text
    assert "FINISHED {'lr': '0.1', 'batch': '64'} 20 losses of rank 3" in text
    assert "called with lr=0.1" in text
    assert "['serverless_gpu', 'source.py']" in text
    assert re.search(r"0\.01 \d\.\d+\n0\.1 0\.\d+", text)


def test_gpus_are_shown_or_said_not_to_be_there(tmp_path: Path) -> None:
    notebook = next(path for path in EXAMPLES if path.stem == "04_gpus")
    text = "\n".join(text_of(o) for o in outputs(execute(notebook, tmp_path)))
    ranks = accelerator.detect().default_ranks
    backend = "nccl" if accelerator.detect().is_gpu else "gloo"
    assert re.search(r"ok +all-reduce +" + backend, text)
    assert "on the first one alone: [" in text
    assert "AcceleratorMismatchError: gpu_type='V100'" in text
    assert f"over {backend}: 1 + 2 + ... = {ranks * (ranks + 1) // 2}" in text
    assert re.search(r"loss after 20 steps in bf16: 0\.\d+", text)
    assert "67 MB on " + ("cuda" if backend == "nccl" else "cpu") in text
    assert "all ranks had their GPU: True" in text
