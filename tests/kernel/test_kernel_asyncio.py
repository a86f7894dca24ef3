"""Coroutines in cells and between them."""

from __future__ import annotations

from tests.support.kernel_client import TestKernel


def test_await_works_at_top_level(kernel: TestKernel) -> None:
    run = kernel.run(
        "import asyncio\nasync def two(): await asyncio.sleep(0); return 2\nawait two()"
    )
    assert run.value == "2"


def test_asyncio_run_works_in_a_cell_again_and_again(kernel: TestKernel) -> None:
    for _ in range(3):
        assert kernel.run("async def one(): return 1\nasyncio.run(one())").value == "1"
        assert kernel.run("await one()").value == "1"


def test_a_task_goes_on_between_cells_and_writes_into_its_own(kernel: TestKernel) -> None:
    code = """
import asyncio
async def background():
    for step in range(3): await asyncio.sleep(0.05); print("step", step)
    print("done", flush=True)
task = asyncio.create_task(background())
"""
    cell = kernel.send(code)
    kernel.reply(cell)
    written = ""
    while "done" not in written:
        message = kernel.client.get_iopub_msg(timeout=60)
        if message["msg_type"] == "stream":
            assert message["parent_header"]["msg_id"] == cell
            written += message["content"]["text"]
    assert written.split("\n")[:3] == ["step 0", "step 1", "step 2"]
    assert kernel.run("task.done()").value == "True"


def test_a_task_of_an_awaiting_cell_goes_on_too(kernel: TestKernel) -> None:
    kernel.run("task = asyncio.create_task(asyncio.sleep(0.1, 'kept')); await asyncio.sleep(0)")
    assert kernel.run("await task").value == "'kept'"


def test_the_same_loop_serves_all_cells(kernel: TestKernel) -> None:
    kernel.run("loop = asyncio.get_event_loop(); queue = asyncio.Queue()")
    kernel.run("loop.call_later(0.05, queue.put_nowait, 'from a timer')")
    assert kernel.run("await queue.get()").value == "'from a timer'"
    assert kernel.run("asyncio.get_running_loop() is loop if await asyncio.sleep(0, True) else 0")


def test_a_thread_wakes_the_idle_loop(kernel: TestKernel) -> None:
    code = """
import threading
arrived = asyncio.Event()
def later():
    loop.call_soon_threadsafe(lambda: print("woken", flush=True))
timer = threading.Timer(0.2, later); timer.start()
"""
    cell = kernel.send(code)
    kernel.reply(cell)
    kernel.wait_for_text("woken")


def test_a_server_in_the_notebook_answers_between_cells(kernel: TestKernel) -> None:
    code = """
import asyncio, urllib.request
async def answer(reader, writer):
    await reader.readline(); writer.write(b"HTTP/1.0 200 OK\\r\\n\\r\\nhello"); writer.close()
server = await asyncio.start_server(answer, "127.0.0.1", 0)
server.sockets[0].getsockname()[1]
"""
    import urllib.request

    port = int(kernel.run(code).value)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60) as response:
        assert response.read() == b"hello"
    kernel.run("server.close()")


def test_requests_are_answered_while_a_task_never_rests(kernel: TestKernel) -> None:
    kernel.run("async def busy():\n    while True: await asyncio.sleep(0)")
    kernel.run("task = asyncio.create_task(busy())")
    for _ in range(100):
        assert kernel.reply(kernel.client.kernel_info())["content"]["status"] == "ok"
    assert kernel.run("task.cancel()").value == "True"


def test_an_idle_kernel_uses_no_processor_time(kernel: TestKernel) -> None:
    kernel.run("sleeper = asyncio.create_task(asyncio.sleep(1000))")
    code = "import time; time.process_time()"
    before = float(kernel.run(code).value)
    import time

    time.sleep(2)
    assert float(kernel.run(code).value) - before < 0.5
    kernel.run("sleeper.cancel()")


def test_an_error_in_a_task_does_not_harm_the_kernel(kernel: TestKernel) -> None:
    kernel.run("async def fail(): raise SystemExit(3)\nbad = asyncio.create_task(fail())")
    kernel.run("loop.call_soon(lambda: 1/0)")
    assert kernel.run("'alive'").value == "'alive'"


def test_an_interrupted_await_leaves_the_loop_usable(kernel: TestKernel) -> None:
    cell = kernel.send("print('ready', flush=True); await asyncio.sleep(1000)")
    kernel.wait_for_text("ready")
    kernel.interrupt()
    assert kernel.wait(cell).content["ename"] == "KeyboardInterrupt"
    assert kernel.run("await asyncio.sleep(0, 'usable')").value == "'usable'"
    assert kernel.run("len(asyncio.all_tasks(loop))").value == "0"
