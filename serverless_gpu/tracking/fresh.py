"""A new sqlite store in milliseconds.

MLflow makes the tables of a new store by running all of its migrations, each with a commit to the
disk: 1.5 s, on a busy disk more than ten. The result is the same for one version of MLflow, so it
is made once, in memory, kept in the user's cache folder, and copied to where a store is wanted.
Whatever goes wrong here, MLflow makes the store itself.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import unquote

_PREFIX = "sqlite:///"
_MEMORY = Path("/dev/shm")
_logger = logging.getLogger(__name__)


def sqlite_file(uri: str) -> Path | None:
    """The file of a sqlite URI; None for other stores and for databases in memory."""
    if not uri.startswith(_PREFIX) or "?" in uri or uri == _PREFIX or ":memory:" in uri:
        return None
    return Path(unquote(uri[len(_PREFIX) :]))


def ensure(uri: str) -> None:
    """Makes the store of `uri` from the template if it is a sqlite file that does not exist."""
    path = sqlite_file(uri)
    if path is None or path.exists():
        return
    try:
        _copy(template(), path)
    except FileExistsError:
        return  # another process was quicker
    except Exception as error:
        _logger.debug("no store from the template: %s", error)


def forget_removed(uri: str) -> None:
    """A sqlite file that the user has removed to start anew is made again. Left to itself, MLflow
    goes on with the removed one for the life of the process."""
    path = uri[len(_PREFIX) :]
    exists = os.path.exists(path) or os.path.exists(unquote(path))  # both spellings are met
    if exists or not uri.startswith(_PREFIX):
        return
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
    from mlflow.tracking._tracking_service import utils

    untyped: Any = utils
    untyped._tracking_store_registry._get_store_with_resolved_uri.cache_clear()
    for name in ("_engine_map", "_db_uri_sql_alchemy_engine_map"):  # MLflow 3, MLflow 2
        getattr(SqlAlchemyStore, name, {}).pop(uri, None)


def template() -> Path:
    """The file with MLflow's tables and nothing else; made if there is none.

    Raises whatever MLflow, the database or the file system raise.
    """
    import mlflow

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "serverless-gpu"
    kept = cache / f"mlflow-{mlflow.__version__}.db"
    if not kept.exists():
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=_memory_folder()) as folder:
            made = Path(folder) / "made.db"
            _make(made)
            with contextlib.suppress(FileExistsError):
                _copy(made, kept)
    return kept


def _memory_folder() -> Path | None:
    return _MEMORY if os.access(_MEMORY, os.W_OK) else None


def _make(path: Path) -> None:
    # Its import registers the tables that MLflow looks for.
    import mlflow.store.tracking.sqlalchemy_store  # noqa: F401
    import sqlalchemy
    from mlflow.store.db import utils

    engine = sqlalchemy.create_engine(f"{_PREFIX}{path}")
    try:
        utils._initialize_tables(engine)  # type: ignore[no-untyped-call]
    finally:
        engine.dispose()


def _copy(source: Path, target: Path) -> None:
    """Whole or not at all, and never over an existing file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, beside = tempfile.mkstemp(prefix=f".{target.name}-", dir=target.parent)
    try:
        with open(handle, "wb") as out, source.open("rb") as content:
            shutil.copyfileobj(content, out)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(beside, 0o666 & ~umask)  # as sqlite would have made it
        os.link(beside, target)
    finally:
        os.unlink(beside)
