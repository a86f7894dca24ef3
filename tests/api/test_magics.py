"""`%%distributed` and `%distributed` in an IPython shell."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

import serverless_gpu
from serverless_gpu.errors import CellSyntaxError, RankError
from serverless_gpu.sessions import Session
from tests.support.shown import ranks_of


class Shell:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        config = Config()
        config.HistoryManager.enabled = False
        self.ip: Any = InteractiveShell(config=config, user_ns={})
        self._capsys = capsys
        serverless_gpu.load_ipython_extension(self.ip)

    def run(self, cell: str) -> tuple[str, BaseException | None]:
        """What the cell printed, both streams, without colours; and its error."""
        self._capsys.readouterr()
        result = self.ip.run_cell(cell)
        said = self._capsys.readouterr()
        text = re.sub(r"\x1b\[[0-9;]*m", "", said.out + said.err)
        return text, result.error_before_exec or result.error_in_exec

    def ok(self, cell: str) -> str:
        text, error = self.run(cell)
        assert error is None, text
        return text


@pytest.fixture
def shell(
    session: Session, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Shell]:
    monkeypatch.setenv("SERVERLESS_GPU_WARM", "0")
    yield Shell(capsys)


def test_a_cell_runs_on_every_rank(shell: Shell) -> None:
    text = shell.ok(
        "%%distributed --gpus 3\nimport os\nrank = int(os.environ['RANK'])\nprint('hi')"
    )
    assert ranks_of(text, "hi") == [0, 1, 2]
    text = shell.ok("%%distributed\nprint('rank', rank)")
    assert sorted(re.findall(r"\[(\d)\] rank (\d)", text)) == [(n, n) for n in "012"]


def test_the_last_expression_is_shown_once_where_ranks_agree(shell: Shell) -> None:
    assert shell.ok("%%distributed --gpus 3\n6 * 7").count("42") == 1
    assert "[0-2] 42" in shell.ok("%%distributed\n6 * 7")
    text = shell.ok("%%distributed\nimport os\nint(os.environ['RANK']) // 2")
    assert "[0-1] 0" in text and "[2] 1" in text
    assert "42" not in shell.ok("%%distributed\n6 * 7;")


def test_push_pull_and_ranks(shell: Shell) -> None:
    shell.ok("a, b = 1, [2]")
    shell.ok(
        "%%distributed --gpus 2 --push a,b --pull c\nimport os\n"
        "c = a + b[0] + int(os.environ['RANK'])"
    )
    assert shell.ip.user_ns["c"] == [3, 4]
    shell.ok("%%distributed --ranks 1 --pull c\nc = 0")
    assert shell.ip.user_ns["c"] == [0]
    text, error = shell.run("%%distributed --push nowhere\npass")
    assert error is not None and "--push nowhere: not defined in the notebook" in text


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--gpus two --nope", "--gpus takes a whole number"),
        ("--gpu 2", "unknown flag --gpu; did you mean --gpus?"),
        ("--help", "for help run %%distributed?"),
        ("--ranks 3-1", "--ranks takes ranks"),
        ("--gpu-type TPU", "--gpu-type 'TPU' is not known; known are H100"),
        ("--fresh --gpus 0", "--gpus takes"),
        ("--gpus 1000", "--gpus 1000: takes 1 to 128"),
        ("--ranks 7", "no rank 7"),
        ("--output 0,7", "--output 0,7: there is no rank 7; the ranks are 0-1"),
        ("--gpus 5", "--fresh --gpus 5"),
    ],
)
def test_a_wrong_flag_is_one_line(shell: Shell, flags: str, said: str) -> None:
    shell.ok("%%distributed --gpus 2\nx = 1")
    text, error = shell.run(f"%%distributed {flags}\nx = 2")
    assert error is not None
    assert said in text
    assert len(text.strip().splitlines()) == 1, text
    assert shell.ok("%%distributed\nx").count("1\n") == 1


def test_a_syntax_error_is_found_before_anything_is_sent(shell: Shell) -> None:
    text, error = shell.run("%%distributed --gpus 2\ndef broken(:")
    assert isinstance(error, CellSyntaxError)
    assert (error.found.lineno, type(error).__name__) == (2, "SyntaxError")
    assert text.count("SyntaxError") == 1
    assert serverless_gpu.session().gpus == 0


@pytest.mark.parametrize("above", ["# a comment", "import os", "x = 1\n"])
def test_a_magic_below_other_lines_is_told_where_it_belongs(shell: Shell, above: str) -> None:
    text, error = shell.run(f"{above}\n%%distributed --gpus 2\nx = 2")
    assert error is not None
    assert text.strip() == "UsageError: %%distributed begins its cell: move it to the first line"
    assert serverless_gpu.session().gpus == 0


def test_what_only_the_compiler_finds_is_found_before_anything_is_sent_too(shell: Shell) -> None:
    for line, said in (("return 5", "outside function"), ("break", "outside loop")):
        text, error = shell.run(f"%%distributed --gpus 2\nx = 1\n{line}")
        assert isinstance(error, CellSyntaxError)
        assert error.found.lineno == 3
        assert said in text and line in text
    assert serverless_gpu.session().gpus == 0
    shell.ok("%%distributed --gpus 2\nimport asyncio\nawait asyncio.sleep(0)")


@pytest.mark.parametrize("code", ['exec("x = = 1")', "import not_python"])
def test_a_syntax_error_of_a_rank_is_shown_as_other_errors_of_ranks(
    shell: Shell, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "not_python.py").write_text("x = = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    text, error = shell.run(f"%%distributed --gpus 2\n{code}")
    assert isinstance(error, SyntaxError) and isinstance(error, RankError)
    assert "Traceback of ranks 0-1" in text
    assert "    x = = 1\n        ^" in text
    assert "sessions.py" not in text and "IPython" not in text


def test_a_display_that_fails_is_told_and_the_cell_goes_on(shell: Shell) -> None:
    cell = """%%distributed --gpus 2
