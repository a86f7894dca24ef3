"""The session from Python: variables that stay, some ranks, failures, deaths, its end."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from serverless_gpu import RankDiedError, UnpicklableError, distributed, pool
from serverless_gpu.errors import RankError
from serverless_gpu.session_requests import SessionError
from serverless_gpu.sessions import Session

RANK = "import os; rank = int(os.environ['RANK'])"


def test_variables_live_from_cell_to_cell(session: Session) -> None:
    session.run(RANK, gpus=3)
    session.run("double = rank * 2")
    assert session.pull("double") == [0, 2, 4]
    assert session.gpus == 3


def test_the_default_is_all_ranks_of_the_machine(session: Session) -> None:
    session.run(RANK)
    assert session.pull("rank") == list(range(8))


def test_some_ranks_run_alone(session: Session) -> None:
    session.run(RANK, gpus=4)
    out = session.run("rank += 10", ranks=[1, 3], pull=["rank"])
    assert out == {"rank": [11, 13]}
    assert session.pull("rank") == [0, 11, 2, 13]
    with pytest.raises(SessionError, match="no rank 4; the session has ranks 0-3"):
        session.run("pass", ranks=[4])


def test_notebook_variables_are_pushed_and_come_back_as_lists(session: Session) -> None:
    class Config:
        rate = 0.5

    session.run(RANK, gpus=2, push={"config": Config(), "x": 5})
    out = session.run("y = (config, x + rank)", pull=["y", "x"])
    assert [value for _, value in out["y"]] == [5, 6]
    assert all(isinstance(config, Config) for config, _ in out["y"])
    assert out["x"] == [5, 5]
    session.push(x=7)
    session.push(ranks=[1], x=8)
    assert session.pull("x") == [7, 8]


def test_a_name_that_is_not_there_cannot_be_pulled(session: Session) -> None:
    session.run(RANK, gpus=2)
    with pytest.raises(NameError, match="nowhere"):
        session.pull("nowhere")
    assert session.pull("rank") == [0, 1]


def test_code_that_is_no_cell_is_not_taken_for_one(session: Session) -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        session.run("x = 1\nx / 0", gpus=2)
    (frame,) = raised.value.failures[0].chain[-1].shown()  # type: ignore[attr-defined]
    assert (frame.label, frame.line, frame.lines) == ("session().run", 2, ("x = 1", "x / 0"))
    with pytest.raises(SyntaxError) as broken:
        session.run("x = = 1")
    assert broken.value.failures[0].chain[-1].shown() == ()  # type: ignore[attr-defined]


def test_fresh_makes_a_new_session(session: Session) -> None:
    session.run(RANK, gpus=2)
    session.run(RANK, gpus=3, fresh=True)
    assert session.pull("rank") == [0, 1, 2]
    session.run("pass", fresh=True, gpus=3)
    with pytest.raises(NameError):
        session.pull("rank")


def test_a_request_that_cannot_be_sent_leaves_the_session(session: Session) -> None:
    session.run(RANK, gpus=2)
    with pytest.raises(UnpicklableError):
        session.run("pass", fresh=True, push={"f": sys._getframe()})
    assert session.pull("rank") == [0, 1]


@pytest.mark.usefixtures("quick_grace")
def test_a_failing_rank_takes_nothing_from_the_others(session: Session) -> None:
    session.run(RANK + "\nkept = rank + 1", gpus=3)
    with pytest.raises(ZeroDivisionError) as caught:
        session.run("before = 1\nif rank == 2: 1 / 0\nafter = 1")
    assert caught.value.rank == 2
    assert session.pull("kept") == [1, 2, 3]
    assert session.pull("after", ranks=[0, 1]) == [1, 1]
    assert session.pull("before") == [1, 1, 1]


def test_how_a_rank_ended_between_two_cells_is_said_with_the_next(
    session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    session.run("kept = 1", gpus=2)
    pid = session.status()["ranks"][1]["pid"]
    rank = psutil.Process(pid)
    rank.kill()
    rank.wait(timeout=20)
    session.run("pass")
    said = capsys.readouterr().out
    assert "Rank 1 had ended and is replaced. Gone with it: kept;" in said
    assert f"Rank 1 (pid {pid}) was killed by SIGKILL." in said


@pytest.mark.usefixtures("quick_grace")
def test_a_dead_rank_is_replaced_and_it_is_said(
    session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    session.run(RANK + "\nkept = rank", gpus=3)
    with pytest.raises(RankDiedError, match=r"rank 1.*SIGKILL"):
        session.run("if rank == 1: os.kill(os.getpid(), 9)")
    assert "Rank 1 had ended and is replaced. Gone with it: rank, kept;" in capsys.readouterr().out
    assert session.pull("kept", ranks=[0, 2]) == [0, 2]
    with pytest.raises(NameError):
        session.pull("kept", ranks=[1])
    session.run(RANK)
    assert session.pull("rank") == [0, 1, 2]


def test_a_rank_that_died_between_cells_is_replaced(
    session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    session.run(RANK, gpus=2)
    victim = psutil.Process(session.status()["ranks"][1]["pid"])
    victim.send_signal(signal.SIGKILL)
    psutil.wait_procs([victim], timeout=10)
    session.run(RANK)
    assert session.pull("rank") == [0, 1]
    assert session.pull("os", ranks=[0])


def test_functions_run_where_the_cells_variables_are(session: Session) -> None:
    @distributed(session=True)
    def add(x: int) -> Any:
        import __main__

        __main__.total = __main__.rank + x
        return __main__.total, os.getpid()

    session.run(RANK, gpus=2)
    out = add.distributed(10)
    assert [value for value, _ in out] == [10, 11]
    assert session.pull("total") == [10, 11]
    assert [pid for _, pid in add.distributed(10)] == [pid for _, pid in out]


def test_function_calls_leave_the_session_alone(session: Session) -> None:
    @distributed(gpus=2)
    def look() -> Any:
        import __main__

        return hasattr(__main__, "rank"), os.getpid()

    session.run(RANK, gpus=2)
    pids = [one["pid"] for one in session.status()["ranks"]]
    for seen, pid in look.distributed():
        assert not seen and pid not in pids
    assert session.pull("rank") == [0, 1]


def test_cells_define_what_functions_and_pickles_need(session: Session) -> None:
    session.run(
        textwrap.dedent(
            """
            import pickle, dataclasses
            @dataclasses.dataclass
            class Point:
                x: int
                def grown(self): return Point(self.x + 1)
            copied = pickle.loads(pickle.dumps(Point(1))).grown()
            """
        ),
        gpus=2,
        pull=["copied"],
    )
    assert [one.x for one in session.pull("copied")] == [2, 2]


def test_restart_gives_new_ranks_and_stop_ends_them(session: Session) -> None:
    session.run(RANK, gpus=2)
    old = [psutil.Process(one["pid"]) for one in session.status()["ranks"]]
    session.restart()
    assert session.gpus == 2
    with pytest.raises(NameError):
        session.pull("rank")
    assert not psutil.wait_procs(old, timeout=10)[1]
    session.stop()
    assert session.gpus == 0
    assert session.status()["ranks"] == []


def test_an_idle_session_s_exit_handlers_run(session: Session, tmp_path: Path) -> None:
    session.run(
        "import atexit, os, pathlib, tempfile\n"
        f"folder = tempfile.TemporaryDirectory(dir={str(tmp_path)!r})\n"
        f"done = pathlib.Path({str(tmp_path)!r}) / ('done-' + os.environ['RANK'])\n"
        "atexit.register(done.touch)",
        gpus=2,
    )
    assert len(list(tmp_path.iterdir())) == 2
    pool.stop()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["done-0", "done-1"]


def test_an_exit_handler_that_hangs_holds_up_nobody(session: Session) -> None:
    session.run("import atexit, time\natexit.register(time.sleep, 600)", gpus=2)
    began = time.monotonic()
    pool.stop()
    assert time.monotonic() - began < 30


def test_the_whole_pool_can_be_stopped_and_comes_back(session: Session) -> None:
    session.run(RANK, gpus=2)
    running = pool.running()
    assert running is not None
    pids = running.core.pids()
    processes = []
    for pid in (pids["guard"], *pids["children"].values()):
        with contextlib.suppress(psutil.NoSuchProcess):  # retired by an earlier test
            processes.append(psutil.Process(pid))
    pool.stop()
    assert not [one for one in processes if one.is_running() and one.status() != "zombie"]
    session.run(RANK, gpus=2)
    assert session.pull("rank") == [0, 1]


def test_a_dead_guard_is_noticed_and_all_is_made_anew(
    session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    session.run(RANK, gpus=2)
    running = pool.running()
    assert running is not None
    guard = psutil.Process(running.core.pids()["guard"])
    for keeper in guard.children():
        keeper.kill()
    guard.kill()
    with pytest.raises((pool.PoolError, RankError)):
        for _ in range(100):
            session.run("import time; time.sleep(0.05)")
            if session._owner is not running:
                raise pool.PoolError("replaced without an error, which is as good")
    session.run(RANK, gpus=2)
    assert session.pull("rank") == [0, 1]


def test_a_dead_fork_server_is_noticed_and_made_anew() -> None:
    @distributed(gpus=2)
    def fine() -> str:
        return "fine"

    assert fine.distributed() == ["fine"] * 2
    running = pool.running()
    assert running is not None
    server = psutil.Process(running.core.pids()["fork_server"])
    server.kill()
    psutil.wait_procs([server], timeout=10)
    for _ in range(6):
        assert fine.distributed() == ["fine"] * 2
    assert running.core.pids()["fork_server"] != server.pid


def test_what_a_cell_prints_is_not_kept_in_the_ranks(session: Session) -> None:
    """IPython keeps it for a history, which ranks have not: memory that grows for ever."""
    session.run("import sys\nfor i in range(100): print('line', i)", gpus=1)
    found = "[k for k, v in get_ipython().history_manager.outputs.items() if v]"
    session.run(f"held = {found}\nwriter = sys.stdout.write.__qualname__")
    assert session.pull("held") == [[]]
    assert session.pull("writer") == ["PyCapsule.write"]
