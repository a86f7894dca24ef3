"""Questions of cells to the user."""

from __future__ import annotations

from tests.support.kernel_client import PATIENCE, TestKernel


def question(kernel: TestKernel) -> dict[str, object]:
    """The content of the next question."""
    message = kernel.client.get_stdin_msg(timeout=PATIENCE)
    assert message["msg_type"] == "input_request"
    return dict(message["content"])


def test_input_returns_what_the_user_types(kernel: TestKernel) -> None:
    cell = kernel.send("name = input('Who? '); name.upper()", allow_stdin=True)
    assert question(kernel) == {"prompt": "Who? ", "password": False}
    kernel.client.input("grün")
    assert kernel.wait(cell).value == "'GRÜN'"


def test_getpass_asks_for_a_hidden_answer(kernel: TestKernel) -> None:
    code = "import getpass\nfrom getpass import getpass as ask\ngetpass.getpass() + ask('Key: ')"
    cell = kernel.send(code, allow_stdin=True)
    assert question(kernel) == {"prompt": "Password: ", "password": True}
    kernel.client.input("a")
    assert question(kernel) == {"prompt": "Key: ", "password": True}
    kernel.client.input("b")
    assert kernel.wait(cell).value == "'ab'"


def test_what_was_printed_before_a_question_is_seen_before_the_answer(kernel: TestKernel) -> None:
    cell = kernel.send("print('first', end=''); input()", allow_stdin=True)
    kernel.wait_for_text("first")
    question(kernel)
    kernel.client.input("")
    kernel.wait(cell)


def test_an_interrupt_ends_a_question_and_the_next_gets_its_own_answer(kernel: TestKernel) -> None:
    for _ in range(3):
        cell = kernel.send("input('first')", allow_stdin=True)
        question(kernel)
        kernel.interrupt()
        stopped = kernel.wait(cell).content
        assert stopped["ename"] == "KeyboardInterrupt"
        shown = "\n".join(stopped["traceback"])
        assert "input('first')" in shown and "session.py" not in shown
        kernel.client.input("too late")
        kernel.run("'the late answer has arrived'")
        cell = kernel.send("input('second')", allow_stdin=True)
        question(kernel)
        kernel.client.input("right")
        assert kernel.wait(cell).value == "'right'"


def test_without_a_user_input_raises_at_once_and_says_why(kernel: TestKernel) -> None:
    for code in ("input()", "import getpass; getpass.getpass()"):
        run = kernel.run(code, allow_stdin=False)
        assert run.content["ename"] == "StdinNotImplementedError"
        assert "does not answer questions" in run.content["evalue"]
        assert "session.py" not in "\n".join(run.content["traceback"])


def test_other_threads_run_during_a_question(kernel: TestKernel) -> None:
    code = """
import threading
ticks, stop = [], threading.Event()
def tick():
    while not stop.wait(0.01): ticks.append(1); len(ticks) == 50 and print("fifty", flush=True)
thread = threading.Thread(target=tick); thread.start()
input(); stop.set(); thread.join(); len(ticks) >= 50
"""
    cell = kernel.send(code, allow_stdin=True)
    question(kernel)
    kernel.wait_for_text("fifty")
    kernel.client.input("")
    assert kernel.wait(cell).value == "True"


def test_a_question_from_a_thread_is_refused(kernel: TestKernel) -> None:
    code = """
import threading
def ask():
    try: input()
    except Exception as error: print(type(error).__name__, error)
thread = threading.Thread(target=ask); thread.start(); thread.join()
"""
    assert "main thread" in kernel.run(code, allow_stdin=True).out


def test_the_debugger_asks_in_the_notebook(kernel: TestKernel) -> None:
    cell = kernel.send("value = 41\nbreakpoint()\nvalue", allow_stdin=True)
    assert "pdb" in str(question(kernel)["prompt"]).lower()
    kernel.client.input("value = value + 1")
    question(kernel)
    kernel.client.input("continue")
    assert kernel.wait(cell).value == "42"
