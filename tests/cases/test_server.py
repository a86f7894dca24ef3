"""Behind a Jupyter server, which drops all output of a kernel that sends too much at once."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.kernel_client import NAME, PATIENCE
from tests.support.notebook import plain

websocket = pytest.importorskip("websocket")
pytest.importorskip("jupyter_server")


class Server:
    """A server on loopback with one kernel, and a front end's channel to it."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        options = {"port": port, "token": "", "password": "", "root_dir": folder}
        options |= {"open_browser": False, "disable_check_xsrf": True}
        command = [sys.executable, "-m", "jupyter_server", "--allow-root"]
        command += [f"--ServerApp.{name}={value}" for name, value in options.items()]
        env = {**os.environ, "JUPYTER_CONFIG_DIR": str(folder), "JUPYTER_RUNTIME_DIR": str(folder)}
        env["SERVERLESS_GPU_OUTPUT_MB"] = "64"  # only the pace is to hold text back
        self._log = folder / "server.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        self._address = f"127.0.0.1:{port}"

    def connect(self) -> None:
        notebook = {"path": "flood.ipynb", "name": "flood", "type": "notebook"}
        body = json.dumps({**notebook, "kernel": {"name": NAME}}).encode()
        kernel = json.load(self._ask("/api/sessions", body))["kernel"]
        self._socket = websocket.create_connection(
            f"ws://{self._address}/api/kernels/{kernel['id']}/channels", timeout=PATIENCE
        )

    def _ask(self, path: str, body: bytes) -> Any:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return urllib.request.urlopen(f"http://{self._address}{path}", body, PATIENCE)
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"no server: {self._log.read_text()[-2000:]}") from None
                time.sleep(0.05)  # it has no other way to say that it is up

    def run(self, code: str) -> str:
        """The text that a front end is given of a cell."""
        name = uuid.uuid4().hex
        header = {"msg_id": name, "msg_type": "execute_request", "session": "test"}
        header |= {"username": "", "version": "5.3", "date": ""}
        content = {"code": code, "silent": False, "store_history": True}
        content |= {"user_expressions": {}, "allow_stdin": False, "stop_on_error": True}
        request = {"header": header, "parent_header": {}, "metadata": {}, "content": content}
        self._socket.send(json.dumps({**request, "channel": "shell", "buffers": []}))
        text = ""
        while True:
            message = json.loads(self._socket.recv())
            if message["parent_header"].get("msg_id") != name:
                continue
            text += message["content"].get("text", "")
            if message["content"].get("execution_state") == "idle":
                return plain(text)

    def close(self) -> None:
        with contextlib.suppress(AttributeError):
            self._socket.close()
        self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(PATIENCE)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    server = Server(tmp_path)
    try:
        server.connect()
        yield server
    finally:
        server.close()


def test_a_flood_is_paced_so_that_the_server_drops_nothing(server: Server) -> None:
    lines = 60_000
    text = server.run(
        "%%distributed --gpus 2 --mlflow off\nimport os\n"
        f"for i in range({lines}): print('rank', os.environ['RANK'], 'line', i)"
    )
    assert "rate exceeded" not in text
    shown = len(re.findall(r"^\[\d\] rank \d line \d+$", text, re.MULTILINE))
    hidden = sum(
        int(n.replace(",", "")) for n in re.findall(r"^… ([\d,]+) lines not shown", text, re.M)
    )
    assert hidden > 0 and shown + hidden == 2 * lines
    assert "rank 1 line 59999\n" in text or "rank 0 line 59999\n" in text
    assert server.run("print('and what comes next is there')") == "and what comes next is there\n"
