"""Stop works in whatever ranks are stuck, and the next call is none the worse for it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from serverless_gpu import call, distributed
from tests.support.stopping import Stopper

pytestmark = pytest.mark.usefixtures("next_call_works", "quick_grace")


def in_python_sleep() -> None:
    time.sleep(3600)


def in_busy_loop() -> None:
    while True:
        pass


def in_collective() -> None:
    import torch.distributed as dist

    if dist.get_rank() == 0:
        dist.barrier()
    time.sleep(3600)


def in_lock() -> None:
    import threading

    threading.Lock().acquire() or threading.Event().wait()
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def in_subprocess() -> None:
    import subprocess

    subprocess.run(["sleep", "3600"])


def in_native_sleep() -> None:
    ctypes.CDLL(None).sleep(3600)


def in_native_lock() -> None:
    lock = ctypes.create_string_buffer(64)
    library = ctypes.CDLL(None)  # lets other threads run meanwhile
    library.pthread_mutex_lock(lock)
    library.pthread_mutex_lock(lock)


def in_native_lock_with_the_gil() -> None:
    lock = ctypes.create_string_buffer(64)
    library = ctypes.PyDLL(None)
    library.pthread_mutex_lock(lock)
    library.pthread_mutex_lock(lock)


def swallowing_interrupts() -> None:
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(3600)


def deaf_with_hanging_exit() -> None:
    import atexit
    import signal

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    atexit.register(time.sleep, 3600)
    time.sleep(3600)


def reading_a_pipe() -> None:
    os.read(os.pipe()[0], 1)


def in_thread_pool() -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as executor:
        executor.submit(time.sleep, 3600).result()


#: Whether Python of the ranks can end it by itself.
STUCK: dict[Callable[[], None], bool] = {
    in_python_sleep: True,
    in_busy_loop: True,
    in_collective: True,
    in_lock: True,
    in_subprocess: True,
    reading_a_pipe: True,
    in_native_sleep: True,
    in_native_lock: False,
    in_native_lock_with_the_gil: False,
    swallowing_interrupts: False,
    deaf_with_hanging_exit: False,
    in_thread_pool: True,
}


def call_on_two_ranks(
    ready: str, stuck: Callable[[], None], ends_by_itself: bool = True
) -> list[int]:
    @distributed(gpus=2)
    def run() -> None:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        told = False
        while True:
            try:
                if not told:
                    told = True
                    with open(ready, "w") as f:
                        f.write("r")
                return stuck()
            except KeyboardInterrupt:
                # Stop may come before the rank is stuck; one that nothing but force ends goes on.
                if ends_by_itself:
                    raise

    return run.distributed()


def by_value(function: Callable[[], None]) -> Callable[[], None]:
    """As a function of a notebook's cell: ranks need not import this module."""
    function.__module__ = "__main__"
    return function


@pytest.mark.parametrize("stuck", STUCK, ids=lambda f: f.__name__)
def test_stop_ends_ranks(stuck: Callable[[], None], stopper: Stopper) -> None:
    with pytest.raises(KeyboardInterrupt) as caught:
        stopper.during(lambda: call_on_two_ranks(stopper.ready.path, by_value(stuck), STUCK[stuck]))
    if STUCK[stuck]:
        assert str(caught.value) == "stopped"
    else:
        assert "had to be killed" in str(caught.value)


def test_nothing_that_ranks_started_is_left(stopper: Stopper) -> None:
    @distributed(gpus=2)
    def run(ready: str) -> None:
        import subprocess
        import sys

        children = [
            subprocess.Popen(["sleep", "3600"]),
            subprocess.Popen(["sleep", "3600"], start_new_session=True),
            subprocess.Popen([sys.executable, "-c", "import os,time; os.fork(); time.sleep(3600)"]),
        ]
        daemon = "sleep 3600 >/dev/null & echo $!"
        said = subprocess.run(["setsid", "sh", "-c", daemon], stdout=subprocess.PIPE, text=True)
        with open(ready, "w") as f:
            pids = [*(child.pid for child in children), int(said.stdout)]
            f.write("".join(f"{pid:08d}" for pid in pids))
        time.sleep(3600)

    seen: list[psutil.Process] = []
    wait = stopper.ready.wait

    def note(count: int) -> str:
        text = wait(count)
        seen.extend(psutil.Process(int(text[i : i + 8])) for i in range(0, count, 8))
        return text

    stopper.ready.wait = note
    with pytest.raises(KeyboardInterrupt):
        stopper.during(lambda: run.distributed(stopper.ready.path), counts=(64,))
    assert len(seen) == 8
    _, alive = psutil.wait_procs(seen, timeout=10)
    assert not alive


def test_user_code_gets_its_chance_to_save(stopper: Stopper) -> None:
    @distributed(gpus=2)
    def train(ready: str) -> int:
        stops = 0
        while stops < 2:
            try:
                with open(ready, "w") as f:
                    f.write("r")
                time.sleep(3600)
            except KeyboardInterrupt:
                stops += 1
        return stops

    with pytest.raises(KeyboardInterrupt, match=r"^stopped$"):
        stopper.during(lambda: train.distributed(stopper.ready.path), counts=(2, 2))


def test_only_one_error_is_shown(stopper: Stopper, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt) as caught:
        stopper.during(lambda: call_on_two_ranks(stopper.ready.path, by_value(in_python_sleep)))
    shown: Any = caught.value
    assert shown._render_traceback_() == ["KeyboardInterrupt: stopped"]
    assert "Traceback" not in capfd.readouterr().err


def test_a_stop_in_the_moment_that_a_call_s_turn_comes_does_not_keep_the_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(call, "one_call", threading.Lock())
    places = 0

    def stop_at(place: int) -> Callable[..., Any]:
        def trace(frame: Any, event: str, _: Any) -> Any:
            nonlocal places
            if frame.f_code.co_name != "_turn":
                return trace if event == "call" else None
            if event == "line":
                places += 1
                if places == place:
                    raise KeyboardInterrupt
            return trace

        return trace

    before = sys.gettrace()
    for place in range(1, 10):
        places = 0
        try:
            sys.settrace(stop_at(place))
            with call._turn():
                sys.settrace(before)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        assert not call.one_call.locked(), f"kept by a Stop at line {place} of the wait"
        if places < place:
            break
    assert place > 2, "nothing was tried"
