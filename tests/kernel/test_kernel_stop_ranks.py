"""Stop, by signal and by message, whatever a call of a notebook is doing: the cell ends as
KeyboardInterrupt, queued cells are aborted, and the next call has its ranks and the session's
variables."""

from __future__ import annotations

import os
import re
import signal
import textwrap
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.support import kernel_client
from tests.support.kernel_client import PATIENCE, Run, TestKernel

ENV = {"SERVERLESS_GPU_ACCELERATOR": "cpu", "SERVERLESS_GPU_MLFLOW": "off"}

PREAMBLE = """
import ctypes, os, signal, sys, threading, time
import serverless_gpu
from serverless_gpu import call, distributed
call.GRACE = 1.0
def say(text="ready"): print(text, flush=True)
class SlowToSend:
    def __reduce__(self): say(); time.sleep(3600); return (int, ())
class SlowToRead:
    def __init__(self): self.x = 1
    def __setstate__(self, state): say(); time.sleep(3600)
class SlowInRank(SlowToSend): pass
"""

SESSION = "%%distributed --gpus 2\nimport os, time; kept = int(os.environ['RANK'])"


def function(body: str, arguments: str = "") -> str:
    body = textwrap.indent(body, "    ")
    return f"@distributed(gpus=2)\ndef f(x=None):\n{body}\nf.distributed({arguments})"


#: What the cell does, from its print of "ready" on, and whether ranks have to be killed for it.
STATES: dict[str, tuple[str, bool]] = {
    "sleeps": (function("say(); time.sleep(3600)"), False),
    "computes in Python": (function("say()\nwhile True: pass"), False),
    "native code without the GIL": (function("say(); ctypes.CDLL(None).sleep(3600)"), False),
    "native code with the GIL": (
        function(
            # A Stop that comes before the lock does not find Python either.
            "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}); say()\n"
            "lock = ctypes.create_string_buffer(64)\n"
            "for _ in range(2): ctypes.PyDLL(None).pthread_mutex_lock(lock)"
        ),
        True,
    ),
    "a collective": (
        function(
            "import torch.distributed as dist; dist.init_process_group()\n"
            "say()\nif dist.get_rank(): time.sleep(3600)\ndist.barrier()"
        ),
        False,
    ),
    "a collective that is being set up": (
        function(
            "import torch.distributed as dist\nsay()\n"
            "if os.environ['RANK'] == '1': time.sleep(3600)\ndist.init_process_group()"
        ),
        False,
    ),
    "a lock": (function("lock = threading.Lock(); lock.acquire(); say(); lock.acquire()"), False),
    "a loader with workers": (
        function(
            "import torch\nclass Slow(torch.utils.data.Dataset):\n"
            "    def __len__(self): return 100\n"
            "    def __getitem__(self, i): say(); time.sleep(3600)\n"
            "next(iter(torch.utils.data.DataLoader(Slow(), num_workers=2)))"
        ),
        False,
    ),
    "finally": (
        function("try: 1 / 0\nfinally:\n    say(); time.sleep(3600)"),
        False,
    ),
    "swallows every interrupt": (
        function("while True:\n    try: say(); time.sleep(3600)\n    except BaseException: pass"),
        True,
    ),
    "arguments are taken apart": (function("return 1", "SlowToSend()"), False),
    "a result is taken apart in a rank": (function("return SlowInRank()"), False),
    "a result is read in the notebook": (function("return SlowToRead()"), False),
    "a session's cell": ("%%distributed\nprint('ready', flush=True); time.sleep(3600)", False),
    "a session's function": (
        "@distributed(session=True)\ndef f(): print('ready', flush=True); time.sleep(3600)\n"
        "f.distributed()",
        False,
    ),
    "pulled variables are read": (
        "%%distributed --push SlowToRead --pull x\nx = SlowToRead()",
        False,
    ),
    "waits for a thread's call": (
        "started = threading.Event()\n"
        "@distributed(gpus=2)\ndef long(): time.sleep(3600)\n"
        "def background():\n"
        "    try: long.distributed()\n"
        "    except Exception as error: ended.append(error)\n"
        "ended = []; thread = threading.Thread(target=background); thread.start()\n"
        "while not call.one_call.locked(): time.sleep(0.01)\n"
        "def place():\n"
        "    frame = sys._current_frames()[threading.main_thread().ident]\n"
        "    return frame.f_code.co_name, frame.f_lasti\n"
        "def watch():\n"  # says so once the cell stands still where it waits for its turn
        "    seen = ()\n"
        "    while seen != place() or seen[0] != '_turn': seen = place(); time.sleep(0.05)\n"
        "    say()\n"
        "threading.Thread(target=watch).start(); long.distributed()",
        False,
    ),
}


@pytest.fixture(scope="module")
def notebook() -> Iterator[TestKernel]:
    with kernel_client.running(ENV) as kernel:
        assert kernel.run(PREAMBLE).status == "ok"
        assert kernel.run(SESSION).status == "ok"
        yield kernel


def by_message(kernel: TestKernel) -> None:
    assert kernel.control("interrupt_request")["content"] == {"status": "ok"}


def by_signal(kernel: TestKernel) -> None:
    os.killpg(kernel.pid, signal.SIGINT)


WAYS = {"message": by_message, "signal": by_signal}
Press = Callable[[TestKernel], None]


