"""`databricks.air` as another name of `serverless_gpu`, unless the real one is installed.

A module of its own beside the package, loaded at Python's start by a .pth file: the name works in
any program, and costs one small module where it is not used.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec

_ALIAS = "databricks.air"
_PACKAGE = "serverless_gpu"


class _Alias:
    def __init__(self, target: str) -> None:
        self._target = target

    def create_module(self, spec: ModuleSpec) -> object:
        from importlib import import_module

        return import_module(self._target)

    def exec_module(self, module: object) -> None:
        pass


class _Namespace:
    """`databricks` itself, where nothing else provides it."""

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: object) -> None:
        module.__path__ = []


class _Finder:
    """At the end of `sys.meta_path`, so that every real package comes first."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name == "databricks":
            return ModuleSpec(name, _Namespace(), is_package=True)
        if name != _ALIAS and not name.startswith(_ALIAS + "."):
            return None
        from importlib.util import find_spec

        ours = _PACKAGE + name[len(_ALIAS) :]
        return None if find_spec(ours) is None else ModuleSpec(name, _Alias(ours))

    @staticmethod
    def invalidate_caches() -> None:
        pass


def install() -> None:
    """Makes `from databricks.air import distributed` work. A second call does nothing."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
