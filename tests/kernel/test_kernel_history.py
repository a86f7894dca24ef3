"""What is kept of the cells, and that nobody waits for it."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from serverless_gpu.kernel.history import CellHistory
from tests.support.kernel_client import PATIENCE, TestKernel


@pytest.fixture(scope="module")
def shell() -> Iterator[Any]:
    made: Any = InteractiveShell()  # type: ignore[no-untyped-call]
    yield made
    made.history_manager.end_session()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "history.sqlite"


@pytest.fixture
def history(shell: Any, file: Path) -> Iterator[CellHistory]:
    made = CellHistory(shell=shell, hist_file=str(file))
    yield made
    made.save_thread.stop()


def _saved(file: Path, count: int) -> list[str]:
    """The cells in the file, once there are `count`."""
    deadline = time.monotonic() + PATIENCE
    while True:
        with sqlite3.connect(file) as db:
            rows = db.execute("SELECT source_raw FROM history ORDER BY session, line").fetchall()
        if len(rows) >= count:
            return [source for (source,) in rows]
        assert time.monotonic() < deadline, f"{count} cells were not saved, only {rows}"
        time.sleep(0.01)


def _being_written(history: CellHistory) -> None:
    deadline = time.monotonic() + PATIENCE
    while history.db_input_cache or not history._writing.locked():
        assert time.monotonic() < deadline, "the first cell was not taken to be written"
        time.sleep(0.001)


def test_a_cell_begins_while_the_one_before_cannot_be_written(
    history: CellHistory, file: Path
) -> None:
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")  # whoever writes waits for it, as for a slow disk
    history.store_inputs(1, "first")
    _being_written(history)
    history.store_inputs(2, "second")
    assert history.db_input_cache == [(2, "second", "second")]
    other.execute("ROLLBACK")
    assert _saved(file, 2) == ["first", "second"]
    other.close()


def test_cells_in_a_row_are_all_saved_by_themselves(history: CellHistory, file: Path) -> None:
    for number in range(1, 101):
        history.store_inputs(number, f"cell {number}")
    assert _saved(file, 100) == [f"cell {number}" for number in range(1, 101)]


def test_a_search_sees_the_cell_that_has_just_begun(history: CellHistory) -> None:
    history.store_inputs(1, "needle = 1")
    assert [row[2] for row in history.search("needle*")] == ["needle = 1"]


def test_cells_that_are_counted_anew_are_saved_too(history: CellHistory, file: Path) -> None:
    for source in ("one", "two"):
        history.store_inputs(1, source)
    history.writeout_cache()
    history.store_inputs(1, "three")
    history.writeout_cache()
    assert sorted(_saved(file, 3)) == ["one", "three", "two"]


def test_values_are_saved_where_that_is_wanted(history: CellHistory, file: Path) -> None:
    history.db_log_output = True
    history.output_hist_reprs[1] = "42"
    history.store_inputs(1, "6 * 7")
    history.store_output(1)
    history.writeout_cache()
    with sqlite3.connect(file) as db:
        assert db.execute("SELECT line, output FROM output_history").fetchall() == [(1, "42")]


def test_cells_before_and_after_a_fork_are_saved(fresh: TestKernel) -> None:
    where = fresh.run("print(get_ipython().history_manager.hist_file)").out.strip()
    fork = "import os; child = os.fork()\nif child == 0: os._exit(0)\nos.waitpid(child, 0)[1]"
    assert fresh.run(fork).value == "0"
    fresh.run("'after the fork'")
    saved = _saved(Path(where), 3)
    assert fork in saved and "'after the fork'" in saved
