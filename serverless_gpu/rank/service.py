"""Helper processes of the pool that are no ranks: the rendezvous and the tracker."""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import signal
import sys
import threading
import time
from typing import Any, NoReturn

_FOLLOW_LIMIT = 5.0  # seconds until the guard must have taken the place of the fork server's helper


def main(child: dict[str, Any], guard: int) -> NoReturn:
    """Runs `module:function` with the config, and ends with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    module, _, function = child["service"].partition(":")
    config = dict(child["config"] or {})
    if not config.pop("outlives_guard", False):
        threading.Thread(target=_die_with, args=(guard,), daemon=True).start()
    code = 0
    try:
        getattr(importlib.import_module(module), function)(config)
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _die_with(guard: int) -> None:
    # The parent is the fork server's helper for a moment; then it is the guard.
    limit = time.monotonic() + _FOLLOW_LIMIT
    while os.getppid() != guard and time.monotonic() < limit:
        time.sleep(0.005)
    with contextlib.suppress(ProcessLookupError):
        alive = select.poll()
        alive.register(os.pidfd_open(guard), select.POLLIN)
        if os.getppid() == guard:  # else the number may be another's by now
            alive.poll()
    os._exit(0)
