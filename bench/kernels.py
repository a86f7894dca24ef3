"""Kernels under measurement, through jupyter_client: ours, and ipykernel."""

from __future__ import annotations

import ast
import json
import os
import queue
import signal
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager
from jupyter_client.provisioning.local_provisioner import LocalProvisioner
from processes import MARK, Watch, descendants, wait_until_quiet

OURS, IPYKERNEL = "serverless-gpu", "python3"
PATIENCE_S = 120.0
PROGRAMS = Path(__file__).resolve().parent / "programs"
#: Pause between two looks whether the kernel listens; zmq itself would try every 100 ms.
_LOOK_S = 0.001
_OUTPUT_LOOK_S = 0.05
#: Settings of whoever runs the bench would change what is measured.
_DROPPED = ("MLFLOW_", "SERVERLESS_GPU_", "OMP_NUM_THREADS", "MPLBACKEND", "CI")


class BenchError(RuntimeError):
    """A cell failed, or did not answer: the row has no figure."""


@dataclass(frozen=True)
class Ran:
    """One cell, seen from the client: seconds from its sending to its reply and idle."""

    seconds: float
    texts: list[tuple[float, str]]  # stdout: time.perf_counter() when it came, text
    displays: dict[str, str]  # the last plain text of each display, by its id
    answer: Any  # of the expression asked for


def program(name: str) -> str:
    """The text of a file in programs/, which is run as a cell."""
    return (PROGRAMS / name).read_text()


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of all that is measured: CPU ranks, defaults for the rest."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_DROPPED)}
    return {**kept, "SERVERLESS_GPU_ACCELERATOR": "cpu", **(extra or {})}


class Kernel:
    """A kernel process in a folder of its own, and one client. A context manager: at its end the
    kernel and everything below it is gone."""

    def __init__(self, name: str, env: Mapping[str, str] | None = None) -> None:
        self._temporary = tempfile.TemporaryDirectory(
            prefix="sgpu-bench-", ignore_cleanup_errors=True
        )
        self.folder = Path(self._temporary.name)
        self.mark = uuid.uuid4().hex
        own = {"IPYTHONDIR": str(self.folder / "ipython"), MARK: self.mark, **(env or {})}
        self._manager = KernelManager(kernel_name=name)
        #: time.perf_counter() of the order to start.
        self.started = time.perf_counter()
        self._manager.start_kernel(env=environment(own), cwd=str(self.folder))
        try:
            self._client = self._connect()
            self._client.kernel_info()
            self._client.get_shell_msg(timeout=PATIENCE_S)
        except BaseException:
            self.close()
            raise
        #: Seconds from the order to start to the answer to kernel_info.
        self.start_s = time.perf_counter() - self.started
        self._wait_for_output()

    def _wait_for_output(self) -> None:
        """Until messages of the output channel arrive: it connects later than the other one, and
        what is published before that is lost."""
        for _ in range(int(PATIENCE_S / _OUTPUT_LOOK_S)):
            self._client.kernel_info()
            try:
                self._client.get_iopub_msg(timeout=_OUTPUT_LOOK_S)
                return
            except queue.Empty:
                continue
        self.close()
        raise BenchError(f"no output of the kernel within {PATIENCE_S:g} s")

    def _connect(self) -> BlockingKernelClient:
        address = (self._manager.ip, self._manager.shell_port)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(address) == 0:
                    break
            if not self._manager.is_alive():
                raise BenchError("the kernel ended before it listened")
            if time.monotonic() > deadline:
                raise BenchError(f"the kernel did not listen within {PATIENCE_S:g} s")
            time.sleep(_LOOK_S)
        client = self._manager.client()
        assert isinstance(client, BlockingKernelClient)
        client.start_channels()
        return client

    def __enter__(self) -> Kernel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        assert isinstance(self._manager.provisioner, LocalProvisioner)
        pid = self._manager.provisioner.pid
        assert pid is not None
        return pid

    def below(self) -> list[int]:
        return descendants(self.pid)

    def run(
        self,
        code: str,
        answer: str | None = None,
        seen: Callable[[str], bool] | None = None,
        timeout_s: float = PATIENCE_S,
    ) -> Ran:
        """Runs a cell to its end. `answer` is an expression, evaluated after it, whose value JSON
        can carry. With `seen` it returns as soon as that is true of a text of stdout.

        Raises BenchError if the cell fails, or does not end within `timeout_s`.
        """
        wanted = {"answer": f"__import__('json').dumps({answer})"} if answer else {}
        texts: list[tuple[float, str]] = []
        displays: dict[str, str] = {}
        deadline = time.monotonic() + timeout_s
        sent = time.perf_counter()
        message = self._client.execute(code, user_expressions=wanted)
        try:
            while True:
                got = self._client.get_iopub_msg(timeout=max(0.01, deadline - time.monotonic()))
                if got["parent_header"].get("msg_id") != message:
                    continue
                content = got["content"]
                if got["msg_type"] == "stream" and content["name"] == "stdout":
                    texts.append((time.perf_counter(), content["text"]))
                    if seen is not None and seen(content["text"]):
                        return Ran(time.perf_counter() - sent, texts, displays, None)
                if got["msg_type"] in ("display_data", "update_display_data"):
                    display_id = content["transient"].get("display_id", got["header"]["msg_id"])
                    displays[display_id] = content["data"].get("text/plain", "")
                if content.get("execution_state") == "idle":
                    break
            reply = self._reply(message, deadline)
        except queue.Empty:
            raise BenchError(f"no end of a cell within {timeout_s:g} s") from None
        seconds = time.perf_counter() - sent
        return Ran(seconds, texts, displays, _answer(reply["content"], answer))

    def _reply(self, message: str, deadline: float) -> dict[str, Any]:
        while True:
            reply = self._client.get_shell_msg(timeout=max(0.01, deadline - time.monotonic()))
            if reply["parent_header"].get("msg_id") == message:
                return dict(reply)

    def value(self, expression: str, timeout_s: float = PATIENCE_S) -> Any:
        """What an expression comes to in the kernel."""
        return self.run(f"bench_value = {expression}", "bench_value", timeout_s=timeout_s).answer

    def rest(self) -> None:
        """Waits until nothing runs in or below the kernel."""
        wait_until_quiet([self.pid, *self.below()])

    def kill(self) -> None:
        """SIGKILL to the kernel alone, as by the system out of memory."""
        os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        watch = Watch(self.below()) if self._manager.is_alive() else Watch([])
        if hasattr(self, "_client"):
            self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)
        self._manager.cleanup_resources()
        # Rivals leave processes behind; the next row must not pay for them.
        watch.ends(limit_s=3.0)
        watch.kill()
        watch.close()
        self._temporary.cleanup()


def _answer(content: dict[str, Any], asked: str | None) -> Any:
    if content["status"] != "ok":
        text = f"{content.get('ename')}: {content.get('evalue')}"
        raise BenchError(text.strip().splitlines()[0])
    if asked is None:
        return None
    answer = content["user_expressions"]["answer"]
    if answer["status"] != "ok":
        raise BenchError(f"{asked}: {answer.get('ename')}: {answer.get('evalue')}")
    return json.loads(ast.literal_eval(answer["data"]["text/plain"]))
