"""Where calls are made from: scripts and their ends, ipykernel, threads, two notebooks at once."""

from __future__ import annotations

import re
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import start_new_kernel

from serverless_gpu import distributed
from tests.support import scripts

QUIET = {"SERVERLESS_GPU_ACCELERATOR": "cpu", "SERVERLESS_GPU_MLFLOW": "off"}

SCRIPT = """
    import os
    from serverless_gpu import distributed
    @distributed(gpus=2)
    def f(x):
        print("from", os.environ["RANK"])
        return x + int(os.environ["RANK"])
"""


def test_a_script_ends_by_itself_and_leaves_nothing(tmp_path: Path) -> None:
    script = scripts.run(SCRIPT + "    print(f.distributed(1))\n", tmp_path, **QUIET)
    assert script.code == 0
    assert sorted(script.lines) == sorted(["[0] from 0", "[1] from 1", "[1, 2]"])


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("import sys; sys.exit(3)", 3),
        ("1 / 0", 1),
        ("os._exit(4)", 4),
        ("import threading; threading.Thread(target=f.distributed, args=(1,)).start()", 0),
    ],
)
def test_however_a_script_ends_nothing_is_left(tmp_path: Path, end: str, code: int) -> None:
    script = scripts.run(SCRIPT + f"    f.distributed(1)\n    {end}\n", tmp_path, **QUIET)
    assert script.code == code


def test_a_script_killed_in_a_call_leaves_nothing(tmp_path: Path) -> None:
    code = """
        import subprocess, time
        from serverless_gpu import distributed
        @distributed(gpus=2)
        def f():
            subprocess.Popen(["sleep", "3600"], start_new_session=True)
            print("ready", flush=True); time.sleep(3600)
        f.distributed()
    """
    with scripts.running(code, tmp_path, **QUIET) as script:
        script.wait_for("ready")
        script.process.send_signal(signal.SIGKILL)


def test_ctrl_c_in_a_script_stops_the_call_and_the_script(tmp_path: Path) -> None:
    code = """
        import time
        from serverless_gpu import distributed
        @distributed(gpus=2)
        def f():
            print("ready", flush=True); time.sleep(3600)
        f.distributed()
    """
    with scripts.running(code, tmp_path, **QUIET) as script:
        script.wait_for("ready")
        script.interrupt()
        script.finish()
    assert script.code != 0
    assert "KeyboardInterrupt" in script.text


def test_classes_of_a_script_are_its_own(tmp_path: Path) -> None:
    code = """
        import dataclasses, serverless_gpu
        from databricks.air import distributed
        @dataclasses.dataclass
        class Config: rate: float = 0.1
        @distributed(gpus=2)
        def f(config):
            assert type(config) is Config
            return dataclasses.replace(config, rate=config.rate * 2)
        if __name__ == "__main__":
            out = f.distributed(Config(0.5))
            assert all(isinstance(one, Config) for one in out)
            print(out == [Config(1.0)] * 2)
    """
    assert scripts.run(code, tmp_path, **QUIET).lines == ["True"]


def test_two_notebooks_at_once_do_not_meet(tmp_path: Path) -> None:
    code = """
        import sys, torch, torch.distributed as dist
        from serverless_gpu import distributed
        @distributed(gpus=3)
        def f(tag):
            dist.init_process_group("gloo")
            x = torch.full((1,), float(tag)); dist.all_reduce(x); return x.item()
        tag = int(open("tag").read())
        for i in range(6):
            assert f.distributed(tag + i) == [3.0 * (tag + i)] * 3
        print("right")
    """
    folders = [tmp_path / "one", tmp_path / "two"]
    for number, folder in enumerate(folders):
        folder.mkdir()
        (folder / "tag").write_text(str(100 * number))
    with (
        scripts.running(code, folders[0], **QUIET) as one,
        scripts.running(code, folders[1], **QUIET) as two,
    ):
        assert one.finish() == two.finish() == "right"


