"""Comms: messages between widgets in the front end and their objects in the kernel.

The package `comm` keeps the comms; this module gives it a way to send, and answers for the parts of
ipykernel that widget libraries import.

Threads: messages come in on the main thread; comms may send from any.
"""

from __future__ import annotations

import sys
import types
from typing import Any

import comm
from comm.base_comm import BaseComm, CommManager

from serverless_gpu.kernel import cells
from serverless_gpu.kernel.shell import ZMQInteractiveShell, send


class Comm(BaseComm):
    """A comm that sends on the kernel's iopub channel, as output of the current cell."""

    def publish_msg(
        self,
        msg_type: str,
        data: dict[str, Any] | None = None,
        metadata: dict[str, Any] | None = None,
        buffers: list[bytes] | None = None,
        **keys: Any,
    ) -> None:
        content = {"data": data or {}, "comm_id": self.comm_id, **keys}
        send(msg_type, content, metadata=metadata or {}, buffers=tuple(buffers or ()))


class _Session:
    """What is used of `kernel.session` outside ipykernel."""

    def __init__(self, session: str) -> None:
        self.session = session
        self.username = "kernel"

    def send(
        self,
        _stream: Any,
        msg_or_type: str | dict[str, Any],
        content: dict[str, Any] | None = None,
        parent: dict[str, Any] | None = None,
        ident: Any = None,
        buffers: list[bytes] | None = None,
        metadata: dict[str, Any] | None = None,
        **_others: Any,
    ) -> None:
        """Publish on iopub, whatever the stream: the only one that libraries send on."""
        message: dict[str, Any] = {"content": content or {}, "metadata": metadata or {}}
        if isinstance(msg_or_type, dict):
            message.update(msg_or_type)
            msg_type, parent = message["msg_type"], message.get("parent_header") or parent
        else:
            msg_type = msg_or_type
        cell, kernel = cells.current(), cells.running_kernel()
        header = (parent or {}).get("header", parent) or (cell.header if cell else None)
        if kernel is not None:
            kernel.publish(
                msg_type,
                message["content"],
                header,
                message["metadata"],
                tuple(buffers or ()),
            )


class KernelObject:
    """What libraries find at `get_ipython().kernel`; a small part of ipykernel's Kernel."""

    implementation = "serverless-gpu"
    iopub_socket = None

    def __init__(self, shell: Any, manager: CommManager, session: str) -> None:
        self.shell = shell
        self.comm_manager = manager
        self.session = _Session(session)

    def get_parent(self, _channel: str | None = None) -> dict[str, Any]:
        """The message whose output is written: its header, at "header"."""
        cell = cells.current()
        return {"header": dict(cell.header) if cell else {}}

    def set_parent(self, _ident: Any, parent: dict[str, Any], _channel: str = "shell") -> None:
        """From now on, output of the main thread belongs to `parent`."""
        from serverless_gpu._kernel import Parent

        header = parent.get("header", parent)
        cells.begin(cells.Cell(header, Parent(header)))

    @property
    def _parent_header(self) -> dict[str, Any]:
        return self.get_parent()


def install() -> CommManager:
    """Make the package `comm`, and what imports ipykernel's, use our comms."""
    manager = CommManager()
    comm.create_comm = Comm
    comm.get_comm_manager = lambda: manager
    for name in ("ipykernel.comm", "ipykernel.comm.comm", "ipykernel.comm.manager"):
        _stand_in(name, Comm=Comm, BaseComm=BaseComm, CommManager=CommManager)
    # tqdm takes a process without this module for a terminal.
    _stand_in("ipykernel.zmqshell", ZMQInteractiveShell=ZMQInteractiveShell)
    return manager


def _stand_in(name: str, **content: Any) -> None:
    """Put a module of ours where libraries look for ipykernel's, be that installed or not."""
    module = types.ModuleType(name, "A part of ipykernel, as the Serverless GPU kernel has it.")
    vars(module).update(content)
    sys.modules[name] = module


def info(manager: CommManager, target_name: str | None) -> dict[str, Any]:
    """Content of the comm_info_reply; all targets if `target_name` is empty."""
    return {
        "status": "ok",
        "comms": {
            comm_id: {"target_name": each.target_name}
            for comm_id, each in manager.comms.items()
            if not target_name or each.target_name == target_name
        },
    }
