"""On PYTHONPATH, this makes a Python process see mlflow-skinny where full MLflow is installed: the
packages that only the latter brings are not found, and neither is its distribution."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.machinery import PathFinder
from importlib.metadata import Distribution
from typing import Any

ABSENT = {"aiohttp", "docker", "flask", "flask_cors", "graphene", "gunicorn", "huey", "pyarrow"}
ABSENT |= {"scipy", "skops", "sklearn", "waitress"}

_find_spec, _discover = PathFinder.find_spec, Distribution.discover


def _spec(name: str, *arguments: Any, **keywords: Any) -> Any:
    absent = name.partition(".")[0] in ABSENT
    return None if absent else _find_spec(name, *arguments, **keywords)


def _distributions(**wanted: Any) -> Iterator[Any]:
    return (one for one in _discover(**wanted) if one.metadata["Name"] != "mlflow")


PathFinder.find_spec = _spec  # type: ignore[method-assign, assignment]
Distribution.discover = _distributions  # type: ignore[method-assign, assignment]
