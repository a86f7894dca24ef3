"""What cannot be sent is refused in two lines: which variable, used where, what to do."""

from __future__ import annotations

import gc
import pickle
import socket
import sqlite3
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from serialize_peer import Notebook

from serverless_gpu import serialize
from serverless_gpu.errors import UnpicklableError


def refusal(obj: Any, **options: Any) -> list[str]:
    """The lines of the error that dumping obj raises."""
    with pytest.raises(UnpicklableError) as caught:
        serialize.dump(obj, **options)
    assert isinstance(caught.value, pickle.PickleError)
    return str(caught.value).splitlines()


WRITER = """
    import threading
    class Writer:
        def __init__(self): self._lock = threading.Lock()
        def log(self, v): pass
    state = {"opts": {"writer": Writer()}}
    def f(x):
        x = x + 1
        state["opts"]["writer"].log(x)
        return x
    """


def test_the_path_of_the_variable_its_type_and_the_line_that_uses_it_are_named() -> None:
    notebook = Notebook("/tmp/ipykernel_5").cell(WRITER)
    first, second = refusal((notebook.f, (1,), {}))
    assert first == (
        "cannot send state['opts']['writer']._lock (a _thread.lock):"
        " f uses state at /tmp/ipykernel_5/1.py:8"
    )
    assert second == "Create it inside f, or keep it out of what is sent."


def test_the_line_is_that_of_the_helper_that_uses_the_variable() -> None:
    notebook = Notebook("/tmp/ipykernel_5").cell(WRITER)
    notebook.cell("""
        def main(x):
            return f(x)
        """)
    assert "f uses state at /tmp/ipykernel_5/1.py:8" in refusal((notebook.main, (1,), {}))[0]


@pytest.mark.parametrize(
    ("make", "kind", "advice"),
    [
        (lambda: (i for i in [1]), "a generator", "Pass a list"),
        (lambda: open(__file__), f"the open file {__file__!r}", "Open it inside f"),  # noqa: SIM115
        (lambda: open(__file__, "rb"), f"the open file {__file__!r}", "Open it inside f"),  # noqa: SIM115
        (socket.socket, "a socket.socket", "Connect inside f"),
        (lambda: sqlite3.connect(":memory:"), "a sqlite3.Connection", "Connect inside f"),
        (threading.RLock, "a _thread.RLock", "Create it inside f"),
        (lambda: threading.Thread(), "a _thread", "inside f"),
        (lambda: sys._getframe(), "a frame", "Send its text"),
    ],
    ids=["generator", "text file", "file", "socket", "database", "lock", "thread", "frame"],
)
def test_the_kind_is_named_and_what_to_do_instead(make: Any, kind: str, advice: str) -> None:
    notebook = Notebook().cell("def f(): return thing")
    thing = notebook.names["thing"] = make()
    first, second = refusal((notebook.f, (), {}))
    assert first.startswith("cannot send thing")
    assert kind in first
    assert advice in second
    getattr(thing, "close", lambda: None)()


def test_an_argument_is_called_by_its_parameter() -> None:
    notebook = Notebook().cell("def f(a, items=None): return a")
    lock = threading.Lock()
    assert (
        "argument items['x'][1] (a _thread.lock)"
        in refusal((notebook.f, (1, {"x": [0, lock]}), {}))[0]
    )
    assert "argument items (a _thread.lock)" in refusal((notebook.f, (1,), {"items": lock}))[0]
    assert "argument a.b (a _thread.lock)" in refusal((notebook.f, (Holder(b=lock),), {}))[0]


class Holder:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class Slotted:
    __slots__ = ("inner",)

    def __init__(self, inner: Any) -> None:
        self.inner = inner


def test_a_result_is_called_what_the_caller_calls_it() -> None:
    lock = threading.Lock()
    assert refusal(lock, what="result")[0] == "cannot send the result (a _thread.lock)"
    assert refusal({"a": lock}, what="result")[0] == "cannot send result['a'] (a _thread.lock)"
    path = refusal([0, (Slotted({"k": lock}),)], what="result")[0]
    assert path == "cannot send result[1][0].inner['k'] (a _thread.lock)"


def test_closures_defaults_methods_and_classes_are_followed() -> None:
    notebook = Notebook("/tmp/ipykernel_6").cell("""
        import threading
        lock = threading.Lock()
        def make():
            captured = {"lock": threading.Lock()}
            def inner():
                return captured
            return inner
        inner = make()
        def with_default(x, guard=lock): return guard
        class Model:
            guard = lock
            def go(self): return 1
        class Other:
            def __init__(self): self.mine = threading.Lock()
            def go(self): return self.mine
        """)
    closure = refusal((notebook.inner, (), {}))[0]
    assert "cannot send captured['lock']" in closure
    assert "inner uses captured at /tmp/ipykernel_6/1.py:6" in closure
    assert "cannot send guard (a _thread.lock)" in refusal((notebook.with_default, (1,), {}))[0]
    assert "Model.guard (a _thread.lock)" in refusal((notebook.Model, (), {}))[0]
    assert "mine (a _thread.lock)" in refusal((notebook.Other().go, (), {}))[0]


def test_an_object_that_refuses_is_quoted() -> None:
    notebook = Notebook().cell("""
        class Client:
            def __reduce__(self): raise RuntimeError("clients stay here")
        client = Client()
        def f(): return client
        """)
    first = refusal((notebook.f, (), {}))[0]
    assert "cannot send client (a Client)" in first
    assert "clients stay here" in first


def test_what_is_nested_too_deeply_is_said_clearly() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    first, second = refusal(deep, what="result")
    assert first == "cannot send the result: it is nested too deeply to be pickled"
    assert "flat form" in second


def test_nothing_is_kept_of_what_was_refused() -> None:
    class Watched:
        ended = False

        def __init__(self) -> None:
            self.lock = threading.Lock()

        def __del__(self) -> None:
            Watched.ended = True

    with pytest.raises(UnpicklableError) as caught:
        serialize.dump([Watched()])
    assert caught.value.__context__ is None
    del caught
    gc.collect()
    assert Watched.ended


def test_no_memfd_is_left_by_a_refusal() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    refusal([bytes(10**6), threading.Lock()])
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_an_error_of_the_search_is_no_error_of_the_user() -> None:
    class Once:
        """Refuses only once, so that the search finds nothing."""

        refused = False

        def __reduce__(self) -> Any:
            if not Once.refused:
                Once.refused = True
                raise TypeError("not now")
            return (int, ())

    assert refusal([Once()])[0] == "cannot send the value: not now"


def test_a_search_in_millions_of_things_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    from serverless_gpu.serialize import blame

    monkeypatch.setattr(blame, "_SECONDS", 0.0)
    first, second = refusal([*range(10_000), threading.Lock()])
    assert "cannot pickle '_thread.lock' object" in first
    assert "inside the function" in second