class Bad:
    def __repr__(self):
        raise ValueError("bad repr")
Bad()"""
    text = shell.ok(cell)
    assert ranks_of(text, "ValueError: bad repr") == [0, 1]
    assert re.search(r"line 4, in __repr__", text)
    assert "formatters.py" not in text


def test_the_magics_are_refused_in_a_rank(shell: Shell) -> None:
    for inner in ("%distributed status", "%%distributed --gpus 2\nx = 1"):
        text, error = shell.run(f"%%distributed --gpus 2\n{inner}")
        assert error is not None
        name = inner.split()[0]
        assert f"{name} works in the notebook, and this cell runs in its ranks already" in text


def test_a_variable_that_cannot_travel_goes_by_its_name(shell: Shell) -> None:
    shell.ok("import threading\nlock = {'a': [threading.Lock()]}")
    text, error = shell.run("%%distributed --gpus 2 --push lock\nx = 1")
    assert error is not None and "cannot send lock['a'][0] (a _thread.lock)" in text
    assert "the cell" in text
    text, error = shell.run(
        "%%distributed --gpus 2 --pull lock\nimport threading\nlock = [threading.Lock()]"
    )
    assert error is not None and "cannot send lock[0] (a _thread.lock)" in text
    assert "Traceback of ranks 0-1" in text
    text, error = shell.run("%%distributed --pull nowhere\nx = 1")
    assert isinstance(error, NameError)
    assert "--pull nowhere: not defined in this rank" in text and "cells.py" not in text


def test_a_rank_s_lines_are_numbered_as_the_notebook_s_cell(shell: Shell) -> None:
    shell.ok("%%distributed --gpus 2\nx = 1")
    _, error = shell.run("%%distributed\nx = 2\nx / 0")
    assert isinstance(error, RankError)
    (frame,) = error.failures[0].chain[-1].shown()
    assert (frame.line, frame.lines[-1]) == (3, "x / 0")


def test_magics_shell_commands_and_await_work_inside(shell: Shell) -> None:
    cell = """%%distributed --gpus 2
