"""Completion and help in a `%%distributed` cell."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

import serverless_gpu
from serverless_gpu import _core, call, completion, peek
from serverless_gpu.completion import body_start
from serverless_gpu.sessions import Session

Complete = Callable[[str], set[str]]


@pytest.fixture
def complete(monkeypatch: pytest.MonkeyPatch) -> Iterator[Complete]:
    """What an editor is offered at the end of a text."""
    monkeypatch.setenv("SERVERLESS_GPU_WARM", "0")
    config = Config()
    config.HistoryManager.enabled = False
    shell: Any = InteractiveShell(config=config, user_ns={"of_notebook": 1, "of_notebook_too": 2})
    serverless_gpu.load_ipython_extension(shell)

    def texts(code: str) -> set[str]:
        with provisionalcompleter():
            found = list(shell.Completer.completions(code, len(code)))
        return {code[: each.start] + each.text for each in found}

    yield texts


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("%%distributed --gpus 2 --gpu", {"%%distributed --gpus 2 --gpu-type"}),
        ("%%distributed --mlflow l", {"%%distributed --mlflow lazy"}),
        ("%%distributed --mlflow=o", {"%%distributed --mlflow=off"}),
        (
            "%%distributed --push of_n",
            {"%%distributed --push of_notebook", "%%distributed --push of_notebook_too"},
        ),
        (
            "%%distributed --push of_notebook,of_notebook_t",
            {"%%distributed --push of_notebook,of_notebook_too"},
        ),
        ("%distributed re", {"%distributed restart"}),
    ],
)
def test_the_first_line_is_completed_from_the_table_of_flags(
    complete: Complete, typed: str, offered: set[str]
) -> None:
    assert complete(typed) == offered


def test_the_code_is_completed_with_what_rank_0_has(complete: Complete, session: Session) -> None:
    session.run("class Batch:\n    label_map = 1\nbatch_of_rank = Batch()", gpus=2)
    cell = "%%distributed\nimport os\nbatch_of"
    assert complete(cell) == {cell + "_rank"}
    cell = "%%distributed\nbatch_of_rank.label"
    assert complete(cell) == {cell + "_map"}


def test_help_comes_from_rank_0(session: Session) -> None:
    session.run('def load(batch):\n    """Reads one."""', gpus=2)
    assert "Reads one." in peek.inspection("load", 0)["text/plain"]
    assert peek.inspection("nothing_of_that_name", 0) == {}


def test_while_ranks_are_busy_there_is_no_answer(session: Session) -> None:
    session.run("value = 1", gpus=2)
    with call.one_call:
        assert peek.completions("val", 3) == []
    assert peek.completions("val", 3)


def test_an_answer_that_takes_long_is_not_waited_for_and_costs_no_variable(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peek, "LIMIT_S", 0.05)
    session.run("import time\nclass Slow:\n    def __dir__(self):\n        time.sleep(1)\n", gpus=1)
    session.run("slow = Slow()")
    assert peek.completions("slow.", 5) == []
    assert session.pull("slow")  # waits for the rank, and finds it whole
    assert threading.active_count() < 20


def test_a_stop_while_an_answer_is_awaited_costs_no_later_call(
    session: Session, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(peek, "LIMIT_S", 60)
    monkeypatch.setattr(call, "one_call", threading.Lock())  # no other test's
    asked, over = tmp_path / "asked", tmp_path / "over"
    session.run(
        "import os, time\nclass Slow:\n    def __dir__(self):\n"
        f"        open({str(asked)!r}, 'w')\n"
        f"        while not os.path.exists({str(over)!r}): time.sleep(0.01)\n"
        "        return []\nslow = Slow()",
        gpus=1,
    )

    def stop_once_asked() -> None:
        while not asked.exists():
            time.sleep(0.01)
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGINT)

    threading.Thread(target=stop_once_asked).start()
    with pytest.raises(KeyboardInterrupt):
        peek.completions("slow.", 5)
    over.touch()
    assert call.one_call.acquire(timeout=60), "the turn was never given back"
    call.one_call.release()
    assert session.pull("slow")


def test_without_a_session_there_is_nothing_to_ask(session: Session) -> None:
    assert peek.completions("x", 1) == []
    assert peek.inspection("x", 0) == {}


def test_where_the_code_of_a_cell_begins() -> None:
    assert body_start("%%distributed --gpus 2\nx") == 23
    assert body_start("%%distributed") is None
    assert body_start("%%distributedly\nx") is None
    assert body_start("x = 1\ny") is None


def test_help_is_there_in_the_line_of_a_magic_and_that_of_the_flag_comes_first() -> None:
    code = "%%distributed --gpus 2 --timeout 3\nprint('--gpus')"
    assert completion.help_at(code, 3) == _core.cell_help()
    assert completion.help_at(code, code.index("out ")).startswith("  --timeout S ")
    assert completion.help_at(code, code.index("print")) == ""
    assert completion.help_at("x = 1\n%distributed st", 12) == _core.line_help()
    assert completion.help_at("x = 1", 2) == ""
