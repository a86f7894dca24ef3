"""Comms and widgets."""

from __future__ import annotations

from tests.support.kernel_client import Run, TestKernel

ECHO = """
import comm
def opened(channel, message):
    channel.on_msg(lambda each: channel.send(
        {"echo": each["content"]["data"]}, buffers=[bytes(each["buffers"][0])[::-1]]))
    channel.send({"opened": message["content"]["data"]})
comm.get_comm_manager().register_target("echo", opened)
"""


def exchange(kernel: TestKernel, msg_type: str, comm_id: str, **content: object) -> Run:
    """Send a message of a comm; what was published while it was handled."""
    message = {"comm_id": comm_id, "data": content.pop("data", {}), **content}
    buffers = [b"\x00abc"]
    return Run(messages=kernel.published_for(kernel.shell(msg_type, message, buffers)))


def test_a_comm_of_the_front_end_is_answered_with_buffers(kernel: TestKernel) -> None:
    kernel.run(ECHO)
    run = exchange(kernel, "comm_open", "c1", target_name="echo", data={"hello": 1})
    assert run.of_type("comm_msg")[0]["data"] == {"opened": {"hello": 1}}
    run = exchange(kernel, "comm_msg", "c1", data={"n": 2})
    answer = next(each for each in run.messages if each["msg_type"] == "comm_msg")
    assert answer["content"]["data"] == {"echo": {"n": 2}}
    assert bytes(answer["buffers"][0]) == b"cba\x00"
    info = kernel.reply(kernel.shell("comm_info_request", {}))["content"]
    assert info["comms"]["c1"] == {"target_name": "echo"}
    other = kernel.reply(kernel.shell("comm_info_request", {"target_name": "no"}))["content"]
    assert other == {"status": "ok", "comms": {}}
    exchange(kernel, "comm_close", "c1")
    assert "c1" not in kernel.reply(kernel.shell("comm_info_request", {}))["content"]["comms"]


def test_a_comm_to_an_unknown_target_is_closed(kernel: TestKernel) -> None:
    run = exchange(kernel, "comm_open", "lost", target_name="nobody")
    assert run.of_type("comm_close")[0]["comm_id"] == "lost"
    exchange(kernel, "comm_msg", "never opened")
    assert kernel.run("1").value == "1"


def test_an_error_in_a_comm_does_not_harm_the_kernel(kernel: TestKernel) -> None:
    code = """
def bad(channel, message):
    channel.on_msg(lambda each: 1 / 0)
comm.get_comm_manager().register_target("bad", bad)
"""
    kernel.run("import comm" + code)
    exchange(kernel, "comm_open", "b1", target_name="bad")
    exchange(kernel, "comm_msg", "b1")
    assert kernel.run("1").value == "1"


def test_output_of_a_comm_belongs_to_its_message(kernel: TestKernel) -> None:
    code = """
def talks(channel, message):
    print("from the comm")
comm.get_comm_manager().register_target("talks", talks)
"""
    kernel.run("import comm" + code)
    assert exchange(kernel, "comm_open", "t1", target_name="talks").out == "from the comm\n"


def test_a_slider_opens_its_model_and_hears_the_front_end(kernel: TestKernel) -> None:
    code = """
import ipywidgets
slider = ipywidgets.IntSlider(value=3)
slider.observe(lambda change: print("moved to", change["new"]), "value")
slider
"""
    run = kernel.run(code)
    models = [each["data"]["state"]["_model_name"] for each in run.of_type("comm_open")]
    assert "IntSliderModel" in models
    view = run.of_type("execute_result")[0]["data"]["application/vnd.jupyter.widget-view+json"]
    data = {"method": "update", "state": {"value": 8}, "buffer_paths": []}
    moved = exchange(kernel, "comm_msg", view["model_id"], data=data)
    assert moved.out == "moved to 8\n"
    assert kernel.run("slider.value").value == "8"


def test_interact_draws_again_inside_its_output(kernel: TestKernel) -> None:
    code = """
import matplotlib.pyplot as plt
from ipywidgets import interact
widget = interact(lambda n=3: plt.plot(range(n)) and print("n is", n))
"""
    run = kernel.run(code)
    assert run.status == "ok"
    slider = kernel.run("widget.widget.children[0].model_id").value.strip("'")
    data = {"method": "update", "state": {"value": 5}, "buffer_paths": []}
    again = exchange(kernel, "comm_msg", slider, data=data)
    assert "n is 5" in again.out
    assert any("image/png" in each["data"] for each in again.of_type("display_data"))
    captured = [
        each["data"]["state"]["msg_id"]
        for each in again.of_type("comm_msg")
        if "msg_id" in each["data"].get("state", {})
    ]
    assert captured[0] and captured[-1] == "", "the output widget did not capture the drawing"


def test_an_output_widget_captures_by_the_cells_id(kernel: TestKernel) -> None:
    cell = kernel.send("out = ipywidgets.Output()\nwith out:\n    print('captured')")
    run = kernel.wait(cell)
    ids = [
        each["data"]["state"]["msg_id"]
        for each in run.of_type("comm_msg")
        if "msg_id" in each["data"].get("state", {})
    ]
    assert ids == [cell, ""]


def test_what_libraries_import_of_ipykernel_is_there(kernel: TestKernel) -> None:
    code = """
from ipykernel.comm import Comm
channel = Comm(target_name="theirs", data={"a": 1})
kernel = get_ipython().kernel
kernel.comm_manager.register_target("x", print)
kernel.session.send(kernel.iopub_socket, "display_data", {"data": {"text/plain": "s"}})
kernel.get_parent()["header"]["msg_type"], kernel.get_parent("shell")["header"]["msg_type"]
"""
    run = kernel.run(code)
    assert run.of_type("comm_open")[0]["data"] == {"a": 1}
    assert run.of_type("display_data")[0]["data"] == {"text/plain": "s"}
    assert run.value == "('execute_request', 'execute_request')"
