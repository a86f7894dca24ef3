"""The environment at a call, in the notebook and in ranks.

What lies below `os.environ` is looked at, which costs a tenth of a look into it: a quick call would
spend a tenth of its time on that in the notebook, and a third in the ranks.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

_raw: object = None
_decoded: dict[str, str] = {}


def now() -> dict[str, str]:
    """All of it, decoded only after a change. Not to be changed by the caller."""
    global _raw, _decoded
    raw = getattr(os.environ, "_data", None)
    if raw is None or raw != _raw:
        _decoded = dict(os.environ)
        _raw = dict(raw) if raw is not None else None
    return _decoded


def some(names: Iterable[str]) -> dict[str, str | None]:
    """These variables; None for one that is not set."""
    raw = _below()
    found = {name: raw.get(name.encode()) for name in names}
    return {name: None if raw is None else os.fsdecode(raw) for name, raw in found.items()}


def put(wanted: Mapping[str, str | None]) -> None:
    """Sets variables, or takes them away where the value is None. Mostly they are so already."""
    raw = _below()
    for name, value in wanted.items():
        if value is None:
            if name.encode() in raw:
                del os.environ[name]
        elif raw.get(name.encode()) != os.fsencode(value):
            os.environ[name] = value


def _below() -> Mapping[bytes, bytes]:
    found: Mapping[bytes, bytes] = getattr(os.environ, "_data", os.environb)
    return found
