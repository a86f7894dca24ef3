"""MLflow imported late: by a rank that was not forked with it, or by a subprocess of a rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .support import LIMIT_S, PYTHONPATH, Notebook
from .test_semantics import all_runs

ENTRY_POINT = """[mlflow.tracking_store]
serverless-gpu = serverless_gpu.tracking.rank:on_mlflow_import
"""

RANK = """
import json, subprocess, sys
from serverless_gpu.tracking import rank
assert "mlflow" not in sys.modules
rank.activate(json.loads(sys.argv[1]))
{body}
rank.deactivate()
"""

IN_RANK = """
import mlflow
assert mlflow.active_run() is not None
with mlflow.start_run(nested=True, run_name="inner"):
    mlflow.log_metric("inner", 1.0)
mlflow.log_metric("late", 1.0)
"""

IN_SUBPROCESS = """
code = "import mlflow; mlflow.log_metric('late', 1.0); print(mlflow.active_run().info.run_id)"
subprocess.run([sys.executable, "-c", code], check=True)
"""


@pytest.fixture
def installed(tmp_path: Path) -> str:
    """A folder for PYTHONPATH in which the package's entry point is declared."""
    info = tmp_path / "site" / "serverless_gpu_for_tests-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: serverless-gpu-for-tests\n")
    (info / "entry_points.txt").write_text(ENTRY_POINT)
    return str(info.parent)


@pytest.mark.parametrize("body", [IN_RANK, IN_SUBPROCESS])
def test_mlflow_imported_late_logs_into_the_calls_run(
    notebook: Notebook, installed: str, body: str
) -> None:
    run = notebook.begin()
    config = json.dumps({**run.rank_config(), "rank": 0})
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([PYTHONPATH, installed])}
    command = [sys.executable, "-c", RANK.format(body=body), config]
    rank = subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True)
    while rank.poll() is None:
        run.info()
        try:
            _out, errors = rank.communicate(timeout=0.05)
        except subprocess.TimeoutExpired:
            continue
        assert rank.returncode == 0, errors
    run.end("FINISHED", timeout=LIMIT_S)
    top = [made for made in all_runs() if "mlflow.parentRunId" not in made.data.tags]
    assert [made.data.metrics for made in top] == [{"late": 1.0}]


def test_mlflow_elsewhere_is_not_touched_by_the_entry_point(
    clean_environment: None, installed: str
) -> None:
    script = (
        "import warnings; warnings.simplefilter('error', UserWarning); import mlflow;"
        "from mlflow.tracking._tracking_service import utils;"
        "print(mlflow.active_run(), utils._tracking_store_registry.get_store.__module__)"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([PYTHONPATH, installed])}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=LIMIT_S)
    expected = "None mlflow.tracking._tracking_service.registry\n"
    assert done.stdout == expected, done.stderr
    assert os.listdir() == []
