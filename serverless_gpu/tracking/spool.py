"""What a tracking store does not take now, kept in a file until it does.

One file per store and tracker, JSON lines, made with the first thing that has to be kept:

    {"spool": 1, "uri": ...}                                    first line
    {"log": [run_id, metric rows, [[param, value]], [[tag, value]]]}
    {"inputs": [run_id, [[data set, tags]], [model id]]}
    {"end": [run_id, status, milliseconds]}
    {"artifact": [run_id, folder in the run, file]}
    {"copy": {"store", "run_id", "experiment", "experiment_id", "parent_run_id", "into"}}
    {"written": offset}                                         all before it is in the store

``copy`` is a whole run that was made in a local store because the real one was away. replay.py
writes all of it later. No line holds a credential: URIs are kept without them.

Whoever writes to a file, or writes it into its store, holds a lock on it, which ends with its
process; a file without one is a leftover that anybody may take up (leftovers.py).
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from serverless_gpu.tracking.url import without_credentials

FORMAT = 1

_FOLDER = "serverless-gpu"


class SpoolError(ValueError):
    """The file is no spool, or of a format that this version does not know."""


class Spool:
    """Threads: any; a line is one write to a file that is open for appending.
    Owns nothing: the file stays."""

    def __init__(self, uri: str, folder: Path | None = None) -> None:
        self.uri = uri
        self._folder = folder
        self._file: int | None = None
        self.path: Path | None = None  # None as long as nothing is kept

    def keep(self, **record: Any) -> None:
        """Errors: OSError if there is nowhere to write."""
        if self._file is None:
            self._open()
        self._write(record)

    def stand_in(self) -> tuple[str, str]:
        """URI and artifact folder of a local store beside the file, for whole runs."""
        if self.path is None:
            self._open()
        assert self.path is not None
        return f"sqlite:///{self.path.with_suffix('.db')}", str(self.path.with_suffix(".artifacts"))

    def keep_file(self, path: Path) -> Path:
        """A copy of the file beside the spool. Errors: OSError."""
        return copy_beside(self.files_folder(), path)

    def files_folder(self) -> Path:
        """Where copies of files are. Errors: OSError."""
        artifacts = Path(self.stand_in()[1])
        artifacts.mkdir(mode=0o700, exist_ok=True)
        return artifacts

    def set_aside(self) -> Path | None:
        """The file is left to the user; what comes later is kept in a new one."""
        aside = self.path
        if self._file is not None:
            os.close(self._file)
        self._file, self.path = None, None
        return aside

    def discard(self, *, stand_in: bool) -> None:
        """All of it is written: the file goes, and the local store beside it if ``stand_in``. What
        comes later is kept in a new one."""
        path = self.set_aside()
        if path is not None:
            remove(path, stand_in=stand_in)

    def _open(self) -> None:
        folder = self._folder or state_folder()
        now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S-%f")
        path = folder / f"mlflow-{now}-{_digest(self.uri)}.jsonl"
        hidden = path.with_name(f".{path.name}")
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._file = os.open(hidden, flags, 0o600)
        with contextlib.suppress(OSError):  # a file system without locks: nobody will take it up
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            self._write({"spool": FORMAT, "uri": without_credentials(self.uri)})
            os.rename(hidden, path)
        except OSError:
            self.set_aside()
            hidden.unlink(missing_ok=True)
            raise
        self.path = path

    def _write(self, record: dict[str, Any]) -> None:
        assert self._file is not None
        _append(self._file, record)


def _append(descriptor: int, record: dict[str, Any]) -> None:
    """Writes a whole line or nothing: what is appended to half a line is lost with it.
    Errors: OSError."""
    line = (json.dumps(record, default=float) + "\n").encode()
    end = os.lseek(descriptor, 0, os.SEEK_END)
    if os.write(descriptor, line) < len(line):
        os.ftruncate(descriptor, end)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def copy_beside(folder: Path, path: Path) -> Path:
    """A copy of the file in Spool.files_folder(). Errors: OSError."""
    copy = Path(tempfile.mkdtemp(prefix="file-", dir=folder)) / path.name
    shutil.copyfile(path, copy)
    return copy


def state_folder() -> Path:
    """Where spools are kept; the folder for temporary files if there is no home to write to."""
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    for base in (home, os.path.join(tempfile.gettempdir(), f"state-{os.getuid()}")):
        folder = Path(base) / _FOLDER
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    raise OSError(f"no folder to keep MLflow data in: {home} cannot be written")


class InUse(OSError):
    """Another process writes to the file, or writes it into its store."""


def claim(path: Path) -> int:
    """A descriptor that holds the file's lock until it is closed.

    Errors: InUse, also for a file that has just been removed; OSError if there is none.
    """
    held = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(held), os.stat(path)):
            raise FileNotFoundError(path)
    except OSError as error:
        os.close(held)
        text = "is in use by a notebook that runs, which writes it when the store is back"
        raise InUse(f"{path} {text}") from error
    return held


def files(uri: str) -> list[Path]:
    """Spools of this store, the oldest first. Errors: OSError."""
    found = sorted(state_folder().glob(f"mlflow-*-{_digest(uri)}.jsonl"))
    return [path for path in found if _is_for(path, uri)]


def _is_for(path: Path, uri: str) -> bool:
    try:
        return uri_of(path) == without_credentials(uri)
    except (OSError, SpoolError):  # taken up by somebody else at this moment, or not ours
        return False


def _digest(uri: str) -> str:
    return hashlib.sha256(without_credentials(uri).encode()).hexdigest()[:6]


def remove(path: Path, *, stand_in: bool) -> None:
    """Removes a spool, and the local store beside it."""
    path.unlink(missing_ok=True)
    if stand_in:
        path.with_suffix(".db").unlink(missing_ok=True)
        shutil.rmtree(path.with_suffix(".artifacts"), ignore_errors=True)


def uri_of(path: Path) -> str:
    """The store, without credentials, that a spool is for. Errors: SpoolError, OSError."""
    with path.open(encoding="utf-8", errors="replace") as lines:
        head = _parsed(lines.readline())
    if not head or "spool" not in head:
        raise SpoolError(f"{path} is no file of kept MLflow data")
    if head["spool"] != FORMAT:
        raise SpoolError(f"{path} was kept by a newer version (format {head['spool']})")
    return str(head["uri"])


def records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """What is not written yet: (offset of its end in the file, record). A last line that was cut
    off by the end of its writer is left out. Errors: OSError."""
    written = 0
    with path.open("rb") as lines:
        for line in lines:
            record = _parsed(line) if b'"written"' in line[:12] else None
            written = record["written"] if record else written
    with path.open("rb") as lines:
        lines.seek(written)
        for line in iter(lines.readline, b""):
            record = _parsed(line) if line.endswith(b"\n") else None
            if record and not record.keys() & {"spool", "written"}:
                yield lines.tell(), record


def mark_written(path: Path, offset: int) -> None:
    """All before the offset is in the store. Errors: OSError."""
    with path.open("ab") as out:
        _append(out.fileno(), {"written": offset})


def _parsed(line: str | bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None
