"""Progress bars made for notebooks, as text: no front end would answer the widgets of a rank."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence

_NAME = "tqdm.notebook"


class _AsText(importlib.abc.Loader):
    """Loads `tqdm.notebook` and has its names mean the bars for consoles, which move in place."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        self._loader.exec_module(module)
        std = importlib.import_module("tqdm.std")
        for name in ("tqdm", "tqdm_notebook"):
            setattr(module, name, std.tqdm)
        for name in ("trange", "tnrange"):
            setattr(module, name, std.trange)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _NAME:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _AsText(spec.loader)
        return spec


def install() -> None:
    """From now on, for whoever imports it. Costs nothing for who does not."""
    sys.meta_path.insert(0, _Finder())
