"""What cells write: nothing lost, nothing in the wrong cell, in the order it was written."""

from __future__ import annotations

import time

from tests.support.kernel_client import PATIENCE, TestKernel


def test_twenty_thousand_prints_arrive_in_few_messages(kernel: TestKernel) -> None:
    run = kernel.run("for i in range(20000): print('line', i)")
    assert run.out.splitlines() == [f"line {i}" for i in range(20000)]
    assert len(run.of_type("stream")) < 1000


def test_twenty_thousand_displays_all_arrive(kernel: TestKernel) -> None:
    run = kernel.run("for i in range(20000): display(i)")
    shown = [each["data"]["text/plain"] for each in run.of_type("display_data")]
    assert shown == [str(i) for i in range(20000)]


def test_lines_that_a_thread_publishes_for_the_cell_all_arrive(kernel: TestKernel) -> None:
    code = """
import threading
from serverless_gpu.kernel import current_parent, publish
parent = current_parent()
def flood():
    for block in range(800):
        text = "".join(f"[{rank}] line {block}\\n" for rank in range(8) for _ in range(125))
        publish("stream", {"name": "stdout", "text": text}, parent)
thread = threading.Thread(target=flood); thread.start(); thread.join()
"""
    run = kernel.run(code)
    assert run.out.count("\n") == 800_000


def test_a_flood_waits_for_the_client_instead_of_filling_memory(fresh: TestKernel) -> None:
    rss = "import resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    before = int(fresh.run(rss).out)
    flood = fresh.send("for _ in range(400): print('x' * 1_000_000)")
    assert fresh.read_output(flood) == 400 * 1_000_001
    fresh.reply(flood)
    after = int(fresh.run(rss).out)
    assert after - before < 300_000, f"grew by {after - before} KB for 400 MB of output"


def test_stdout_stderr_and_displays_keep_their_order(kernel: TestKernel) -> None:
    run = kernel.run(
        "import sys\nprint('a'); print('b', file=sys.stderr); display('c'); print('d')"
    )
    seen = [
        each["content"].get("text", "").strip() or each["content"].get("data", {}).get("text/plain")
        for each in run.messages
        if each["msg_type"] in ("stream", "display_data")
    ]
    assert seen == ["a", "b", "'c'", "d"]


def test_output_below_python_comes_to_the_cell_in_order(kernel: TestKernel) -> None:
    code = """
import os, subprocess, ctypes
libc = ctypes.CDLL(None)
print("python 1"); os.system("echo system")
print("python 2"); os.write(1, b"descriptor\\n")
print("python 3"); subprocess.run(["sh", "-c", "echo child; echo error >&2"])
print("python 4"); libc.printf(b"printf\\n")
print("python 5")
"""
    run = kernel.run(code)
    expected = "python 1|system|python 2|descriptor|python 3|child|python 4|printf|python 5"
    assert run.out.splitlines() == expected.split("|")
    assert run.text("stderr") == "error\n"


def test_output_of_a_child_is_seen_while_it_runs(kernel: TestKernel) -> None:
    cell = kernel.send("import os; os.system('echo early; sleep 1000')")
    kernel.wait_for_text("early")
    kernel.interrupt()
    kernel.wait(cell)


def test_a_large_output_of_a_child_is_whole(kernel: TestKernel) -> None:
    run = kernel.run("import os; os.system('seq 200000')")
    assert run.out.splitlines() == [str(number) for number in range(1, 200_001)]


def test_bytes_that_are_no_text_do_not_end_the_output(kernel: TestKernel) -> None:
    code = "import os, sys\nos.write(1, b'\\xff\\xfe ok\\n'); print('\\udc80 lone'); print('grün')"
    run = kernel.run(code)
    assert "ok" in run.out and "lone" in run.out and "grün" in run.out


