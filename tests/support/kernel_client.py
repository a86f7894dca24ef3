"""Runs the kernel of this tree for tests: bounded waits, and nothing left behind."""

from __future__ import annotations

import json
import os
import queue
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager

import serverless_gpu

NAME = "serverless-gpu"
PATIENCE = 60.0  # seconds; what takes longer, on a loaded machine too, is a failure
PACKAGE_ROOT = Path(serverless_gpu.__file__).resolve().parent.parent
SPEC = PACKAGE_ROOT / "share" / "jupyter" / "kernels" / NAME

Message = dict[str, Any]


def install_spec(prefix: Path) -> Path:
    """Write the kernelspec for this interpreter under `prefix`; the folder for JUPYTER_PATH."""
    spec = json.loads((SPEC / "kernel.json").read_text())
    spec["argv"][0] = sys.executable
    target = prefix / "kernels" / NAME
    target.mkdir(parents=True, exist_ok=True)
    (target / "kernel.json").write_text(json.dumps(spec))
    return prefix


def kernel_env(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a kernel under test: the package found, no ranks warmed up."""
    path = os.pathsep.join(filter(None, [str(PACKAGE_ROOT), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": path, "SERVERLESS_GPU_WARM": "0"}
    env.pop("MPLBACKEND", None)
    return {**env, **(extra or {})}


@dataclass
class Run:
    """What one cell did: its reply, and the messages it published, in order."""

    reply: Message = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)

    @property
    def content(self) -> Message:
        content: Message = self.reply["content"]
        return content

    @property
    def status(self) -> str:
        return str(self.content["status"])

    def of_type(self, msg_type: str) -> list[Message]:
        """Contents of the messages of a type."""
        return [each["content"] for each in self.messages if each["msg_type"] == msg_type]

    def text(self, stream: str) -> str:
        """All that was written to "stdout" or "stderr"."""
        return "".join(each["text"] for each in self.of_type("stream") if each["name"] == stream)

    @property
    def out(self) -> str:
        return self.text("stdout")

    @property
    def value(self) -> Any:
        """text/plain of the cell's value; None if it had none."""
        results = self.of_type("execute_result")
        return results[0]["data"]["text/plain"] if results else None


class TestKernel:
    """A kernel process and one client. Use `running()`, which ends both."""

    __test__ = False

    def __init__(self, manager: KernelManager) -> None:
        self.manager = manager
        client = manager.client()
        assert isinstance(client, BlockingKernelClient)
        self.client = client
        self.client.start_channels()
        self.client.wait_for_ready(timeout=PATIENCE)

    @property
    def pid(self) -> int:
        return int(self.manager.provisioner.pid)

    def send(self, code: str, **options: Any) -> str:
        """Queue a cell; its msg_id."""
        return str(self.client.execute(code, **options))

    def run(self, code: str, timeout: float = PATIENCE, **options: Any) -> Run:
        """Run a cell to its end."""
        return self.wait(self.send(code, **options), timeout)

    def wait(self, msg_id: str, timeout: float = PATIENCE) -> Run:
        """The end of a cell that was sent; messages of other cells are skipped."""
        deadline = time.monotonic() + timeout
        run = Run(messages=self.published_for(msg_id, timeout))
        run.reply = self.reply(msg_id, deadline - time.monotonic())
        return run

    def reply(self, msg_id: str, timeout: float = PATIENCE) -> Message:
        """The reply on the shell channel to `msg_id`; earlier ones are skipped."""
        deadline = time.monotonic() + timeout
        while True:
            reply = self.client.get_shell_msg(timeout=max(0.1, deadline - time.monotonic()))
            if reply["parent_header"].get("msg_id") == msg_id:
                return dict(reply)

    def control(self, msg_type: str, content: Message | None = None) -> Message:
        """Send a request on the control channel; its reply."""
        message = self.client.session.msg(msg_type, content or {})
        self.client.control_channel.send(message)
        while True:
            reply = self.client.get_control_msg(timeout=PATIENCE)
            if reply["parent_header"].get("msg_id") == message["header"]["msg_id"]:
                return dict(reply)

    def shell(self, msg_type: str, content: Message, buffers: list[bytes] | None = None) -> str:
        """Send any message on the shell channel; its msg_id."""
        message = self.client.session.msg(msg_type, content)
        self.client.session.send(self.client.shell_channel.socket, message, buffers=buffers)
        return str(message["header"]["msg_id"])

    def published(self, deadline: float, what: str) -> Iterator[Message]:
        """Messages of iopub as they come; TimeoutError that names `what` at the deadline."""
        while True:
            try:
                left = deadline - time.monotonic()
                yield dict(self.client.get_iopub_msg(timeout=max(0.01, left)))
            except queue.Empty:
                if time.monotonic() >= deadline:
                    raise TimeoutError(f"waited in vain for {what}") from None

    def published_for(self, msg_id: str, timeout: float = PATIENCE) -> list[Message]:
        """What was published while request `msg_id` was handled, to its idle status."""
        messages = []
        for message in self.published(time.monotonic() + timeout, f"the end of {msg_id}"):
            if message["parent_header"].get("msg_id") == msg_id:
                messages.append(message)
                if message["content"].get("execution_state") == "idle":
                    break
        return messages

    def wait_for_text(self, text: str, timeout: float = PATIENCE) -> None:
        """Until a cell has written `text` (in one message)."""
        for message in self.published(time.monotonic() + timeout, repr(text)):
            if text in message["content"].get("text", ""):
                return

    def read_output(self, msg_id: str, timeout: float = PATIENCE) -> int:
        """Read what a cell wrote up to its end, keeping nothing; how many characters it was."""
        size = 0
        for message in self.published(time.monotonic() + timeout, f"the end of cell {msg_id}"):
            if message["parent_header"].get("msg_id") == msg_id:
                size += len(message["content"].get("text", ""))
                if message["content"].get("execution_state") == "idle":
                    break
        return size

    def interrupt(self) -> None:
        """As Stop in a front end."""
        self.manager.interrupt_kernel()

    def answers(self) -> bool:
        """Whether it is alive and runs a cell at once, more or less."""
        try:
            return bool(self.manager.is_alive()) and self.run("0", timeout=20).status == "ok"
        except (TimeoutError, queue.Empty):
            return False


@contextmanager
def running(
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    manager_options: Mapping[str, Any] | None = None,
    **start: Any,
) -> Iterator[TestKernel]:
    """A fresh kernel; it is gone at the end of the block, however that is left."""
    with tempfile.TemporaryDirectory() as folder:
        install_spec(Path(folder))
        specs = KernelSpecManager(kernel_dirs=[str(Path(folder) / "kernels")])
        options = dict(manager_options or {})
        manager = KernelManager(kernel_name=NAME, kernel_spec_manager=specs, **options)
        own = {"IPYTHONDIR": str(Path(folder) / "ipython"), **(env or {})}
        manager.start_kernel(env=kernel_env(own), cwd=str(cwd or folder), **start)
        kernel = None
        try:
            kernel = TestKernel(manager)
            yield kernel
        finally:
            if kernel is not None:
                kernel.client.stop_channels()
            manager.shutdown_kernel(now=True)
            manager.cleanup_resources()


def gone_within(pid: int, timeout: float = PATIENCE) -> bool:
    """Whether process `pid` (not our child) ends in time."""
    import select

    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([fd], [], [], timeout)[0])
    finally:
        os.close(fd)
