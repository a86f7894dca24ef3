"""Runs a function call in a rank."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from .. import serialize
from . import cells, display

_installed = False


def _lend_session_names(function: Any) -> None:
    """Lets a function of the notebook see what cells have left in the session: the model that a
    `%%distributed` cell loaded is there. What the function brought along wins."""
    plain = inspect.unwrap(getattr(function, "__func__", function))
    names = getattr(plain, "__globals__", None)
    if names is None or getattr(plain, "__module__", None) != "__main__":
        return
    mine = cells.shell().user_ns
    for name in mine.keys() - names.keys():
        names[name] = mine[name]


def run(context: dict[str, Any], frames: list[bytes], fd: int) -> Any:
    """The function's value. `sys.exit()` and `sys.exit(0)` give None; coroutines are run."""
    global _installed
    if not _installed and not context["session"]:
        display.install_without_shell()
        _installed = True
    function, args, kwargs = serialize.load(frames, fd)
    if context["session"]:
        _lend_session_names(function)
    try:
        value = function(*args, **kwargs)
        if inspect.iscoroutine(value):
            value = asyncio.run(value)
    except SystemExit as end:
        if end.code in (None, 0):
            return None
        raise
    return value
