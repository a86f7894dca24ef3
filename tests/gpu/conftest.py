"""Tests on real GPUs: one pool for all of them, and a table of what they measured."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Behind the installed package: the sources beside these tests have no extension modules.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from serverless_gpu import distributed, pool, sessions
from tests.support.gpu_ranks import total
from tests.support.gpus import GPUS, Measured, Reduce
from tests.support.leftovers import nothing_left  # noqa: F401
from tests.support.stopping import Ready, Stopper

_figures = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_figures] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    figures = terminalreporter.config.stash[_figures]
    if figures:
        terminalreporter.section("measured")
        terminalreporter.write_line("\n".join(figures))


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Measured:
    """Puts a figure into the table at the end: `measured("memory back", 0.09, "s")`."""

    def note(what: str, value: float, unit: str) -> None:
        request.config.stash[_figures].append(f"{what:<60} {value:10.3f} {unit}")

    return note


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without MLflow, which has tests of its own; and without a session from the test before."""
    monkeypatch.setenv("SERVERLESS_GPU_MLFLOW", "off")
    yield
    sessions.session().stop()


@pytest.fixture
def no_contexts_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of memory: spares have none of it, at the start and at the end."""
    monkeypatch.setenv("SERVERLESS_GPU_IDLE_S", "0")
    pool.get().core.cool()


@pytest.fixture
def reduce_all() -> Reduce:
    """A call in which all GPUs work together: EXPECTED, if they can."""
    return distributed(gpus=GPUS or 1)(total).distributed


@pytest.fixture
def ready(tmp_path: Path) -> Iterator[Ready]:
    one = Ready(tmp_path / "ready")
    yield one
    one.close()


@pytest.fixture
def stopper(ready: Ready) -> Stopper:
    return Stopper(ready)
