"""A wheel, and an environment that it is installed into."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DISTRIBUTION = "serverless-gpu-kernel"
COMMAND_TIMEOUT_S = 900.0  # the slowest is a build from nothing on a machine at other work


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """Runs a command that must succeed, and returns what it printed."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


def pip(*arguments: str | Path) -> str:
    return run(sys.executable, "-m", "pip", *arguments)


@dataclass(frozen=True)
class Environment:
    """A virtual environment of its own.

    Libraries that the package depends on come from the environment that runs the tests, which
    stands behind this one on `sys.path`; nothing is downloaded.
    """

    prefix: Path

    @property
    def python(self) -> Path:
        return self.prefix / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        return next(self.prefix.glob("lib/python3*/site-packages"))

    @property
    def package(self) -> Path:
        return self.site_packages / "serverless_gpu"

    @staticmethod
    def create(prefix: Path) -> Environment:
        run(sys.executable, "-m", "venv", "--without-pip", prefix)
        environment = Environment(prefix)
        (environment.site_packages / "libraries.pth").write_text(
            sysconfig.get_path("purelib") + "\n", encoding="utf-8"
        )
        return environment

    def pip(self, *arguments: str | Path) -> str:
        return pip("--python", self.python, *arguments)

    def files(self) -> set[Path]:
        """Every file, byte code too."""
        found = (path for path in self.prefix.rglob("*") if not path.is_dir())
        return {path.relative_to(self.prefix) for path in found}


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree. Built in the folder of ./dev's build, so mostly a look."""
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with the wheel installed."""
    environment = Environment.create(tmp_path_factory.mktemp("installed") / "venv")
    environment.pip("install", "--no-deps", "--no-index", wheel)
    return environment
