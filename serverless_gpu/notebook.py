"""What a notebook has from the start: the magics, the decorator, and ranks that warm up."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any


def start(shell: Any) -> None:
    """Puts everything in place; the rank processes come up in the background.

    `SERVERLESS_GPU_WARM=0` leaves them out until the first call.
    """
    from . import accelerator, completion, gpu_warm, pool
    from .decorator import distributed
    from .errors import replies
    from .magics import Magics
    from .tracking.settings import mode

    shell.user_ns.setdefault("distributed", distributed)
    # Not the user's own variable: %whos and --push do not list it.
    shell.user_ns_hidden.setdefault("distributed", distributed)
    Magics(shell)
    completion.install(shell)
    replies.show_syntax_errors(shell)
    if hasattr(getattr(shell, "kernel", None), "iopub_socket"):
        replies.install(shell)
    shell.events.register("post_run_cell", _cell_over)
    shell.events.register("pre_run_cell", gpu_warm.on_cell)
    if os.environ.get("SERVERLESS_GPU_WARM", "1") != "0":
        owner = pool.get()
        owner.store_file()
        if mode(None, os.environ) != "off":
            owner.start_tracker()
        _keep_spares(owner, accelerator.warm_ranks)


def _keep_spares(owner: Any, count: Callable[[], int]) -> None:
    """A first look at GPUs takes up to seconds where their driver sleeps between uses (persistence
    mode off), so it does not hold up the notebook's start."""
    if not os.path.exists("/dev/nvidiactl"):
        owner.core.set_spares(count())
        return

    def look() -> None:
        with contextlib.suppress(AttributeError):  # the pool was stopped meanwhile
            owner.core.set_spares(count())

    threading.Thread(target=look, name="serverless-gpu-look", daemon=True).start()


def _cell_over(_: Any) -> None:
    """A cell ends with the links of its runs; what ranks print later is late."""
    from . import pool

    owner = pool.running()
    if owner is not None:
        owner.output.links.wait()
        owner.output.cell_over()


def on_shutdown(restart: bool) -> None:
    """The kernel ends: everything behind it does, too."""
    from . import pool

    owner = pool.running()
    if owner is not None:
        owner.output.farewell()  # first, for the end is bounded
    pool.stop()
