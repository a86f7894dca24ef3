"""The start and the end of the kernel's process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.kernel_client import (
    PATIENCE,
    TestKernel,
    gone_within,
    kernel_env,
    running,
)

# Far more than it takes; far less than Jupyter waits before it kills (5 s).
QUICK = 4.0

GIL = "import ctypes; print('ready', flush=True); ctypes.PyDLL(None).usleep(100_000_000)"
DEAF = """
import time
print("ready", flush=True)
while True:
    try: time.sleep(1000)
    except KeyboardInterrupt: pass
"""


@pytest.mark.parametrize("restart", [False, True])
def test_a_shutdown_runs_exit_functions_and_ends_with_0(
    restart: bool, fresh: TestKernel, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    fresh.run(f"import atexit; atexit.register(lambda: open({str(mark)!r}, 'w').write('ran'))")
    process = fresh.manager.provisioner.process
    reply = fresh.control("shutdown_request", {"restart": restart})
    assert reply["content"] == {"status": "ok", "restart": restart}
    assert process.wait(PATIENCE) == 0
    assert mark.read_text() == "ran"


@pytest.mark.parametrize("cell", [None, "import time; print('ready', flush=True); time.sleep(99)"])
def test_a_shutdown_on_the_shell_channel_ends_the_kernel(
    cell: str | None, fresh: TestKernel
) -> None:
    fresh.shell("shutdown_request", {"restart": False})
    assert fresh.manager.provisioner.process.wait(PATIENCE) == 0


@pytest.mark.parametrize(
    "cell",
    ["import time; print('ready', flush=True); time.sleep(1000)", GIL, DEAF, "input('ready')"],
    ids=["a sleep", "C code with the GIL", "a cell that swallows interrupts", "a question"],
)
def test_a_shutdown_is_quick_during(cell: str, fresh: TestKernel) -> None:
    fresh.send(cell, allow_stdin=True)
    if cell.startswith("input"):
        fresh.client.get_stdin_msg(timeout=PATIENCE)
    else:
        fresh.wait_for_text("ready")
    reply = fresh.control("shutdown_request", {"restart": False})
    assert reply["content"]["status"] == "ok"
    assert fresh.manager.provisioner.process.wait(QUICK) == 0


def test_a_cell_can_clean_up_when_the_kernel_shuts_down(fresh: TestKernel, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    code = f"""
import time
try:
    print("ready", flush=True); time.sleep(1000)
finally:
    open({str(mark)!r}, "w").write("cleaned up")
