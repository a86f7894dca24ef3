"""tests/gpu/run.sh refuses what cannot work before it builds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

RUN = Path(__file__).resolve().parents[1] / "gpu" / "run.sh"


def run(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        ["bash", str(RUN), *arguments],
        env={"PYTHON": sys.executable, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_part_that_is_none_is_named_with_those_there_are() -> None:
    for wrong in ("test", "test=10", "tests=soon"):
        code, said = run(wrong)
        assert code == 1 and wrong in said and "doctor" in said and "bench" in said


def test_a_bundle_for_another_python_is_refused(tmp_path: Path) -> None:
    (tmp_path / "python").write_text("2.7\n")
    code, said = run("--bundle", str(tmp_path), "--logs", str(tmp_path / "logs"), "doctor")
    assert code == 1
    assert "The bundle is for Python 2.7" in said
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert f"./dev gpu-bundle --python {version}" in said
