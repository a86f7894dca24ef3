"""A notebook in our kernel: its cells, what they show, and Stop."""

from __future__ import annotations

import re
import textwrap
import time

from tests.support import kernel_client
from tests.support.kernel_client import Run, TestKernel

PREAMBLE = """
import os, time, torch, torch.distributed as dist
from serverless_gpu import distributed
def pg():
    if not dist.is_initialized(): dist.init_process_group("gloo")
"""


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


class Notebook:
    """A notebook whose first cell has run."""

    def __init__(self, kernel: TestKernel) -> None:
        self.kernel = kernel
        self.ok(PREAMBLE)

    def run(self, cell: str) -> Run:
        return self.kernel.run(textwrap.dedent(cell).strip("\n"))

    def ok(self, cell: str) -> str:
        """Runs a cell that must succeed; what it printed on stdout, without colours."""
        run = self.run(cell)
        assert run.status == "ok", "\n".join(run.content["traceback"])
        return plain(run.out)

    def error(self, cell: str) -> str:
        """Runs a cell that must fail; the error as shown."""
        run = self.run(cell)
        assert run.status == "error", plain(run.out)
        return self.shown(run)

    @staticmethod
    def shown(run: Run) -> str:
        return plain("\n".join([*run.content["traceback"], run.content["evalue"]]))

    def stop(self, cell: str, at: str, times: int = 1) -> Run:
        """Runs a cell and presses Stop each time that a line with `at` comes."""
        sent = self.kernel.send(textwrap.dedent(cell).strip("\n"))
        run, deadline = Run(), time.monotonic() + kernel_client.PATIENCE
        for message in self.kernel.published(deadline, f"the end of a cell stopped at {at!r}"):
            if message["parent_header"].get("msg_id") != sent:
                continue
            run.messages.append(message)
            if times and at in message["content"].get("text", ""):
                times -= 1
                self.kernel.interrupt()
            if message["content"].get("execution_state") == "idle":
                break
        run.reply = self.kernel.reply(sent)
        return run
