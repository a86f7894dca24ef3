"""What is in the wheel and in the source distribution."""

from __future__ import annotations

import re
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from .conftest import COMMAND_TIMEOUT_S, ROOT, run

# The first test waits for the build.
pytestmark = pytest.mark.timeout(COMMAND_TIMEOUT_S)

NEEDED = (
    r"serverless_gpu/__init__\.py",
    r"serverless_gpu/_core\..*\.so",
    r"serverless_gpu/_kernel\..*\.so",
    r"serverless_gpu/serverless-gpu-guard",
    r"serverless_gpu/cli\.py",
    r"serverless_gpu/py\.typed",
    r"serverless_gpu_air\.pth",
    r".*\.data/data/share/jupyter/kernels/serverless-gpu/kernel\.json",
    r".*\.dist-info/entry_points\.txt",
    r".*\.dist-info/licenses/LICENSE",
)
ALLOWED = re.compile(
    r"serverless_gpu/(.*\.pyi?|.*\.so|py\.typed|serverless-gpu-guard)"
    r"|[^/]*\.data/data/share/jupyter/kernels/serverless-gpu/[^/]*"
    r"|_serverless_gpu_air\.py|serverless_gpu_air\.pth"
    r"|[^/]*\.dist-info/.*"
)


@pytest.fixture(scope="module")
def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


@pytest.mark.parametrize("pattern", NEEDED)
def test_the_wheel_holds(names: list[str], pattern: str) -> None:
    assert any(re.fullmatch(pattern, name) for name in names), "\n".join(names)


def test_the_wheel_holds_nothing_else(names: list[str]) -> None:
    assert [name for name in names if not ALLOWED.fullmatch(name)] == []


def test_the_wheel_holds_every_module_of_the_source(names: list[str]) -> None:
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "serverless_gpu").rglob("*.py")}
    modules |= {path.name for path in (ROOT / "share" / "alias").glob("*.py")}
    assert {name for name in names if name.endswith(".py")} == modules


def test_the_guard_is_executable_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        mode = archive.getinfo("serverless_gpu/serverless-gpu-guard").external_attr >> 16
    assert mode & 0o111 == 0o111, oct(mode)


def test_the_wheel_is_for_this_python_and_system(wheel: Path) -> None:
    version = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert re.search(rf"-{version}-{version}-linux_\w+\.whl$", wheel.name), wheel.name


def test_a_wheel_can_be_built_from_the_source_distribution(tmp_path: Path) -> None:
    script = f"from scikit_build_core.build import build_sdist; build_sdist({str(tmp_path)!r})"
    run(sys.executable, "-c", script)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        held = {name.partition("/")[2] for name in tar.getnames()}
    sources = run("git", "ls-files", "CMakeLists.txt", "cmake", "kernel", "magics", "runtime",
                  "serverless_gpu", "share").split()  # fmt: skip
    assert [name for name in sources if name not in held and (ROOT / name).exists()] == []
    assert [name for name in held if name.startswith((".venv", "build", ".git/", "dist"))] == []
