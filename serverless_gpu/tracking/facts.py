"""What the notebook tells about a call besides its code: tags of its run.

Arguments are described, not shown: `repr` of a user's object may be slow, long or secret.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from serverless_gpu.tracking.context import notebook_file

PREFIX = "serverless_gpu."

_VALUE_LENGTH, _LENGTH = 60, 500
_ITEMS = 4
_SECRET_NAME = re.compile(r"token|secret|passw|pwd|credential|auth|api_?key|private", re.I)
_SECRET_VALUE = re.compile(r"(hf_|ghp_|gho_|github_pat_|sk-|dapi|glpat-|AKIA|xox[abp]-|eyJ)\S{8,}")
_SECRET_LENGTH = 8
_HIDDEN = "***"

Secrets: TypeAlias = Callable[[], frozenset[str]]


def call_tags(title: str, ranks: int, device: str, arguments: str) -> dict[str, str]:
    """The tags of a run that are known when its call begins."""
    tags = {
        "mlflow.source.name": notebook_file() or title,
        "mlflow.source.type": "NOTEBOOK",
        PREFIX + "function": title,
        PREFIX + "ranks": f"{ranks} x {device}",
        PREFIX + "arguments": arguments,
    }
    return {key: value for key, value in tags.items() if value}


def arguments_text(
    names: Sequence[str], values: Sequence[Any], environ: Mapping[str, str] = os.environ
) -> str:
    """``lr=0.1, data=Tensor(8, 3) float32, token=***``."""
    secrets: Secrets = functools.cache(lambda: _secrets(environ))  # few calls have long texts
    parts = []
    for name, value in zip(names, values, strict=True):
        text = _HIDDEN if _SECRET_NAME.search(name) else _short(value, secrets)
        parts.append(f"{name}={text}")
    return _cut(", ".join(parts), _LENGTH)


def _secrets(environ: Mapping[str, str]) -> frozenset[str]:
    return frozenset(
        value
        for name, value in environ.items()
        if len(value) >= _SECRET_LENGTH and _SECRET_NAME.search(name)
    )


def _short(value: Any, secrets: Secrets, depth: int = 0) -> str:
    kind = type(value)
    if value is None or kind in (bool, int, float, complex):
        return _cut(repr(value), _VALUE_LENGTH)
    if kind in (str, bytes):
        plain = value if kind is str else ""
        long = len(plain) >= _SECRET_LENGTH
        if long and (_SECRET_VALUE.search(plain) or any(one in plain for one in secrets())):
            return _HIDDEN
        return _cut(repr(value[: _VALUE_LENGTH + 1]), _VALUE_LENGTH)
    if kind in (list, tuple, set, frozenset, dict) and depth < 2:
        return _container(value, secrets, depth)
    try:
        shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
        if isinstance(shape, tuple) and dtype is not None:
            sizes = ", ".join(map(str, shape))
            return f"{kind.__name__}({sizes}) {str(dtype).removeprefix('torch.')}"
        name = getattr(value, "__qualname__", None)  # functions and classes
    except Exception:  # a nested tensor has no shape, a lazy proxy nothing yet
        name = None
    return str(name) if isinstance(name, str) else kind.__name__


def _container(value: Any, secrets: Secrets, depth: int) -> str:
    shown = []
    for number, item in enumerate(value):
        if number == _ITEMS:
            shown.append(f"… {len(value)} in all")
            break
        text = _short(item, secrets, depth + 1)
        if type(value) is dict:
            hidden = type(item) is str and _SECRET_NAME.search(item)
            text += ": " + (_HIDDEN if hidden else _short(value[item], secrets, depth + 1))
        shown.append(text)
    inside = ", ".join(shown)
    if isinstance(value, list):
        return f"[{inside}]"
    return f"({inside})" if isinstance(value, tuple) else "{" + inside + "}"


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
