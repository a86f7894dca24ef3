"""What a rank reports of an exception: what the user needs, and nothing that holds memory."""

from __future__ import annotations

import gc
import linecache
import runpy
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from serialize_peer import Notebook

from serverless_gpu import errors, serialize
from serverless_gpu.errors import RankFailure, capture_failure
from serverless_gpu.errors.capture import TEXT_LIMIT
from serverless_gpu.errors.summary import MESSAGE_LIMIT


def captured(function: Callable[[], Any]) -> RankFailure:
    """The report on what the function raises; frames of this file are hidden."""
    try:
        function()
    except BaseException as error:
        return capture_failure(error, hide=[__file__])
    raise AssertionError("nothing was raised")


def test_the_traceback_begins_at_the_users_first_frame() -> None:
    notebook = Notebook("/tmp/ipykernel_8").cell("""
        def train():
            step()
        def step():
            raise ValueError("bad batch")
        """)
    report = captured(notebook.train)
    assert report.kind == "ValueError"
    assert report.message == "bad batch"
    lines = report.traceback.splitlines()
    assert lines[:3] == [
        "Traceback (most recent call last):",
        '  File "/tmp/ipykernel_8/1.py", line 2, in train',
        "    step()",
    ]
    assert lines[-1] == "ValueError: bad batch"


def test_frames_of_ours_and_of_runpy_are_hidden(tmp_path: Path) -> None:
    script = tmp_path / "user_script.py"
    script.write_text("from serverless_gpu import serialize\nserialize.load([b'junk'], -1)\n")
    report = captured(lambda: runpy.run_path(str(script)))
    assert "user_script.py" in report.traceback
    assert "runpy" not in report.traceback
    assert "payload.py" not in report.traceback


def test_of_hidden_frames_alone_the_last_is_shown() -> None:
    report = captured(lambda: serialize.load([b"junk"], -1))
    assert len(report.chain[-1].shown()) == 1


def test_causes_and_contexts_are_told() -> None:
    notebook = Notebook().cell("""
        def train():
            try:
                try:
                    {}["a"]
                except KeyError as error:
                    raise ValueError("second") from error
            except ValueError:
                1 / 0
        """)
    report = captured(notebook.train)
    assert [link.kind for link in report.chain] == ["KeyError", "ValueError", "ZeroDivisionError"]
    assert "direct cause" in report.traceback
    assert "During handling" in report.traceback
    zero = report.exception()
    assert isinstance(zero, ZeroDivisionError)
    assert str(zero.__context__) == "ValueError: second"
    assert str(zero.__context__.__cause__) == "KeyError: 'a'"


def test_a_suppressed_context_stays_so() -> None:
    notebook = Notebook().cell("""
        def train():
            try:
                {}["a"]
            except KeyError:
                raise ValueError("clean") from None
        """)
    assert [link.kind for link in captured(notebook.train).chain] == ["ValueError"]


def test_nothing_keeps_the_frames_of_a_captured_exception() -> None:
    class Batch:
        pass

    alive: list[weakref.ref[Batch]] = []

    def train() -> None:
        batch = Batch()
        alive.append(weakref.ref(batch))
        try:
            raise KeyError("first")
        except KeyError:
            raise ValueError("second")  # noqa: B904 - a context is what is wanted

    gc.disable()
    try:
        error: BaseException | None = None
        try:
            train()
        except ValueError as raised:
            error = raised
            sys.last_value = raised
            sys.last_traceback = raised.__traceback__
            capture_failure(raised)
        assert error is not None
        assert error.__traceback__ is None
        assert not hasattr(sys, "last_traceback")
        assert alive[0]() is None
    finally:
        gc.enable()


def test_the_error_in_the_notebook_holds_no_frames_with_variables() -> None:
    notebook = Notebook().cell("def train():\n    big = list(range(10)); raise ValueError(big)")
    error = captured(notebook.train).exception()
    step = error.__traceback__
    assert step is not None
    while step is not None:
        assert not step.tb_frame.f_locals
        step = step.tb_next


def test_long_messages_and_deep_stacks_stay_small() -> None:
    notebook = Notebook().cell("""
        def deep(n):
            if n == 0: raise ValueError("x" * 100_000)
            return deeper(n)
        def deeper(n): return deep(n - 1)
        """)
    report = captured(lambda: notebook.deep(300))
    assert len(report.message) < MESSAGE_LIMIT + 10
    assert len(report.traceback) < TEXT_LIMIT + 100
    assert len(report.chain[-1].frames) <= 40
    with serialize.dump(report) as payload:
        assert payload.nbytes < 2 * TEXT_LIMIT + 120_000


def test_endless_recursion_is_reported() -> None:
    notebook = Notebook().cell("def deep(): return deep()")
    report = captured(notebook.deep)
    assert report.kind == "RecursionError"
    assert len(report.traceback) < 5000


def test_an_exception_whose_text_fails_is_reported() -> None:
    notebook = Notebook().cell("""
        class Mute(Exception):
            def __str__(self): raise RuntimeError("no text")
        def train(): raise Mute()
        """)
    report = captured(notebook.train)
    assert report.kind == "Mute"
    assert "str() failed" in report.message


def test_a_type_of_the_notebook_comes_home_as_the_notebooks_own() -> None:
    notebook = Notebook().cell("""
        class Boom(Exception):
            def __init__(self, code, detail):
                super().__init__(detail)
                self.code = code
        def train(): raise Boom(3, "x")
        """)
    error = errors.build_error({0: captured(notebook.train)}, {}, {}, 0)
    assert isinstance(error, notebook.Boom)
    assert error.code == 3


def test_the_lines_around_travel_for_readers_without_the_source() -> None:
    notebook = Notebook("/tmp/ipykernel_9").cell(
        "a = 1\ndef f():\n    b = 2\n    1 / 0\n    c = 3\n"
    )
    report = captured(notebook.f)
    linecache.cache.pop("/tmp/ipykernel_9/1.py")
    frame = report.chain[-1].frames[-1]
    assert (frame.line, frame.function, frame.first) == (4, "f", 2)
    assert frame.lines == ("def f():", "    b = 2", "    1 / 0", "    c = 3")


def test_a_group_of_exceptions_is_told_whole() -> None:
    notebook = Notebook().cell("""
        def train(): raise ExceptionGroup("many", [ValueError("one"), KeyError("two")])
        """)
    if sys.version_info < (3, 11):
        pytest.skip("ExceptionGroup is of Python 3.11")
    report = captured(notebook.train)
    assert "ValueError: one" in report.traceback
    assert "KeyError: 'two'" in report.traceback
