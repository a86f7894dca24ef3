"""Every request gets exactly one right reply."""

from __future__ import annotations

import platform
import sys
import time
from typing import Any

import pytest

from tests.support.kernel_client import PATIENCE, TestKernel


def ask(kernel: TestKernel, msg_type: str, **content: Any) -> dict[str, Any]:
    reply = kernel.reply(kernel.shell(msg_type, content))
    assert reply["msg_type"] == msg_type.replace("_request", "_reply")
    answer: dict[str, Any] = reply["content"]
    return answer


def test_kernel_info_describes_the_running_python(kernel: TestKernel) -> None:
    info = ask(kernel, "kernel_info_request")
    language = info["language_info"]
    assert info["status"] == "ok" and info["protocol_version"] == "5.3"
    assert info["implementation"] == "serverless-gpu"
    assert language["version"] == platform.python_version()
    assert language["pygments_lexer"] == "ipython3"
    assert language["nbconvert_exporter"] == "python"
    assert language["codemirror_mode"] == {"name": "ipython", "version": 3}
    assert kernel.control("kernel_info_request")["content"] == info


def test_kernel_info_is_answered_on_control_while_a_cell_holds_the_gil(kernel: TestKernel) -> None:
    code = "import ctypes; print('ready', flush=True); ctypes.PyDLL(None).usleep(3_000_000)"
    cell = kernel.send(code)
    kernel.wait_for_text("ready")
    assert kernel.control("kernel_info_request")["content"]["status"] == "ok"
    assert not kernel.client.shell_channel.msg_ready(), "the cell ended before the answer came"
    kernel.reply(cell)


def test_twenty_queued_cells_run_in_order(kernel: TestKernel) -> None:
    cells = [kernel.send(f"{number} * 10") for number in range(20)]
    assert [kernel.wait(cell).value for cell in cells] == [str(n * 10) for n in range(20)]


def test_cells_queued_behind_an_error_are_aborted_and_other_requests_are_not(
    kernel: TestKernel,
) -> None:
    first = kernel.send("import time; print('ready', flush=True); time.sleep(2); 1/0")
    kernel.wait_for_text("ready")
    rest = [kernel.send("print('must not run')") for _ in range(20)]
    info = kernel.client.kernel_info()
    assert kernel.reply(first)["content"]["ename"] == "ZeroDivisionError"
    for cell in rest:
        assert kernel.reply(cell)["content"]["status"] == "aborted"
    assert kernel.reply(info)["content"]["status"] == "ok"
    assert kernel.run("'goes on'").value == "'goes on'"


def test_cells_run_on_behind_an_error_if_the_client_wants_it(kernel: TestKernel) -> None:
    first = kernel.send("import time; time.sleep(0.5); 1/0", stop_on_error=False)
    second = kernel.send("'goes on'")
    assert kernel.wait(first).status == "error"
    assert kernel.wait(second).value == "'goes on'"


def test_a_cell_sent_after_the_error_reply_is_never_aborted(kernel: TestKernel) -> None:
    for _ in range(20):
        kernel.reply(kernel.send("1/0"))
        assert kernel.reply(kernel.send("1"))["content"]["status"] == "ok"


def test_the_execution_count_is_ipythons(kernel: TestKernel) -> None:
    start = kernel.run("'count'").content["execution_count"]
    kernel.run("'not stored'", store_history=False)
    kernel.run("'silent'", silent=True)
    failed = kernel.run("1/0")
    run = kernel.run("'last'")
    assert failed.content["execution_count"] == start + 1
    assert run.content["execution_count"] == start + 2
    assert run.of_type("execute_input")[0]["execution_count"] == start + 2
    assert run.of_type("execute_result")[0]["execution_count"] == start + 2


def test_a_silent_cell_publishes_only_its_status(kernel: TestKernel) -> None:
    run = kernel.run("5", silent=True)
    assert {each["msg_type"] for each in run.messages} == {"status"}


@pytest.mark.parametrize(
    ("code", "name", "value"),
    [
        ("1/0", "ZeroDivisionError", "division by zero"),
        ("x = = 1", "SyntaxError", "invalid syntax"),
        ("%no_such_magic", "UsageError", ""),
        ("import sys; sys.exit(3)", "SystemExit", "3"),
        ("raise BaseException('base')", "BaseException", "base"),
        ("def f(): f()\nf()", "RecursionError", "maximum recursion depth"),
    ],
)
def test_an_error_is_named_in_reply_and_message(
    code: str, name: str, value: str, kernel: TestKernel
) -> None:
    run = kernel.run(code)
    assert (run.status, run.content["ename"]) == ("error", name)
    assert value in run.content["evalue"]
    if name != "UsageError":  # IPython writes these as a line of text
        assert run.of_type("error")[0]["ename"] == name
        assert run.content["traceback"]
    assert kernel.run("1").value == "1"


def test_an_error_that_cannot_be_shown_is_an_error(kernel: TestKernel) -> None:
    code = "class Odd(Exception):\n  def __str__(self): raise ValueError\nraise Odd"
    assert kernel.run(code).status == "error"
    assert kernel.run("1").value == "1"


def test_user_expressions_are_evaluated(kernel: TestKernel) -> None:
    run = kernel.run("a = 4", user_expressions={"good": "a * 2", "bad": "1/0"})
    answers = run.content["user_expressions"]
    assert answers["good"]["data"]["text/plain"] == "8"
    assert answers["bad"]["status"] == "error"


