"""What a rank finds around it: variables, folder, path, seeds, threads, signals, main module."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from rank_code import rank_number

from serverless_gpu import distributed, runtime
from tests.support.shown import frames_shown


def test_torchrun_s_variables_are_complete() -> None:
    @distributed(gpus=2)
    def variables() -> dict[str, str]:
        return dict(os.environ)

    for number, found in enumerate(variables.distributed()):
        expected = {
            "RANK": str(number),
            "LOCAL_RANK": str(number),
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "NODE_RANK": "0",
            "GROUP_RANK": "0",
            "GROUP_WORLD_SIZE": "1",
            "ROLE_RANK": str(number),
            "ROLE_WORLD_SIZE": "2",
            "ROLE_NAME": "default",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
        }
        assert expected.items() <= found.items()
        assert {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"} <= found.keys()


def test_what_a_spare_has_rehearsed_is_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_NOTEBOOK", "")

    @distributed(gpus=2)
    def found() -> tuple[set[str], list[str], Any]:
        import IPython.display as public

        return {name for name, value in os.environ.items() if not value}, sys.path, public.display

    empty = {name for name, value in os.environ.items() if not value}
    for without_value, path, display in found.distributed():
        assert without_value - {"CUDA_VISIBLE_DEVICES"} == empty - {"CUDA_VISIBLE_DEVICES"}
        assert path == [entry or os.getcwd() for entry in sys.path]
        assert display.__module__ == "serverless_gpu.rank.display"


def test_variables_of_the_notebook_are_followed_at_each_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @distributed(gpus=2, env={"OF_CALL": "1"})
    def get(name: str) -> str | None:
        return os.environ.get(name)

    monkeypatch.setenv("OF_NOTEBOOK", "a")
    assert get.distributed("OF_NOTEBOOK") == ["a", "a"]
    monkeypatch.setenv("OF_NOTEBOOK", "b")
    assert get.distributed("OF_NOTEBOOK") == ["b", "b"]
    monkeypatch.delenv("OF_NOTEBOOK")
    assert get.distributed("OF_NOTEBOOK") == [None, None]
    assert get.distributed("OF_CALL") == ["1", "1"]
    assert "OF_CALL" not in os.environ
    assert "RANK" not in os.environ


def test_a_session_keeps_what_its_own_code_has_set(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_NOTEBOOK", "a")
    session.run("import os; os.environ['OF_RANK'] = os.environ['OF_NOTEBOOK']", gpus=2)
    monkeypatch.setenv("OF_NOTEBOOK", "b")
    session.run("both = os.environ['OF_RANK'] + os.environ['OF_NOTEBOOK']")
    assert session.pull("both") == ["ab", "ab"]


def test_the_folder_of_the_notebook_is_followed_at_each_call(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    @distributed(gpus=2)
    def look() -> Any:
        here = os.getcwd(), os.path.exists("only_here.txt")
        os.chdir("/")
        return here

    monkeypatch.chdir(tmp_path)
    assert look.distributed() == [(str(tmp_path), False)] * 2
    (tmp_path / "only_here.txt").write_text("x")
    assert look.distributed() == [(str(tmp_path), True)] * 2
    assert os.getcwd() == str(tmp_path)


def test_a_folder_that_was_made_anew_is_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "notebooks"
    for content in ("old", "new"):
        folder.mkdir()
        monkeypatch.chdir(folder)
        (folder / "file").write_text(content)

        @distributed(gpus=2)
        def read() -> str:
            return Path("file").read_text()

        assert read.distributed() == [content] * 2
        (folder / "file").unlink()
        folder.rmdir()


def test_a_deleted_folder_is_an_error_that_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(FileNotFoundError, match=r"folder.*%cd") as raised:
        distributed(gpus=2)(rank_number).distributed()
    assert frames_shown(raised.value) == 1, "frames of ours are not"
    monkeypatch.chdir(tmp_path)
    assert distributed(gpus=2)(rank_number).distributed() == [0, 1]


def test_modules_beside_the_notebook_are_found_and_never_stale(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    @distributed(gpus=2)
    def use() -> int:
        import module_of_the_folder

        return module_of_the_folder.VALUE

    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "module_of_the_folder.py").write_text("VALUE = 1\n")
    assert use.distributed() == [1, 1]
    (tmp_path / "module_of_the_folder.py").write_text("VALUE = 22\n")
    assert use.distributed() == [22, 22]


def test_random_numbers_differ_and_seeds_hold() -> None:
    @distributed(gpus=4)
    def draw(seed: int | None) -> Any:
        import random

        import numpy as np
        import torch

        if seed is not None:
            random.seed(seed), np.random.seed(seed), torch.manual_seed(seed)
        return random.random(), float(np.random.rand()), float(torch.rand(1))

    first, second = draw.distributed(None), draw.distributed(None)
    for column in zip(*first, *second, strict=False):
        assert len(set(column)) == len(column)
    assert len({one for draws in first + second for one in draws}) == 24
    assert len(set(draw.distributed(7))) == 1


def test_threads_are_shared_among_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    @distributed(gpus=2)
    def threads() -> Any:
        import torch

        return torch.get_num_threads(), os.environ["OMP_NUM_THREADS"]

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    fair = max(1, len(os.sched_getaffinity(0)) // 2)
    assert threads.distributed() == [(fair, str(fair))] * 2
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads.distributed() == [(3, "3")] * 2


def test_signals_are_the_user_s_own() -> None:
    @distributed(gpus=2)
    def take_over() -> Any:
        import faulthandler
        import signal
        import threading

        seen: list[int] = []
        signal.signal(signal.SIGUSR1, lambda number, _: seen.append(number))
        signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGTERM)
        faulthandler.register(signal.SIGUSR2)
        signal.alarm(0)
        return threading.current_thread() is threading.main_thread(), len(seen)

    assert take_over.distributed() == [(True, 2)] * 2


def test_frameworks_do_not_take_a_function_rank_for_a_notebook() -> None:
    @distributed(gpus=2)
    def notebook() -> Any:
        import builtins

        import IPython

        return IPython.get_ipython(), hasattr(builtins, "get_ipython")

    assert notebook.distributed() == [(None, False)] * 2


def test_each_call_has_a_clean_slate() -> None:
    @distributed(gpus=2)
    def once() -> Any:
        import logging

        import torch

        logger = logging.getLogger("train")
        logger.addHandler(logging.NullHandler())
        seen = hasattr(torch, "KEPT")
        torch.KEPT = True
        return len(logger.handlers), seen, os.getpid()

    first, second = once.distributed(), once.distributed()
    assert [one[:2] for one in first + second] == [(1, False)] * 4
    assert len({pid for *_, pid in first + second}) == 4


def test_helpers_know_the_rank() -> None:
    @distributed(gpus=2)
    def ask() -> Any:
        from serverless_gpu import runtime

        device = runtime.init_process_group()
        assert runtime.init_process_group() == device
        return (
            runtime.get_global_rank(),
            runtime.get_local_rank(),
            runtime.get_world_size(),
            runtime.get_local_world_size(),
            runtime.get_node_rank(),
            str(runtime.get_device()),
            str(device),
        )

    assert ask.distributed() == [(n, n, 2, 2, 0, "cpu", "cpu") for n in (0, 1)]
    assert (runtime.get_global_rank(), runtime.get_world_size()) == (0, 1)


def test_there_is_no_keyboard_and_it_says_so() -> None:
    for use in (
        lambda: input("name? "),
        lambda: sys.stdin.readline(),
        lambda: __import__("getpass").getpass(),
        lambda: breakpoint(),
        lambda: __import__("pdb").set_trace(),
    ):
        with pytest.raises(RuntimeError, match="a rank has no keyboard"):
            distributed(gpus=1)(use).distributed()
