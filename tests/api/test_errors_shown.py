"""How a notebook shows our errors: the rank's own traceback, in IPython's look, short."""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from serverless_gpu import errors, serialize
from serverless_gpu.errors import RankDeath, build_error, build_timeout, capture_failure

Show = Callable[..., str]


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance(colors="linux")
    # As if it were a function of the package.
    exec(compile(inspect.getsource(call), errors.__file__, "exec"), globals(), shell.user_ns)
    yield shell
    InteractiveShell.clear_instance()


def call(function: Callable[[], Any], died: RankDeath | None = None) -> None:
    """Raises what ``function.distributed()`` raises if it fails like this on rank 3 of 8."""
    if died is not None:
        raise build_error({}, {3: died}, {}, 3, 8)
    try:
        function()
    except BaseException as error:
        failure = capture_failure(error, hide=[__file__])
    raise build_error({3: failure}, {}, {}, 3, 8)


def shown(shell: InteractiveShell, capsys: Any, *cells: str, plain: bool = True) -> str:
    """What the last of these cells prints."""
    for cell in cells:
        capsys.readouterr()
        shell.run_cell(cell, store_history=True)
    text: str = capsys.readouterr().out
    return re.sub("\x1b\\[[0-9;]*m", "", text) if plain else text


TRAIN = "def train():\n    batch = 1\n    raise ValueError('bad batch')\n"


def test_the_ranks_traceback_is_shown_from_the_users_cell_on(
    shell: InteractiveShell, capsys: Any
) -> None:
    text = shown(shell, capsys, TRAIN, "call(train)")
    assert [line for line in text.splitlines() if line.strip()] == [
        "-" * 75,
        "Cell In[2], line 1",
        "----> 1 call(train)",
        "ValueError" + "Traceback of rank 3 (most recent call last)".rjust(65),
        "Cell In[1], line 3, in train",
        "      1 def train():",
        "      2     batch = 1",
        "----> 3     raise ValueError('bad batch')",
        "ValueError: bad batch",
        "ranks 0-2,4-7 were stopped",
    ]


def test_ranks_that_raised_the_same_share_a_traceback(shell: InteractiveShell, capsys: Any) -> None:
    try:
        raise ValueError("bad batch")
    except ValueError as error:
        failure = capture_failure(error)
    shell.user_ns["error"] = build_error({0: failure, 2: failure}, {}, {}, 0, 3)
    text = shown(shell, capsys, "raise error")
    assert "Traceback of ranks 0,2 (most recent call last)" in text
    assert text.count("bad batch") == 2  # its line, and its message
    assert text.rstrip().endswith("rank 1 was stopped")


def test_frames_of_ours_are_shown_if_all_is_asked_for(shell: InteractiveShell, capsys: Any) -> None:
    source = "def train():\n    serialize.load([b'junk'], -1)\n"
    shell.user_ns["serialize"] = serialize
    assert "payload.py" not in shown(shell, capsys, source, "call(train)")
    text = shown(shell, capsys, "%xmode Verbose", "call(train)")
    assert "payload.py" in text
    assert "in call" in text  # our part of the notebook's side


@pytest.mark.timeout(60)  # IPython looked for a place in the rank's code without end
def test_an_error_in_the_handler_of_a_rank_s_error_is_shown_with_it(
    shell: InteractiveShell, capsys: Any
) -> None:
    handler = "try:\n    call(train)\nexcept ValueError as error:\n    error.missing\n"
    text = shown(shell, capsys, TRAIN, handler)
    parts = ("----> 3 raise ValueError", "rank 3: ValueError: bad batch", "has no attribute")
    places = [text.index(part) for part in parts]
    assert places == sorted(places)


def test_a_reply_names_what_the_rank_raised(shell: InteractiveShell, capsys: Any) -> None:
    shown(shell, capsys, TRAIN)
    with pytest.raises(ValueError) as caught:
        shell.user_ns["call"](shell.user_ns["train"])
    assert caught.value.reply_error() == ("ValueError", "bad batch")  # type: ignore[attr-defined]
    died = build_error({}, {3: RankDeath(12, signal=11)}, {}, 3, 8)
    assert died.reply_error()[0] == "RankDiedError"


def test_colours_are_there_unless_the_shell_has_none(shell: InteractiveShell, capsys: Any) -> None:
    assert "\x1b[31mValueError\x1b[39m: bad batch" in shown(
        shell, capsys, TRAIN, "call(train)", plain=False
    )
    shell.colors = "nocolor"
    assert "\x1b" not in shown(shell, capsys, "call(train)", plain=False)


