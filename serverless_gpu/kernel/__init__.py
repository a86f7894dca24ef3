"""The Python half of the Serverless GPU kernel.

This module is what the rest of the package uses of it. It imports nothing heavy, and outside the
kernel its functions do nothing: `in_kernel()` says which it is.

Threads: every function may be called from any Python thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from serverless_gpu.kernel import cells

__all__ = ["current_parent", "flush", "in_kernel", "original_stderr_fd", "publish", "publish_text"]


def in_kernel() -> bool:
    """Whether this process is our kernel (a forked child of it is not)."""
    return cells.running_kernel() is not None


def current_parent() -> dict[str, Any] | None:
    """The header of the request whose output this thread writes, as Jupyter sent it.

    In the main thread that is the running cell, or the last one; in a thread the cell that started
    it; in an asyncio task the cell that made it. None outside the kernel and before the first cell.
    """
    cell = cells.current()
    return dict(cell.header) if cell is not None and in_kernel() else None


def publish(
    msg_type: str,
    content: Mapping[str, Any],
    parent: Mapping[str, Any] | None,
    metadata: Mapping[str, Any] | None = None,
    buffers: Sequence[bytes] = (),
) -> None:
    """Send a message to all front ends, as output of the cell with header `parent`.

    Text that was written before comes before it, unless `msg_type` is "stream". Blocks for up to 2
    seconds if a front end does not keep up. Does nothing outside the kernel.

    Raises whatever the objects in `content` raise while they are converted to JSON.
    """
    kernel = cells.running_kernel()
    if kernel is not None:
        kernel.publish(msg_type, content, parent, metadata, buffers)


def publish_text(fd: int, text: bytes, parent: Mapping[str, Any] | None) -> None:
    """Send UTF-8 text at once, as output to descriptor `fd` (1 or 2) of the cell with header
    `parent`. Blocks as `publish` does. Does nothing outside the kernel."""
    kernel = cells.running_kernel()
    if kernel is not None:
        kernel.publish_text(fd, text, parent)


def flush() -> None:
    """Send all text that was written to stdout and stderr so far."""
    kernel = cells.running_kernel()
    if kernel is not None:
        kernel.flush()


def original_stderr_fd() -> int:
    """The file descriptor that was 2 when the kernel started: its log. 2 outside the kernel."""
    kernel = cells.running_kernel()
    return kernel.original_stderr_fd() if kernel is not None else 2
