"""Files of a call's run that the product adds: source, surroundings, what ranks wrote.

They are additions: a store that does not take them costs one line, and is left alone for a while.
Used by the tracker's main thread only.
"""

from __future__ import annotations

import gzip
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from serverless_gpu.tracking import held
from serverless_gpu.tracking.batches import BatchWriter
from serverless_gpu.tracking.packets import Attach
from serverless_gpu.tracking.runs import SharedRun
from serverless_gpu.tracking.trouble import impatient, one_line, towards

COMPRESS_ABOVE = 1 << 20  # bytes
KEPT_OF_LOG = 32 << 20  # of its beginning and of its end each, before compression

_UPLOAD_S = 20.0  # for each request of an upload
_LEFT_ALONE_S = 60.0


class Attachments:
    def __init__(self, batches: BatchWriter) -> None:
        self._batches = batches
        self._left_alone: dict[str, float] = {}  # until when, by URI

    def add(self, run: SharedRun, item: Attach) -> str | None:
        """Uploads an item, keeps it if the store is away. Gives one line if it is not there."""
        uri = run.uri
        if self._left_alone.get(uri, 0.0) > time.monotonic():
            held.release(item)
            return None
        try:
            if self._written_in_place(run, item):
                return None
            with tempfile.TemporaryDirectory(prefix="sgpu-") as scratch:
                for folder, path in _files(item, Path(scratch)):
                    self._upload(run, folder, path)
        except Exception as error:  # of MLflow, of any library that stores artifacts, of the system
            self._left_alone[uri] = time.monotonic() + _LEFT_ALONE_S
            return f"MLflow: no artifact {item.artifact_file}: {one_line(error)}"
        finally:
            held.release(item)
        return None

    def _written_in_place(self, run: SharedRun, item: Attach) -> bool:
        """Writes a text into a run whose files go into a folder, without an upload's copies."""
        if item.text is None or self._batches.away(run.uri):
            return False
        target: Any = _local_repository(run)
        if target is None:
            return False
        file = Path(target.artifact_dir, item.artifact_file)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(item.text)
        return True

    def _upload(self, run: SharedRun, folder: str, path: Path) -> None:
        from mlflow import MlflowClient

        if self._batches.away(run.uri):
            self._batches.keep_file(run.uri, run.run_id, folder, path)
            return
        target: Any = _local_repository(run)
        with impatient(_UPLOAD_S, retries=1), towards(run.uri):
            if target is not None:
                target.log_artifact(str(path), folder or None)
            else:
                client = MlflowClient(tracking_uri=run.uri)
                client.log_artifact(run.run_id, str(path), folder or None)


def _local_repository(run: SharedRun) -> Any:
    """Of a run whose files go into a folder; a client would ask the store for it, which takes
    several times as long as a small file."""
    if run.made is None or not run.made.info.artifact_uri.startswith(("/", "file:")):
        return None
    from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository

    return LocalArtifactRepository(run.made.info.artifact_uri)


def _files(item: Attach, scratch: Path) -> Iterator[tuple[str, Path]]:
    """(folder in the run, local file) of each."""
    if item.text is not None:
        target = Path(item.artifact_file)
        (scratch / target.name).write_text(item.text)
        yield "" if target.parent == Path() else str(target.parent), scratch / target.name
    elif item.held or (item.path is not None and Path(item.path).is_dir()):
        for name, file in held.paths(item):
            if file.is_file() and file.stat().st_size > 0:
                yield item.artifact_file, _compressed(name, file, scratch)
    elif item.path is not None:
        yield item.artifact_file, Path(item.path)


def _compressed(name: str, path: Path, scratch: Path) -> Path:
    """The file under its name, or a copy with its beginning and its end if it is large."""
    size = path.stat().st_size
    if size <= COMPRESS_ABOVE:
        return path if path.name == name else Path(shutil.copyfile(path, scratch / name))
    target = scratch / f"{name}.gz"
    with path.open("rb") as source, gzip.open(target, "wb", compresslevel=1) as out:
        if size > 2 * KEPT_OF_LOG:
            out.write(source.read(KEPT_OF_LOG))
            left_out = size - 2 * KEPT_OF_LOG
            out.write(f"\n… {left_out:,} bytes left out …\n".encode())
            source.seek(-KEPT_OF_LOG, 2)
        shutil.copyfileobj(source, out)
    return target
