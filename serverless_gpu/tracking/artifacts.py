"""Files that a rank logs while the tracking server that takes them is away: they are kept, too.

Metrics and the like go through the tracker, which keeps them; a file goes from the rank straight to
where artifacts are stored. Where that is the tracking server itself, the file is copied beside what
else is kept (spool.py) and uploaded when the server is back. Other stores of artifacts work without
the server, and their errors are the caller's.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from serverless_gpu.tracking import spool
from serverless_gpu.tracking.store import FanInStore
from serverless_gpu.tracking.trouble import refused

#: Schemes of artifact URIs that lead to the tracking server.
_THROUGH_SERVER = ("mlflow-artifacts:", "http:", "https:", "dbfs:")


def wrap(original: Callable[..., None], *, inside: bool) -> Callable[..., None]:
    """``log_artifact`` or, with ``inside``, ``log_artifacts`` of MLflow's tracking client."""

    @functools.wraps(original)
    def log(self: Any, run_id: str, path: str, artifact_path: str | None = None) -> None:
        store = self.store
        if not isinstance(store, FanInStore) or not _through_server(self, run_id):
            return original(self, run_id, path, artifact_path)
        folder = store.away(probe=False)
        if folder is None:
            try:
                return original(self, run_id, path, artifact_path)
            except Exception as error:
                folder = None if refused(error) else store.away(probe=True)
                if folder is None:
                    raise
        copies = [
            (where, str(spool.copy_beside(Path(folder), file)))
            for where, file in _files(Path(path), artifact_path or "", inside)
        ]
        store.keep_files(run_id, copies)
        return None

    return log


def _through_server(client: Any, run_id: str) -> bool:
    uri = str(client._get_artifact_repo(run_id).artifact_uri)
    return uri.startswith(_THROUGH_SERVER)


def _files(path: Path, where: str, inside: bool) -> Iterator[tuple[str, Path]]:
    """(folder in the run, local file) of each. Errors: OSError."""
    if not path.is_dir():
        yield where, path
        return
    top = path if inside else path.parent
    for folder, _, names in os.walk(path):
        for name in sorted(names):
            relative = os.path.relpath(folder, top)
            inner = os.path.normpath(os.path.join(where, relative))
            yield "" if inner == "." else inner, Path(folder, name)