def test_every_character_arrives_as_it_was_written(kernel: TestKernel) -> None:
    """Wherever it stands in the text: runs of plain characters take a path of their own."""
    code = """
from serverless_gpu.kernel import current_parent, publish_text
text = "".join("x" * (i % 9) + chr(i) for i in range(1, 128)) * 2
for piece in (text, text + "é€😀", "", text + "end"):
    publish_text(1, piece.encode(), current_parent())
    print(piece, end="")
publish_text(2, b"a\\xff\\x00b", current_parent())
"""
    run = kernel.run(code)
    text = "".join("x" * (i % 9) + chr(i) for i in range(1, 128)) * 2
    pieces = [text, text + "é€😀", text + "end"]
    assert sorted(run.out) == sorted("".join(pieces) * 2)
    assert all(run.out.count(piece) >= 2 for piece in pieces)
    assert run.text("stderr") == "a\ufffd\0b"


def test_a_character_written_in_two_parts_is_whole(kernel: TestKernel) -> None:
    code = """
import os, sys, time
whole = "é€😀".encode()
for index in range(len(whole)):
    os.write(1, whole[index:index + 1]); sys.stdout.flush()
for index in range(len(whole)):
    sys.stdout.buffer.write(whole[index:index + 1])
"""
    assert kernel.run(code).out == "é€😀é€😀"


def test_a_thread_writes_into_the_cell_that_started_it(kernel: TestKernel) -> None:
    start = """
import threading
go = threading.Event()
def late():
    go.wait(60); print("from the thread"); done.set()
done = threading.Event()
threading.Thread(target=late).start()
"""
    first = kernel.send(start)
    kernel.wait(first)
    second = kernel.send("go.set(); done.wait(60); print('from the cell')")
    parents = {}
    for message in kernel.published(time.monotonic() + PATIENCE, "both lines"):
        for line in message["content"].get("text", "").splitlines():
            parents[line] = message["parent_header"]["msg_id"]
        if len(parents) == 2:
            break
    assert parents == {"from the thread": first, "from the cell": second}
    kernel.reply(second)


def test_a_forked_child_writes_into_the_cell_and_does_not_answer_for_the_kernel(
    kernel: TestKernel,
) -> None:
    code = """
import multiprocessing, os
def child(): print("from the child", flush=True)
process = multiprocessing.get_context("fork").Process(target=child)
process.start(); process.join()
if os.fork() == 0:
    print("from a fork that is never ended")
else:
    os.wait()
"""
    run = kernel.run(code)
    assert run.out.splitlines() == ["from the child", "from a fork that is never ended"]
    assert kernel.run("1 + 1").value == "2"


def test_streams_are_what_libraries_expect(kernel: TestKernel) -> None:
    code = """
import sys
for stream, fd in ((sys.stdout, 1), (sys.stderr, 2)):
    assert stream.fileno() == fd and not stream.isatty() and stream.writable()
    assert not stream.readable() and not stream.closed and stream.encoding == "utf-8"
    assert stream.errors and stream.name and stream.newlines is None
    stream.writelines(["a", "b"]); stream.buffer.write(b"c"); stream.buffer.flush(); stream.flush()
    stream.reconfigure(encoding="utf-8"); stream.close(); stream.write("d")
try:
    sys.stdout.write(b"bytes")
except TypeError:
    print("!")
"""
    run = kernel.run(code)
    assert (run.status, run.out, run.text("stderr")) == ("ok", "abcd!\n", "abcd")


def test_threads_that_print_while_requests_arrive_harm_nothing(kernel: TestKernel) -> None:
    code = """
import threading, time
stop = False
counts = [0, 0]
def chatter(which):
    while not stop:
        print(which, counts[which]); counts[which] += 1
threads = [threading.Thread(target=chatter, args=(which,)) for which in (0, 1)]
[thread.start() for thread in threads]
"""
    first = kernel.send(code)
    for _ in range(200):
        kernel.reply(kernel.client.kernel_info())
    end = kernel.send("stop = True; [thread.join() for thread in threads]")
    chatter = []
    for message in kernel.published(time.monotonic() + PATIENCE, "the end"):
        parent = message["parent_header"].get("msg_id")
        if parent == first:
            chatter.append(message["content"].get("text", ""))
        if parent == end and message["content"].get("execution_state") == "idle":
            break
    printed = "".join(chatter).count("\n")
    assert printed > 0
    assert kernel.run("sum(counts)").value == str(printed)
