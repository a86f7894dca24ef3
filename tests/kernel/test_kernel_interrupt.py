"""Stop stops the cell that runs, whatever it does, and nothing else."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.support.kernel_client import PATIENCE, TestKernel

BUSY = {
    "a sleep": "import time; print('ready', flush=True); time.sleep(1000)",
    "a loop": "print('ready', flush=True)\nwhile True: pass",
    "an await": "import asyncio; print('ready', flush=True); await asyncio.sleep(1000)",
    "a sleep within an await": (
        "import asyncio, time\nasync def stuck(): print('ready', flush=True); time.sleep(1000)\n"
        "await stuck()"
    ),
    # IPython itself takes the interrupt of a shell command, and the cell goes on.
    "a shell command": "!echo ready; sleep 1000\nraise KeyboardInterrupt",
    "a C program": "import os; os.system('echo ready; sleep 1000')\nraise KeyboardInterrupt",
    "a subprocess": (
        "import subprocess; print('ready', flush=True); subprocess.run(['sleep', '1000'])"
    ),
    "a thread's end": (
        "import threading; t = threading.Thread(target=threading.Event().wait, daemon=True)\n"
        "t.start(); print('ready', flush=True); t.join()"
    ),
    "a C function": "import ctypes; print('ready', flush=True); ctypes.CDLL(None).sleep(1000)",
    "a lock": (
        "import threading; print('ready', flush=True); lock = threading.Lock()\n"
        "lock.acquire(); lock.acquire()"
    ),
    # The signal comes after Python's last look and before the call that sleeps: pause() keeps the
    # GIL, and C alone leads from there to the sleep. With threads about it happens by chance.
    "a sleep that begins too late": (
        "import ctypes, time\n"
        "class Late:\n"
        "    __index__ = ctypes.PyDLL(None).pause\n"
        "Late.__index__.restype = {-1: 1000}.__getitem__\n"
        "print('ready', flush=True); time.sleep(Late())"
    ),
}


@pytest.mark.parametrize("what", BUSY)
@pytest.mark.parametrize("way", ["message", "signal"])
def test_an_interrupt_ends(what: str, way: str, kernel: TestKernel) -> None:
    cell = kernel.send(BUSY[what])
    kernel.wait_for_text("ready")
    if way == "message":
        reply = kernel.control("interrupt_request")
        assert reply["msg_type"] == "interrupt_reply"
        assert reply["content"]["status"] == "ok"
    else:
        os.killpg(kernel.pid, signal.SIGINT)
    run = kernel.wait(cell)
    assert run.status == "error"
    assert run.content["ename"] == "KeyboardInterrupt"
    assert kernel.run("print('works')").out == "works\n"


def test_one_request_is_one_interrupt(kernel: TestKernel, tmp_path: Path) -> None:
    """Else code that cleans up after the first would be hit by the second."""
    sent = tmp_path / "sent"
    cell = kernel.send(
        "import os, signal, time\n"
        "before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})\n"
        "print('ready', flush=True); count = 0\n"
        f"while not os.path.exists({str(sent)!r}): time.sleep(0.01)\n"
        "while signal.sigtimedwait({signal.SIGINT}, 0): count += 1\n"
        "_ = signal.pthread_sigmask(signal.SIG_SETMASK, before); print('in all', count)"
    )
    kernel.wait_for_text("ready")
    kernel.control("interrupt_request")
    sent.touch()
    assert "in all 1\n" in kernel.wait(cell).out


@pytest.mark.parametrize("times", [1, 5])
def test_an_interrupt_while_idle_changes_nothing(times: int, kernel: TestKernel) -> None:
    for _ in range(times):
        assert kernel.control("interrupt_request")["content"] == {"status": "ok"}
        os.kill(kernel.pid, signal.SIGINT)
    run = kernel.run("print('out'); 1 + 1")
    assert (run.status, run.out, run.value) == ("ok", "out\n", "2")


def test_an_interrupt_publishes_busy_and_idle_and_nothing_else(kernel: TestKernel) -> None:
    request = kernel.control("interrupt_request")["parent_header"]["msg_id"]
    run_after = kernel.send("'later'")
    seen, ended = [], set()
    for message in kernel.published(time.monotonic() + PATIENCE, "the cell after the interrupt"):
        if message["parent_header"].get("msg_id") == request:
            seen.append((message["msg_type"], message["content"].get("execution_state")))
        if message["content"].get("execution_state") == "idle":
            ended.add(message["parent_header"]["msg_id"])
        if {request, run_after} <= ended:
            break
    assert seen == [("status", "busy"), ("status", "idle")]


@pytest.mark.parametrize(
    "thread",
    [
        "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
        # A thread that Python does not know of takes the signal mask as it finds it.
        "import _thread, threading; _thread.start_new_thread(threading.Event().wait, ())",
    ],
)
def test_an_idle_interrupt_that_a_thread_takes_does_not_hit_the_next_cell(
    thread: str, fresh: TestKernel
) -> None:
    fresh.run(thread)
    for _ in range(5):
        os.kill(fresh.pid, signal.SIGINT)
        run = fresh.run("import time; time.sleep(0.05); 'unharmed'")
        assert run.value == "'unharmed'"


def test_cleanup_code_runs_when_a_cell_is_interrupted(kernel: TestKernel) -> None:
    code = """
import asyncio
try:
    print("ready", flush=True); await asyncio.sleep(1000)
finally:
    print("cleaned up")
"""
    cell = kernel.send(code)
    kernel.wait_for_text("ready")
    kernel.interrupt()
    assert "cleaned up" in kernel.wait(cell).out


def test_a_signal_that_python_handles_may_come_while_idle(fresh: TestKernel) -> None:
    code = """
import asyncio, signal
came = []
signal.signal(signal.SIGUSR1, lambda *_: came.append(1))
done = asyncio.Event()
signal.signal(signal.SIGALRM, lambda *_: came.append(2))
"""
    assert fresh.run(code).status == "ok"
    os.kill(fresh.pid, signal.SIGUSR1)
    os.kill(fresh.pid, signal.SIGALRM)
    assert fresh.run("sorted(came)").value == "[1, 2]"


def test_queued_cells_are_aborted_after_an_interrupt(kernel: TestKernel) -> None:
    first = kernel.send("import time; print('ready', flush=True); time.sleep(1000)")
    rest = [kernel.send("print('must not run')") for _ in range(5)]
    kernel.wait_for_text("ready")
    kernel.interrupt()
    assert kernel.reply(first)["content"]["ename"] == "KeyboardInterrupt"
    for cell in rest:
        assert kernel.reply(cell)["content"]["status"] == "aborted"
    assert kernel.run("'goes on'").value == "'goes on'"
