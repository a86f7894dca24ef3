"""Rich output, and what front ends do besides showing it."""

from __future__ import annotations

from tests.support.kernel_client import TestKernel


def test_a_display_with_an_id_is_updated(kernel: TestKernel) -> None:
    run = kernel.run("handle = display('one', display_id='mine'); handle.update('two')")
    shown, updated = run.of_type("display_data"), run.of_type("update_display_data")
    assert shown[0]["transient"] == updated[0]["transient"] == {"display_id": "mine"}
    assert updated[0]["data"]["text/plain"] == "'two'"


def test_a_display_of_an_earlier_cell_is_updated(kernel: TestKernel) -> None:
    kernel.run("handle = display('one', display_id=True)")
    assert len(kernel.run("handle.update('two')").of_type("update_display_data")) == 1


def test_clear_output_is_passed_on(kernel: TestKernel) -> None:
    run = kernel.run("from IPython.display import clear_output; clear_output(wait=True)")
    assert run.of_type("clear_output") == [{"wait": True}]


def test_rich_values_keep_all_their_forms(kernel: TestKernel) -> None:
    run = kernel.run("import pandas; pandas.DataFrame({'a': [1, 2]})")
    data = run.of_type("execute_result")[0]["data"]
    assert "<table" in data["text/html"] and "0  1" in data["text/plain"]


def test_values_that_json_does_not_know_are_shown(kernel: TestKernel) -> None:
    code = """
import datetime, decimal, numpy
loop = []
bundle = {"application/json": {1: numpy.int64(3), "f": numpy.float32(0.5), "a": numpy.arange(2),
    "n": float("nan"), "d": datetime.date(2020, 1, 2), "b": b"\\x00\\x01", "big": 2**80,
    "s": {7}, "o": object, "x": decimal.Decimal("1.5")}}
display(bundle, raw=True)
"""
    shown = kernel.run(code).of_type("display_data")[0]["data"]["application/json"]
    assert shown == {
        "1": 3,
        "f": 0.5,
        "a": [0, 1],
        "n": None,
        "d": "2020-01-02",
        "b": "AAE=",
        "big": 2.0**80,
        "s": [7],
        "o": "<class 'object'>",
        "x": 1.5,
    }


def test_a_bundle_that_holds_itself_is_an_error(kernel: TestKernel) -> None:
    run = kernel.run("me = {}; me['me'] = me; display({'application/json': me}, raw=True)")
    assert run.content["ename"] == "RecursionError"


def test_a_figure_is_shown_at_the_end_of_its_cell(kernel: TestKernel) -> None:
    first = kernel.run("import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.title('t');")
    assert first.status == "ok"
    assert ["image/png" in each["data"] for each in first.of_type("display_data")] == [True]
    assert kernel.run("1").of_type("display_data") == []


def test_show_shows_a_figure_in_its_place(kernel: TestKernel) -> None:
    run = kernel.run("print('a'); plt.plot([1]); plt.show(); print('b')")
    kinds = [each["msg_type"] for each in run.messages if each["msg_type"] != "status"]
    assert kinds == ["execute_input", "stream", "display_data", "stream"]


def test_matplotlib_magic_and_backend(kernel: TestKernel) -> None:
    assert kernel.run("%matplotlib inline").status == "ok"
    assert "inline" in kernel.run("import matplotlib; matplotlib.get_backend()").value
    refused = kernel.run("%gui qt")
    assert "%matplotlib inline" in refused.text("stderr") + refused.out + str(refused.content)


def test_help_comes_as_a_page(kernel: TestKernel) -> None:
    payload = kernel.run("len?").content["payload"]
    assert payload[0]["source"] == "page"
    assert "Return the number" in payload[0]["data"]["text/plain"]


def test_load_offers_the_next_cell(kernel: TestKernel) -> None:
    run = kernel.run("get_ipython().set_next_input('1 + 1')")
    payload = {"source": "set_next_input", "text": "1 + 1", "replace": False}
    assert run.content["payload"] == [payload]


def test_libraries_take_the_kernel_for_a_notebook(kernel: TestKernel) -> None:
    code = """
from tqdm.auto import tqdm
from tqdm.notebook import tqdm as notebook
from pandas.io.formats.console import in_ipython_frontend
issubclass(tqdm, notebook), in_ipython_frontend()
"""
    assert kernel.run(code).value == "(True, True)"


def test_the_interface_for_the_rest_of_the_package(kernel: TestKernel) -> None:
    code = """
import os, serverless_gpu.kernel as ours
parent = ours.current_parent()
print("text before")
ours.publish("display_data", {"data": {"text/plain": "shown"}, "metadata": {}}, parent)
ours.flush()
os.fstat(ours.original_stderr_fd())
ours.in_kernel(), parent["msg_type"], parent["msg_id"]
"""
    cell = kernel.send(code)
    run = kernel.wait(cell)
    assert run.value == f"(True, 'execute_request', '{cell}')"
    kinds = [each["msg_type"] for each in run.messages]
    assert kinds.index("stream") < kinds.index("display_data")


def test_outside_the_kernel_the_interface_does_nothing() -> None:
    from serverless_gpu import kernel as ours

    assert not ours.in_kernel() and ours.current_parent() is None
    ours.publish("stream", {"name": "stdout", "text": "x"}, None)
    ours.flush()
    assert ours.original_stderr_fd() == 2