def stop_at(kernel: TestKernel, code: str, press: Press, text: str = "ready") -> Run:
    """Runs the cell, with one queued behind it, and presses Stop when it has said `text`."""
    cell = kernel.send(code)
    queued = kernel.send("print('must not run')")
    for message in kernel.published(time.monotonic() + PATIENCE, repr(text)):
        output = message["msg_type"] in ("stream", "display_data", "update_display_data")
        if output and text in str(message["content"]):
            break
    press(kernel)
    run = Run(reply=kernel.reply(cell))
    assert kernel.reply(queued)["content"]["status"] == "aborted"
    return run


def works(kernel: TestKernel) -> None:
    """The next call has its ranks, and the session its variables."""
    run = kernel.run(
        "@distributed(gpus=2)\ndef two(): return int(os.environ['RANK'])\n"
        "assert two.distributed() == [0, 1]\n"
        "assert serverless_gpu.session().pull('kept') == [0, 1]"
    )
    assert run.status == "ok", "\n".join(run.content["traceback"])


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("way", WAYS)
def test_stop_ends_a_cell(way: str, state: str, notebook: TestKernel) -> None:
    code, killed = STATES[state]
    run = stop_at(notebook, code, WAYS[way])
    assert run.content["ename"] == "KeyboardInterrupt"
    shown = "\n".join(run.content["traceback"])
    assert shown.count("KeyboardInterrupt") == 1
    assert ("had to be killed" in shown) == killed
    if "thread" in state:
        assert "goes on" in shown
        ended = notebook.run("%distributed stop\nthread.join(30)\nprint(thread.is_alive(), *ended)")
        assert "False the call was ended: the notebook has ended" in ended.out
        assert notebook.run(SESSION).status == "ok"
    works(notebook)


@pytest.mark.parametrize("way", WAYS)
def test_stop_ends_a_start(way: str) -> None:
    """The fork server still imports torch, so there are no ranks yet: user code never begins."""
    with kernel_client.running({**ENV, "SERVERLESS_GPU_WARM": "0"}) as kernel:
        kernel.run(PREAMBLE)
        for code in (function("say('begun')"), in_session("print('begun')")):
            run = stop_at(kernel, code, WAYS[way], "starting: the first call imports torch")
            assert run.content["ename"] == "KeyboardInterrupt", run.content["evalue"]
            assert "killed" not in "".join(run.content["traceback"])
            kernel.run("%distributed stop")  # so that the next start is one, too
        after = kernel.run(SESSION + "; print('kept', kept)")
        assert after.status == "ok"
        assert "begun" not in after.out and "replaced" not in after.out
        works(kernel)


def in_session(code: str) -> str:
    return f"serverless_gpu.session().run({code!r}, gpus=2)"


@pytest.mark.parametrize("way", WAYS)
def test_stop_during_the_end_of_all_ranks_leaves_nothing_half_done(
    way: str, notebook: TestKernel
) -> None:
    """`%distributed stop` goes to its end; that is bounded."""
    hang = "import atexit; atexit.register(time.sleep, 3600)"
    assert notebook.run(f"%%distributed --fresh --gpus 2\nimport time; {hang}").status == "ok"
    notebook.run("owner = serverless_gpu.pool.running(); guard = owner.core.pids()['guard']")
    run = stop_at(
        notebook,
        "end = owner.output.close\ndef close():\n    say(); pressed.wait(30); end()\n"
        "pressed = threading.Event(); owner.output.close = close\n"
        "signal.signal(signal.SIGUSR1, lambda *_: pressed.set())\n"
        "%distributed stop",
        lambda kernel: (WAYS[way](kernel), os.kill(kernel.pid, signal.SIGUSR1)),
    )
    assert run.content["ename"] == "KeyboardInterrupt"
    gone = notebook.run("print(os.path.exists(f'/proc/{guard}'), os.path.exists(owner.folder))")
    assert gone.out == "False False\n"
    assert notebook.run(SESSION).status == "ok"
    works(notebook)


def test_a_second_stop_skips_the_grace(notebook: TestKernel) -> None:
    notebook.run("call.GRACE = 600.0")
    deaf = function("while True:\n    try: say(); time.sleep(3600)\n    except BaseException: pass")
    cell = notebook.send(deaf)
    notebook.wait_for_text("ready")
    ended = threading.Event()

    def press() -> None:
        while not ended.wait(0.1):
            notebook.interrupt()

    presses = threading.Thread(target=press)
    presses.start()
    try:
        run = notebook.wait(cell)
    finally:
        ended.set()
        presses.join()
    assert run.content["ename"] == "KeyboardInterrupt"
    assert re.search(r"ranks 0-1 had to be killed", "\n".join(run.content["traceback"]))
    notebook.run("call.GRACE = 1.0")
    works(notebook)


def test_the_status_line_says_what_is_done(notebook: TestKernel) -> None:
    cell = notebook.send(STATES["swallows every interrupt"][0])
    run = Run()
    pressed = False
    for message in notebook.published(time.monotonic() + PATIENCE, "the cell's end"):
        if message["parent_header"].get("msg_id") != cell:
            continue
        run.messages.append(message)
        if not pressed and "ready" in message["content"].get("text", ""):
            pressed = True
            notebook.interrupt()
        if message["content"].get("execution_state") == "idle":
            break
    notebook.reply(cell)
    lines = [each["data"]["text/plain"] for each in run.of_type("update_display_data")]
    assert any("stopping" in line for line in lines)
    assert any("collectives are being aborted" in line for line in lines)
    assert "■ ranks 0-1 had to be killed · 2 ranks" in lines[-1] and "stopped after" in lines[-1]