"""
    fresh.send(code)
    fresh.wait_for_text("ready")
    fresh.control("shutdown_request", {"restart": False})
    fresh.manager.provisioner.process.wait(PATIENCE)
    assert mark.read_text() == "cleaned up"


def test_a_restarted_kernel_works(fresh: TestKernel) -> None:
    fresh.run("kept = 1")
    fresh.manager.restart_kernel(now=False)
    fresh.client.wait_for_ready(timeout=PATIENCE)
    assert fresh.run("'kept' in globals()").value == "False"


@pytest.mark.parametrize("word", ["exit", "quit()"])
def test_exit_tells_the_front_end_and_ends_the_kernel(word: str, fresh: TestKernel) -> None:
    process = fresh.manager.provisioner.process
    run = fresh.run(word)
    assert run.content["payload"] == [{"source": "ask_exit", "keepkernel": False}]
    assert process.wait(PATIENCE) == 0


def start_below(parent: str, tmp_path: Path) -> tuple[subprocess.Popen[str], int]:
    """A process that starts a kernel with Jupyter's client and tells the kernel's pid."""
    code = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).resolve().parents[2])!r})
from tests.support.kernel_client import running
with running() as kernel:
    {parent}
    print(kernel.pid, flush=True)
    time.sleep(1000)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=kernel_env()
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    return process, int(line)


@pytest.mark.parametrize(
    "doing", ["pass", f"kernel.send({GIL!r}); kernel.wait_for_text('ready')"], ids=["idle", "stuck"]
)
def test_the_kernel_ends_when_its_parent_is_killed(doing: str, tmp_path: Path) -> None:
    parent, pid = start_below(doing, tmp_path)
    parent.kill()
    parent.wait()
    assert gone_within(pid, PATIENCE), "the kernel outlived its parent"


def test_a_kernel_started_by_a_thread_that_ends_lives_on() -> None:
    import threading

    found: list[TestKernel] = []
    stop = threading.Event()
    with running() as first:  # imports all that the thread needs
        assert first.answers()
    from contextlib import ExitStack

    stack = ExitStack()
    thread = threading.Thread(target=lambda: found.append(stack.enter_context(running())))
    thread.start()
    thread.join(PATIENCE)
    stop.set()
    with stack:
        assert found[0].run("'alive'").value == "'alive'"


def test_sigterm_ends_an_idle_kernel(fresh: TestKernel) -> None:
    process = fresh.manager.provisioner.process
    os.kill(fresh.pid, signal.SIGTERM)
    assert process.wait(PATIENCE) == -signal.SIGTERM


def test_the_kernel_works_without_a_writable_home(tmp_path: Path) -> None:
    file = tmp_path / "not a folder"
    file.write_text("")
    with running(env={"HOME": str(file), "IPYTHONDIR": str(file / "ipython")}) as kernel:
        assert kernel.run("1 + 1").value == "2"
        kernel.run("'remembered'")
        content = {"hist_access_type": "tail", "n": 2, "raw": True, "output": False}
        history = kernel.reply(kernel.shell("history_request", content))["content"]
        assert [entry[2] for entry in history["history"]] == ["1 + 1", "'remembered'"]


def test_modules_beside_the_notebook_do_not_replace_the_kernels_own(tmp_path: Path) -> None:
    for name in ("random", "platform", "comm", "json"):
        (tmp_path / f"{name}.py").write_text("raise SystemError('the wrong module')")
    (tmp_path / "helper_of_the_notebook.py").write_text("value = 5")
    with running(cwd=tmp_path) as kernel:
        run = kernel.run("import helper_of_the_notebook, sys; helper_of_the_notebook.value")
        assert run.value == "5"
        (tmp_path / "script.py").write_text("import helper_of_the_notebook")
        assert kernel.run("import os; os.system(f'{sys.executable} script.py')").value == "0"


@pytest.mark.parametrize("how", ["unix sockets", "encrypted"])
def test_the_kernel_listens_as_it_is_told(how: str, tmp_path: Path) -> None:
    unix = {"transport": "ipc", "ip": str(tmp_path / "socket")}
    options = unix if how == "unix sockets" else {"transport_encryption": "required"}
    with running(manager_options=options) as kernel:
        assert kernel.run("print('heard')").out == "heard\n"
        assert kernel.control("interrupt_request")["content"]["status"] == "ok"


@pytest.mark.parametrize("content", ["", "{", '{"shell_port": 1}', None])
def test_a_bad_connection_file_is_named(content: str | None, tmp_path: Path) -> None:
    file = tmp_path / "connection.json"
    if content is not None:
        file.write_text(content)
    done = subprocess.run(
        [sys.executable, "-m", "serverless_gpu.kernel", "-f", str(file)],
        env=kernel_env(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode != 0 and str(file) in done.stderr


def test_a_taken_port_ends_the_start_with_an_error(fresh: TestKernel, tmp_path: Path) -> None:
    file = tmp_path / "connection.json"
    taken = json.loads(Path(fresh.manager.connection_file).read_text())
    file.write_text(json.dumps(taken))
    done = subprocess.run(
        [sys.executable, "-m", "serverless_gpu.kernel", "-f", str(file)],
        env=kernel_env(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode != 0 and "Address already in use" in done.stderr


def test_a_broken_notebook_module_does_not_keep_the_kernel_from_starting(tmp_path: Path) -> None:
    package = tmp_path / "sitecustomize.py"
    package.write_text(
        "import sys, types\n"
        "broken = types.ModuleType('serverless_gpu.notebook')\n"
        "def start(shell): raise SystemExit('broken')\n"
        "broken.start = start\n"
        "sys.modules['serverless_gpu.notebook'] = broken\n"
    )
    path = os.pathsep.join([str(tmp_path), kernel_env()["PYTHONPATH"]])
    with running(env={"PYTHONPATH": path}, stderr=subprocess.DEVNULL) as kernel:
        assert kernel.run("1 + 1").value == "2"


def test_on_shutdown_is_called_once_with_restart(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, types\n"
        "notebook = types.ModuleType('serverless_gpu.notebook')\n"
        "notebook.start = lambda shell: shell.user_ns.update(started=True)\n"
        f"notebook.on_shutdown = lambda restart: open({str(mark)!r}, 'a').write(f'{{restart}};')\n"
        "sys.modules['serverless_gpu.notebook'] = notebook\n"
    )
    path = os.pathsep.join([str(tmp_path), kernel_env()["PYTHONPATH"]])
    with running(env={"PYTHONPATH": path}) as kernel:
        assert kernel.run("started").value == "True"
        process = kernel.manager.provisioner.process
        kernel.control("shutdown_request", {"restart": True})
        process.wait(PATIENCE)
    assert mark.read_text() == "True;"
