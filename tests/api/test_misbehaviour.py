"""User code that does what no rank expects: the call says so in words, and the next one works."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from rank_code import rank_number

from serverless_gpu import NestedCallError, RankDiedError, RankError, distributed
from serverless_gpu.sessions import Session

pytestmark = pytest.mark.usefixtures("next_call_works", "quick_grace")


def test_a_result_that_raises_while_it_is_pickled_names_the_rank_and_why() -> None:
    class Odd:
        def __reduce__(self) -> Any:
            raise ValueError("no way to send me")

    @distributed(gpus=2)
    def odd() -> Any:
        return Odd() if rank_number() == 1 else "fine"

    with pytest.raises(RankError, match="no way to send me") as caught:
        odd.distributed()
    assert caught.value.rank == 1
    assert caught.value.results == {0: "fine"}


def test_a_result_that_ends_the_reading_program_ends_only_the_call() -> None:
    @distributed(gpus=2)
    def odd() -> Any:
        class Odd:
            def __reduce__(self) -> Any:
                import sys

                return sys.exit, (3,)

        return Odd() if rank_number() == 1 else "fine"

    with pytest.raises(RankError, match="cannot be unpickled here: SystemExit") as caught:
        odd.distributed()
    assert caught.value.rank == 1


def test_an_error_that_cannot_be_pickled_or_shown_is_an_error() -> None:
    @distributed(gpus=1)
    def fail() -> None:
        class Odd(Exception):
            def __reduce__(self) -> Any:
                raise ValueError("not me")

            def __str__(self) -> str:
                raise ValueError("nor my text")

        raise Odd

    with pytest.raises(RankError, match="Odd"):
        fail.distributed()


def test_an_exit_handler_that_hangs_holds_up_neither_the_call_nor_the_next() -> None:
    @distributed(gpus=2)
    def hang() -> int:
        import atexit

        atexit.register(time.sleep, 3600)
        return os.getpid()

    ranks = [psutil.Process(pid) for pid in hang.distributed()]
    assert len(set(hang.distributed())) == 2
    assert not psutil.wait_procs(ranks, timeout=20)[1]


def test_what_user_code_wants_done_at_the_end_of_a_rank_is_done(tmp_path: Path) -> None:
    @distributed(gpus=2)
    def ask() -> int:
        import atexit
        import logging
        import weakref

        def note(what: str) -> None:
            (tmp_path / f"{what}-{os.environ['RANK']}").touch()

        class Kept:
            pass

        class Noting(logging.Handler):
            def flush(self) -> None:
                note("log")

        Kept.one = Kept()  # type: ignore[attr-defined]
        weakref.finalize(Kept.one, note, "finalizer")  # type: ignore[attr-defined]
        logging.getLogger().addHandler(Noting())
        atexit.register(note, "atexit")
        return os.getpid()

    ranks = [psutil.Process(pid) for pid in ask.distributed() if psutil.pid_exists(pid)]
    assert not psutil.wait_procs(ranks, timeout=20)[1]
    done = {path.name for path in tmp_path.iterdir()}
    assert done == {f"{what}-{rank}" for what in ("atexit", "finalizer", "log") for rank in (0, 1)}


def test_a_forked_child_that_outlives_its_call_ends_with_its_rank() -> None:
    @distributed(gpus=2)
    def fork() -> int:
        pid = os.fork()
        if pid == 0:
            time.sleep(3600)
        return pid

    children = [psutil.Process(pid) for pid in fork.distributed() if psutil.pid_exists(pid)]
    assert not psutil.wait_procs(children, timeout=20)[1]


@pytest.mark.parametrize(
    "end", ["pass", "raise KeyError('of the child')", "import sys; sys.exit(3)"]
)
def test_a_child_forked_by_a_cell_does_not_answer_for_its_rank(session: Session, end: str) -> None:
    session.run("import os; rank = int(os.environ['RANK'])", gpus=2)
    session.run(f"pid = os.fork()\nif pid == 0:\n    rank = 99\n    {end}")
    session.run("status = os.waitpid(pid, 0)[1]")
    assert session.pull("rank") == [0, 1]


def test_a_thread_of_a_cell_goes_on_and_harms_no_later_cell(session: Session) -> None:
    session.run(
        "import threading, time\nstopped = threading.Event(); turns = 0\n"
        "def work():\n"
        "    global turns\n"
        "    while not stopped.wait(0.01): turns += 1; print('late line')\n"
        "thread = threading.Thread(target=work); thread.start()",
        gpus=2,
    )
    session.run("before = turns")
    session.run("while turns == before: time.sleep(0.01)\nstopped.set(); thread.join(30)")
    session.run("alive = thread.is_alive()")
    assert session.pull("alive") == [False, False]


def test_a_thread_that_raises_after_its_call_ends_nothing(session: Session) -> None:
    session.run(
        "import threading\ngo = threading.Event()\n"
        "def fail(): go.wait(30); raise RuntimeError('in a thread')\n"
        "thread = threading.Thread(target=fail); thread.start()",
        gpus=2,
    )
    session.run("go.set(); thread.join(30); alive = thread.is_alive()")
    assert session.pull("alive") == [False, False]


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("reopened", [False, True], ids=["closed", "others in their place"])
def test_a_rank_that_closes_all_descriptors_is_dead_and_its_error_says_why(
    first: int, reopened: bool
) -> None:
    @distributed(gpus=2)
    def close() -> str:
        if rank_number() == 1:
            os.closerange(first, 4096)
            if reopened:
                null = os.open("/dev/null", os.O_RDWR)
                for number in range(null + 1, 64):
                    os.dup2(null, number)
            time.sleep(3600)
        return "fine"

    says = (
        r"rank 1 \(pid \d+\) had to end: its code closed descriptors that the rank needs\nos.close"
    )
    with pytest.raises(RankDiedError, match=says) as caught:
        close.distributed()
    assert caught.value.results == {0: "fine"}


@pytest.mark.parametrize("with_child", [False, True])
def test_a_rank_that_becomes_another_program_is_killed(with_child: bool) -> None:
    @distributed(gpus=2, timeout=60)
    def leave() -> str:
        if rank_number() == 1:
            if with_child and os.fork() == 0:
                time.sleep(3600)
            os.execvp("sleep", ["sleep", "3600"])
        return "fine"

    says = r"rank 1 .* was replaced by another program: \S+sleep\nos.exec.*subprocess"
    with pytest.raises(RankDiedError, match=says):
        leave.distributed()


def test_a_call_from_a_thread_inside_a_rank_is_refused() -> None:
    @distributed(gpus=2)
    def inner() -> int:
        return 1

    @distributed(gpus=2)
    def outer() -> str:
        said: list[str] = []

        def call() -> None:
            try:
                inner.distributed()
            except Exception as error:
                said.append(f"{type(error).__name__}: {error}")

        thread = threading.Thread(target=call)
        thread.start()
        thread.join(30)
        return said[0]

    for said in outer.distributed():
        assert said.startswith(NestedCallError.__name__) and "call inner(...) there" in said


@pytest.mark.parametrize("code", ["", "0", "None"])
def test_a_cell_that_exits_without_an_error_is_a_cell_that_ends(
    session: Session, code: str
) -> None:
    session.run("kept = 1", gpus=2)
    session.run(f"import sys\nbefore = 1\nsys.exit({code})\nafter = 1")
    assert session.pull("kept") == [1, 1]
    with pytest.raises(NameError):
        session.pull("after")


def test_a_cell_that_exits_with_an_error_fails_and_keeps_its_variables(session: Session) -> None:
    session.run("kept = 1", gpus=2)
    with pytest.raises(RankError, match=r"sys\.exit\(3\)"):
        session.run("import sys; sys.exit(3)")
    assert session.pull("kept") == [1, 1]
