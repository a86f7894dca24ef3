"""`databricks.air` as another name of this package, unless the real one is installed."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Sequence

_ALIAS = "databricks.air"


class _Alias(importlib.abc.Loader):
    def __init__(self, target: str) -> None:
        self._target = target

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return importlib.import_module(self._target)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class _Namespace(importlib.abc.Loader):
    """`databricks` itself, where nothing else provides it."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        module.__path__ = []


class _Finder(importlib.abc.MetaPathFinder):
    """At the end of `sys.meta_path`, so that every real package comes first."""

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if name == "databricks":
            return importlib.machinery.ModuleSpec(name, _Namespace(), is_package=True)
        if name != _ALIAS and not name.startswith(_ALIAS + "."):
            return None
        ours = __package__ + name[len(_ALIAS) :]
        if importlib.util.find_spec(ours) is None:
            return None
        return importlib.machinery.ModuleSpec(name, _Alias(ours))


def install() -> None:
    """Makes `from databricks.air import distributed` work. A second call does nothing."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