def test_completion_knows_types(kernel: TestKernel) -> None:
    kernel.run("colour_table = {}")
    reply = ask(kernel, "complete_request", code="colour_ta", cursor_pos=9)
    assert reply["matches"] == ["colour_table"]
    assert (reply["cursor_start"], reply["cursor_end"]) == (0, 9)
    assert reply["metadata"]["_jupyter_types_experimental"][0]["text"] == "colour_table"


def test_inspection_finds_help_or_says_so(kernel: TestKernel) -> None:
    found = ask(kernel, "inspect_request", code="len(", cursor_pos=4, detail_level=0)
    assert found["found"] and "Return the number of items" in found["data"]["text/plain"]
    missing = ask(kernel, "inspect_request", code="no_such_name", cursor_pos=3)
    assert missing["status"] == "ok" and not missing["found"]


def test_is_complete_tells_four_cases(kernel: TestKernel) -> None:
    cases = {"1": "complete", "for i in x:": "incomplete", "1 +* 2": "invalid"}
    answers = {code: ask(kernel, "is_complete_request", code=code)["status"] for code in cases}
    assert answers == cases
    assert ask(kernel, "is_complete_request", code="if 1:")["indent"] == "    "


@pytest.mark.parametrize(
    ("msg_type", "content"),
    [
        ("execute_request", {"code": 5}),
        ("execute_request", {}),
        ("complete_request", {"code": "a", "cursor_pos": "wrong"}),
        ("history_request", {"hist_access_type": "tail", "n": "many"}),
        ("connect_request", {}),
        ("nonsense_request", {}),
    ],
)
def test_a_request_that_makes_no_sense_gets_one_reply(
    msg_type: str, content: dict[str, Any], kernel: TestKernel
) -> None:
    assert ask(kernel, msg_type, **content)["status"] in ("ok", "error")
    assert ask(kernel, "kernel_info_request")["status"] == "ok"
    assert not kernel.client.shell_channel.msg_ready(), "a second reply"


@pytest.mark.parametrize("msg_type", ["debug_request", "nonsense_request", "execute_request"])
def test_a_strange_control_request_gets_an_error(msg_type: str, kernel: TestKernel) -> None:
    assert kernel.control(msg_type, {"code": "1"})["content"]["status"] == "error"


def test_a_message_signed_with_another_key_is_ignored(kernel: TestKernel) -> None:
    session = kernel.client.session.clone()
    session.key = b"another key"
    forged = session.msg("execute_request", {"code": "forged = True", "silent": False})
    session.send(kernel.client.shell_channel.socket, forged)
    assert kernel.run("'forged' in globals()").value == "False"


def test_garbage_on_the_channels_harms_nothing(kernel: TestKernel) -> None:
    for channel in (kernel.client.shell_channel, kernel.client.control_channel):
        for frames in ([b""], [b"<IDS|MSG>"], [b"<IDS|MSG>", b"", b"{", b"[]", b"1", b"x"]):
            channel.socket.send_multipart(frames)
    assert kernel.run("1").value == "1"
    assert kernel.control("kernel_info_request")["content"]["status"] == "ok"


def test_the_heartbeat_beats_while_a_cell_holds_the_gil(kernel: TestKernel) -> None:
    kernel.client.hb_channel.unpause()
    code = "import ctypes; print('ready', flush=True); ctypes.PyDLL(None).usleep(3_000_000)"
    cell = kernel.send(code)
    kernel.wait_for_text("ready")
    deadline = time.monotonic() + PATIENCE
    while not kernel.client.hb_channel.is_beating():
        assert time.monotonic() < deadline, "no heartbeat"
        time.sleep(0.01)
    assert kernel.reply(cell)["content"]["status"] == "ok"


def test_the_kernel_runs_in_the_python_that_started_it(kernel: TestKernel) -> None:
    run = kernel.run("import sys; print(sys.executable); print(sys.prefix); print(sys.argv[1:])")
    assert run.out.splitlines() == [sys.executable, sys.prefix, "[]"]
    child = kernel.run("import subprocess; subprocess.run([sys.executable, '-c', 'print(7)'])")
    assert child.out == "7\n"


def test_torch_and_mlflow_are_not_imported_by_the_kernel(kernel: TestKernel) -> None:
    code = "import sys; {'torch', 'mlflow', 'matplotlib', 'pandas'} & set(sys.modules)"
    assert kernel.run(code).value == "set()"


def test_autoreload_and_other_magics_work(kernel: TestKernel) -> None:
    code = """
import os, sys, tempfile
folder = tempfile.mkdtemp(); sys.path.insert(0, folder)
open(os.path.join(folder, "changing.py"), "w").write("value = 1")
%load_ext autoreload
%autoreload 2
import changing
"""
    assert kernel.run(code).status == "ok"
    change = """
path = os.path.join(folder, "changing.py")
open(path, "w").write("value = 22"); os.utime(path, (1e9, 2e9))
"""
    kernel.run(change)
    assert kernel.run("changing.value").value == "22"
    assert "1 loop" in kernel.run("%timeit -n1 -r1 pass").out
    assert kernel.run("%%bash\necho from bash").out == "from bash\n"
    assert kernel.run("files = !echo one two\nfiles").value == "['one two']"
