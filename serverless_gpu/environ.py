"""The notebook's environment as a dict, decoded only after a change: to do that for each call would
be a tenth of one that does nothing."""

from __future__ import annotations

import os

_raw: object = None
_decoded: dict[str, str] = {}


def now() -> dict[str, str]:
    """Not to be changed by the caller."""
    global _raw, _decoded
    raw = getattr(os.environ, "_data", None)
    if raw is None or raw != _raw:
        _decoded = dict(os.environ)
        _raw = dict(raw) if raw is not None else None
    return _decoded
