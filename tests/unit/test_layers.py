"""The arrows between the layers, and the sizes at which a file must split."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INCLUDE = re.compile(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]', re.MULTILINE)
PYTHON_HEADER = re.compile(r"Python\.h|pybind11/.*")
KERNEL_HEADER = re.compile(r"(xeus|xeus-zmq|kernel)/")
STANDARD_HEADER = "[a-z_]+"
MAGICS_MAY = re.compile(rf"magics/.*|runtime/(result|rank_set)\.h|{STANDARD_HEADER}")
HARD_LIMITS = {".h": 200, ".cpp": 500}


def files(layer: str) -> list[Path]:
    found = [path for path in sorted((ROOT / layer).rglob("*")) if path.suffix in HARD_LIMITS]
    assert found, f"no source in {layer}/"
    return found


def pure_files(layer: str) -> list[Path]:
    """The files of a layer but for the bindings, which are where Python meets it."""
    return [path for path in files(layer) if not path.name.startswith("bindings")]


def includes(path: Path) -> list[str]:
    return INCLUDE.findall(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("layer", ["runtime", "magics"])
def test_only_kernel_includes_xeus_or_kernel(layer: str) -> None:
    for path in files(layer):
        wrong = [name for name in includes(path) if KERNEL_HEADER.match(name)]
        assert not wrong, f"{path.relative_to(ROOT)} includes {wrong}"


def test_runtime_knows_neither_magics_nor_jupyter() -> None:
    for path in pure_files("runtime"):
        wrong = [name for name in includes(path) if re.match("magics/|.*jupyter", name)]
        assert not wrong, f"{path.relative_to(ROOT)} includes {wrong}"


@pytest.mark.parametrize("layer", ["runtime", "magics"])
def test_only_the_bindings_include_python(layer: str) -> None:
    for path in pure_files(layer):
        wrong = [name for name in includes(path) if PYTHON_HEADER.fullmatch(name)]
        assert not wrong, f"{path.relative_to(ROOT)} includes {wrong}"


def test_magics_stands_on_the_standard_library() -> None:
    for path in pure_files("magics"):
        wrong = [name for name in includes(path) if not MAGICS_MAY.fullmatch(name)]
        assert not wrong, f"{path.relative_to(ROOT)} includes {wrong}"


@pytest.mark.parametrize("layer", ["runtime", "magics", "kernel"])
def test_no_file_is_longer_than_the_limit(layer: str) -> None:
    for path in files(layer):
        lines = len(path.read_text(encoding="utf-8").splitlines())
        assert lines <= HARD_LIMITS[path.suffix], f"{path.relative_to(ROOT)}: {lines} lines"
