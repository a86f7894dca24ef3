"""Log files that the tracker keeps open until they are attached: the notebook's folder, and so the
only name of each, goes at once with the notebook."""

from __future__ import annotations

import os
from pathlib import Path

from serverless_gpu.tracking.packets import Attach

_AT_MOST = 256  # descriptors; with more the tracker is far behind, and files are opened by name

_open: set[int] = set()


def hold(item: Attach) -> Attach:
    """The item with its folder's files open. In the reader's thread."""
    if item.path is None or not os.path.isdir(item.path) or len(_open) > _AT_MOST:
        return item
    held = []
    for name in sorted(os.listdir(item.path)):
        try:
            held.append((name, os.open(os.path.join(item.path, name), os.O_RDONLY | os.O_CLOEXEC)))
        except OSError:  # gone meanwhile, or no descriptor is left
            continue
    _open.update(descriptor for _, descriptor in held)
    return item._replace(held=tuple(held))


def paths(item: Attach) -> list[tuple[str, Path]]:
    """(name, where it can be read) of the folder's files. Errors: OSError."""
    if item.held:
        return [(name, Path(f"/proc/self/fd/{descriptor}")) for name, descriptor in item.held]
    assert item.path is not None
    return [(path.name, path) for path in sorted(Path(item.path).iterdir())]


def release(item: Attach) -> None:
    """In the main thread, once nobody reads the files any more."""
    for _, descriptor in item.held:
        _open.discard(descriptor)
        os.close(descriptor)
