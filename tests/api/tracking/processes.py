"""The processes that these tests are about, run as ``python processes.py ADDRESS``.

A small fork server: it preloads MLflow as the product's does, then forks one child for each
connection. The child sends its pid, then is what the first message says: a rank, or the tracker.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import traceback
import warnings
from multiprocessing.connection import Connection, Listener
from typing import Any

from serverless_gpu.tracking import rank, tracker


def serve(address: str) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    rank.preload()
    _import_store()
    with Listener(address, family="AF_UNIX", backlog=64) as listener:
        print("ready", flush=True)
        while True:
            connection = listener.accept()
            if os.fork() == 0:
                listener._listener._socket.close()  # type: ignore[attr-defined]
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                child(connection)
                os._exit(0)
            connection.close()


def _import_store() -> None:
    """A second for each tracker, of which the tests start more than a hundred."""
    import alembic.command  # noqa: F401
    import mlflow.store.db.utils
    import mlflow.store.tracking.sqlalchemy_store  # noqa: F401
    import sqlalchemy.dialects.sqlite
    import sqlalchemy.orm

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sqlalchemy.orm.configure_mappers()


def child(connection: Connection) -> None:
    connection.send(os.getpid())
    role, argument = connection.recv()
    if role == "tracker":
        connection.close()
        tracker.main(argument)
        return
    while True:
        try:
            job = connection.recv()
        except EOFError:
            return
        connection.send(run_job(job))


def run_job(job: dict[str, Any]) -> tuple[str, Any]:
    """One call on this rank; as a rank of a session it is asked again and again."""
    os.chdir(job["cwd"])
    os.environ.clear()
    os.environ.update(job["environ"])
    os.environ["RANK"] = str(job["rank"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        try:
            if job["config"] is not None:
                rank.activate({**job["config"], "rank": job["rank"]})
            function, arguments = pickle.loads(job["work"])
            outcome = ("value", function(*arguments))
        except BaseException as error:
            traceback.print_exc()
            outcome = ("error", f"{type(error).__name__}: {error}")
        rank.deactivate()
    texts = [str(warning.message) for warning in caught if warning.category is RuntimeWarning]
    return (*outcome, texts)  # type: ignore[return-value]


if __name__ == "__main__":
    serve(sys.argv[1])