!echo shell-$RANK
x = !echo captured
%env FOO=bar
%time sum(range(1000))
import asyncio; await asyncio.sleep(.01)
import os
x[0] + os.environ["FOO"]
"""
    text = shell.ok(cell)
    assert re.search(r"\[0\] shell-0", text) and re.search(r"\[1\] shell-1", text)
    assert "[0-1] 'capturedbar'" in text
    assert "Wall time" in text


def test_timing_magics_may_stand_above(shell: Shell) -> None:
    text = shell.ok("%%time\n%%distributed --gpus 2\nprint('inside')")
    assert ranks_of(text, "inside") == [0, 1]
    assert "Wall time" in text


def test_an_error_is_the_rank_s_and_the_others_go_on(shell: Shell) -> None:
    shell.ok("%%distributed --gpus 2\nimport os\nrank = int(os.environ['RANK'])")
    text, error = shell.run("%%distributed\nassert rank == 0, 'rank check'")
    assert isinstance(error, AssertionError)
    assert "rank check" in text and "rank 1" in text
    assert "assert rank == 0" in text
    assert "cells.py" not in text and "call.py" not in text
    shell.ok("%%distributed\nassert rank < 2")


def test_the_output_flag_chooses(shell: Shell) -> None:
    shell.ok("%%distributed --gpus 3\nimport os\nrank = int(os.environ['RANK'])")
    text = shell.ok("%%distributed --output 1\nprint('line', rank)\nrank")
    assert "line 1" in text and "line 0" not in text and "line 2" not in text
    assert "line" not in shell.ok("%%distributed --output none\nprint('line', rank)")
    text = shell.ok("%%distributed --output all\nprint('same')")
    assert text.count("same") == 3


def test_exit_and_input_in_a_cell_are_refused_in_words(shell: Shell) -> None:
    shell.ok("%%distributed --gpus 2\nx = 1")
    for cell in ("exit()", "quit", "input('name? ')"):
        text, error = shell.run(f"%%distributed\n{cell}")
        assert error is not None, cell
        assert "rank" in text and "exit()" not in text.replace("----> 2 exit()", "")
    shell.ok("%%distributed\nassert x == 1")


def test_status_restart_stop_and_logs_speak(shell: Shell) -> None:
    shell.ok("%%distributed --gpus 2\nimport os\nprint('to the log', os.environ['RANK'])")
    text = shell.ok("%distributed status")
    assert re.search(r"Rank 1: pid \d+", text) and "CPU ranks" in text
    text = shell.ok("%distributed logs 1")
    assert "to the log 1" in text and "to the log 0" not in text
    text = shell.ok("%distributed logs 1,5-6")
    assert "Ranks 5-6 wrote nothing in the last call that has logs; ranks 0-1 did." in text
    assert "to the log 1" in text
    assert "New session of 2 ranks" in shell.ok("%distributed restart")
    assert re.search(r"Rank 1: (pid \d+|starting)", shell.ok("%distributed status"))
    assert "All rank processes have ended" in shell.ok("%distributed stop")
    assert "No rank processes yet" in shell.ok("%distributed status")
    text, error = shell.run("%distributed restat")
    assert error is not None and "did you mean restart?" in text


def test_help_comes_from_the_table_of_flags(shell: Shell) -> None:
    text = shell.ok("%%distributed?")
    for flag in ("--gpus", "--ranks", "--push", "--pull", "--fresh", "--output"):
        assert flag in text


def test_the_decorator_is_there_after_loading(shell: Shell) -> None:
    shell.ok("import os\n@distributed(gpus=2)\ndef f():\n    return int(os.environ['RANK'])")
    shell.ok("out = f.distributed()")
    assert shell.ip.user_ns["out"] == [0, 1]
