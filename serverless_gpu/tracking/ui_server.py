"""MLflow's UI on a socket that is already open, in a process of its own.

Ends with its parent, and after IDLE_S without a visitor; the parent then listens again.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, NoReturn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from serverless_gpu.tracking import settings
from serverless_gpu.tracking.url import LOOPBACK

IDLE_S = 900.0
IDLE_VARIABLE = "SERVERLESS_GPU_MLFLOW_UI_IDLE"  # seconds

# How `mlflow server` tells its workers; the same from MLflow 2.22 to 3.17.
_STORES = ("_MLFLOW_SERVER_FILE_STORE", "_MLFLOW_SERVER_REGISTRY_STORE")


class Watched:
    """A WSGI application that knows when it was last asked for something."""

    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        self._application = application
        self.last = time.monotonic()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        self.last = time.monotonic()
        return self._application(environ, start_response)


def mlflow_application() -> Callable[..., Iterable[bytes]]:
    """MLflow's server for the store in the environment. Takes two seconds to import."""
    uri = os.environ.pop(settings.UI_STORE_VARIABLE)
    os.environ.update(dict.fromkeys(_STORES, uri))
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    os.environ["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow.server import app

    application: Callable[..., Iterable[bytes]] = app
    return application


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, listener: int) -> None:
        super().__init__((LOOPBACK, 0), _Quiet, bind_and_activate=False)
        self.socket.close()
        self.socket = socket.socket(fileno=listener)
        self.server_name, self.server_port = self.socket.getsockname()
        self.setup_environ()


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Nobody reads it."""


def serve(listener: int, parent: int, application: Callable[..., Iterable[bytes]]) -> NoReturn:
    """Serves on ``listener``, an open socket, until ``parent``, a pidfd, has ended or nobody has
    come for long."""
    watched = Watched(application)
    server = _Server(listener)
    server.set_app(watched)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    idle = float(os.environ.get(IDLE_VARIABLE) or IDLE_S)
    while (left := watched.last + idle - time.monotonic()) > 0:
        if select.select([parent], [], [], left)[0]:
            break
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    os._exit(0)


def main() -> None:
    """The process's whole life; its arguments are the two descriptors."""
    serve(int(sys.argv[1]), int(sys.argv[2]), mlflow_application())
