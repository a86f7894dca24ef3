"""What a notebook has from the start: the magics, the decorator, and ranks that warm up."""

from __future__ import annotations

import os
from typing import Any


def start(shell: Any) -> None:
    """Puts everything in place; the rank processes come up in the background.

    `SERVERLESS_GPU_WARM=0` leaves them out until the first call.
    """
    from . import completion, gpu_warm, pool
    from .decorator import distributed, here_default
    from .magics import Magics
    from .tracking.settings import mode

    shell.user_ns.setdefault("distributed", distributed)
    # Not the user's own variable: %whos and --push do not list it.
    shell.user_ns_hidden.setdefault("distributed", distributed)
    Magics(shell)
    completion.install(shell)
    shell.events.register("post_run_cell", _await_links)
    shell.events.register("pre_run_cell", gpu_warm.on_cell)
    if os.environ.get("SERVERLESS_GPU_WARM", "1") != "0":
        owner = pool.get()
        owner.store_file()
        if mode(None, os.environ) != "off":
            owner.start_tracker()
        owner.core.set_spares(here_default())


def _await_links(_: Any) -> None:
    """A cell ends with the links of its runs."""
    from . import pool

    owner = pool.running()
    if owner is not None:
        owner.output.links.wait()


def on_shutdown(restart: bool) -> None:
    """The kernel ends: everything behind it does, too."""
    from . import pool

    pool.stop()