def test_two_threads_take_turns() -> None:
    @distributed(gpus=2)
    def total(tag: int) -> float:
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        x = torch.full((1,), float(tag))
        dist.all_reduce(x)
        return float(x)

    out: dict[int, Any] = {}
    threads = [
        threading.Thread(target=lambda tag=tag: out.update({tag: total.distributed(tag)}))
        for tag in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert out == {tag: [2.0 * tag] * 2 for tag in range(4)}


def test_a_forked_notebook_process_has_a_pool_of_its_own(tmp_path: Path) -> None:
    code = """
        import os
        from serverless_gpu import distributed
        @distributed(gpus=1)
        def f(): return os.getpid()
        first = f.distributed()
        pid = os.fork()
        if pid == 0:
            print("child", f.distributed() != first, flush=True)
            from serverless_gpu import pool; pool.stop()
            os._exit(0)
        os.waitpid(pid, 0)
        print("parent", f.distributed() != first)
    """
    assert scripts.run(code, tmp_path, **QUIET).lines == ["child True", "parent True"]


class IPyKernel:
    """A real ipykernel with our extension."""

    def __init__(self) -> None:
        self.manager, self.client = start_new_kernel(kernel_name="python3")

    def run(self, code: str, stop_at: str = "") -> dict[str, Any]:
        """The cell's text per stream, its messages and its reply."""
        sent = self.client.execute(code)
        messages: list[dict[str, Any]] = []
        while True:
            message = self.client.get_iopub_msg(timeout=scripts.PATIENCE)
            if message["parent_header"].get("msg_id") != sent:
                continue
            messages.append(message)
            content = message["content"]
            if stop_at and stop_at in content.get("text", ""):
                self.manager.interrupt_kernel()
                stop_at = ""
            if content.get("execution_state") == "idle":
                break
        while (reply := self.client.get_shell_msg(timeout=60))["parent_header"]["msg_id"] != sent:
            pass
        text = "".join(m["content"].get("text", "") for m in messages)
        text = re.sub(r"\x1b\[[0-9;]*m", "", text)
        return {"text": text, "messages": messages, "reply": reply["content"]}

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


def test_ipykernel_has_it_all_after_load_ext(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(scripts.PACKAGE_ROOT))
    kernel = IPyKernel()
    try:
        assert kernel.run("%load_ext serverless_gpu")["reply"]["status"] == "ok"
        define = (
            "import os, time\n@distributed(gpus=2)\ndef f(n):\n"
            "    print('ready', os.environ['RANK'])\n"
        )
        call = kernel.run(
            define + "    time.sleep(n)\n    return n\nassert f.distributed(0) == [0, 0]"
        )
        assert call["reply"]["status"] == "ok", call["reply"]
        assert "[0] ready 0\n" in call["text"] and "[1] ready 1\n" in call["text"]
        kinds = [message["msg_type"] for message in call["messages"]]
        assert kinds.count("display_data") == 1 and "update_display_data" in kinds
        cell = kernel.run(
            "%%distributed --gpus 2\nimport os\nprint('cell', os.environ['RANK'])\n6 * 7"
        )
        assert "[1] cell 1\n" in cell["text"]
        shown = [
            m["content"]["data"]["text/plain"] for m in cell["messages"] if "data" in m["content"]
        ]
        assert sum("42" in text for text in shown) == 1
        stopped = kernel.run("f.distributed(3600)", stop_at="ready 1")
        assert stopped["reply"]["ename"] == "KeyboardInterrupt"
        assert kernel.run("assert f.distributed(0) == [0, 0]")["reply"]["status"] == "ok"
        failed = kernel.run("%%distributed\nraise KeyError(os.environ['RANK'])")
        told = {"ename": failed["reply"]["ename"], "evalue": failed["reply"]["evalue"]}
        assert told["ename"] == "KeyError" and told["evalue"] in ("'0'", "'1'")
        [shown] = [m["content"] for m in failed["messages"] if m["msg_type"] == "error"]
        assert {name: shown[name] for name in told} == told
        assert "raise KeyError" in "".join(shown["traceback"])
        plain = kernel.run("1 / 0")["reply"]
        assert (plain["ename"], plain["evalue"]) == ("ZeroDivisionError", "division by zero")
    finally:
        kernel.close()


def test_a_notebook_without_torch_or_mlflow_imports_neither(tmp_path: Path) -> None:
    code = """
        import sys
        from serverless_gpu import distributed
        @distributed(gpus=1)
        def f(): return 1
        f.distributed()
        print([name for name in ("torch", "mlflow", "IPython") if name in sys.modules])
    """
    env = {
        **QUIET,
        "SERVERLESS_GPU_MLFLOW": "always",
        "MLFLOW_TRACKING_URI": str(tmp_path / "runs"),
    }
    script = scripts.run(code, tmp_path, **env)
    assert script.lines[-1] == "[]"