def test_a_chain_is_shown_in_order(shell: InteractiveShell, capsys: Any) -> None:
    source = "def train():\n  try: {}['a']\n  except KeyError as e: raise ValueError('b') from e\n"
    text = shown(shell, capsys, source, "call(train)")
    places = [text.index(part) for part in ("KeyError: 'a'", "direct cause", "ValueError: b")]
    assert places == sorted(places)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="notes and groups came with Python 3.11")
def test_notes_and_the_exceptions_of_a_group_are_shown(
    shell: InteractiveShell, capsys: Any
) -> None:
    source = """
    def load(n):
        raise KeyError(n)
    def train():
        errors = []
        for n in (1, 2):
            try: load(n)
            except KeyError as error: errors.append(error)
        errors[1].add_note("of the second")
        group = ExceptionGroup("shards", errors)
        group.add_note("see the manual")
        raise group
    """
    text = shown(shell, capsys, textwrap.dedent(source).strip(), "call(train)")
    lines = text[text.rindex("ExceptionGroup: shards (2 sub-exceptions)") :].splitlines()
    place = ["     Cell In[1], line 2, in load", "         raise KeyError(n)"]
    assert [line for line in lines[1:-1] if "in train" not in line and "try:" not in line] == [
        "see the manual",
        "  1. KeyError: 1",
        *place,
        "  2. KeyError: 2",
        *place,
        "     of the second",
    ]


def test_a_recursion_is_shown_by_its_first_and_its_last_frame(
    shell: InteractiveShell, capsys: Any
) -> None:
    source = (
        "def f(n):\n    if n == 0: 1 / 0\n    g(n - 1)\ndef g(n):\n    f(n)\ndef train(): f(200)"
    )
    text = shown(shell, capsys, source, "call(train)")
    assert text.count("----> 3     g(n - 1)") == 2
    assert text.count("----> 5     f(n)") == 2
    assert "[... 396 frames left out]" in text
    assert text.count("left out") == 1


def test_a_message_of_many_lines_is_shown_once(shell: InteractiveShell, capsys: Any) -> None:
    source = "def train(): raise ValueError('first\\nsecond')"
    text = shown(shell, capsys, source, "call(train)")
    assert text.count("second") == 1 + source.count("second")
    assert text.rstrip().endswith("ranks 0-2,4-7 were stopped")


def test_an_exception_without_text_is_shown(shell: InteractiveShell, capsys: Any) -> None:
    text = shown(shell, capsys, "def train(): assert False", "call(train)")
    assert "AssertionError" in text
    assert text.rstrip().endswith("ranks 0-2,4-7 were stopped")


def test_a_death_shows_the_line_that_called(shell: InteractiveShell, capsys: Any) -> None:
    shell.user_ns["death"] = RankDeath(12, signal=11)
    text = shown(shell, capsys, "x = 1\ncall(None, death)")
    assert "Cell In[1], line 2" in text
    assert "----> 2 call(None, death)" in text
    assert "RankDiedError: rank 3 (pid 12) was killed by SIGSEGV" in text


def test_a_refusal_shows_the_line_that_called_and_its_two_lines(
    shell: InteractiveShell, capsys: Any
) -> None:
    shell.user_ns["dump"] = serialize.dump
    source = "import threading\nlock = threading.Lock()\ndef f():\n    return lock\n"
    text = shown(shell, capsys, source, "dump((f, (), {}))")
    assert "----> 1 dump((f, (), {}))" in text
    refusal = "cannot send lock (a _thread.lock): f uses lock at Cell In[1], line 4"
    assert f"UnpicklableError: {refusal}" in text
    assert text.rstrip().endswith("Create it inside f, or keep it out of what is sent.")
    assert "payload.py" not in text


def test_a_timeout_shows_the_stacks_and_not_what_one_rank_raised(
    shell: InteractiveShell, capsys: Any
) -> None:
    try:
        raise ValueError("unrelated")
    except ValueError as error:
        failure = {0: capture_failure(error)}
    shell.user_ns["late"] = build_timeout(5, {0: "File a", 1: "File b"}, failure, {})
    text = shown(shell, capsys, "raise late")
    assert "DistributedTimeoutError: the call did not end within 5 s" in text
    assert "[1] File b" in text
    assert "unrelated" not in text
