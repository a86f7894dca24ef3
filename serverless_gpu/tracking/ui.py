"""MLflow's UI for a local store: a link that opens, at no cost until somebody opens it.

The tracker of one notebook listens on a loopback port of the store; the first connection starts
ui_server.py on that socket, and the waiting browser is its first visitor. Trackers of other
notebooks show the same port. Who listens is decided by a lock on a small file per store, so when
that notebook ends another one takes over its port, and with the last one the UI is gone.

The port is written into the file and used again, so the links of a saved notebook open as soon as
any notebook of that store is running.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.metadata
import os
import select
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from serverless_gpu.tracking import settings
from serverless_gpu.tracking.url import LOOPBACK

# Nothing is imported from the notebook's folder, where a file may be called random.py.
COMMAND = (
    sys.executable,
    "-c",
    "import sys; sys.path[:] = [p for p in sys.path if p]; "
    f"sys.path.append({str(Path(__file__).resolve().parents[2])!r}); "
    "from serverless_gpu.tracking.ui_server import main; main()",
)
FULL_MLFLOW = "mlflow"  # the distribution that brings the UI; mlflow-skinny does not

_PORTS = range(20_000, 32_000)  # below the range from which the system gives ports away
_TAKE_OVER_S = 0.5  # between two looks whether the notebook that listens has ended
_PORT_S = 1.0  # for the one that has just got the lock to write its port
_AGAIN_S = 5.0  # before a server that failed is started again
_END_S = 1.0  # for a server that was killed to be gone
_LOG_TAIL = 2000


def available() -> bool:
    """Whether MLflow's UI is installed."""
    try:
        importlib.metadata.version(FULL_MLFLOW)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


class Uis:
    """The UIs of all stores that this process has shown links to.

    Threads: port() and close() in one thread; each store has a thread of its own, which only ever
    waits. Owns the listening sockets, the locks and the server processes; they end with close(),
    the servers also with this process.
    """

    def __init__(self, command: Sequence[str] | None = None) -> None:
        """``command`` starts a server; it gets two more arguments, see ui_server.py."""
        self._command = command or (COMMAND if available() else None)
        self._ports: dict[str, int | None] = {}
        self._stop, self._stopped = os.pipe()
        self._servers: list[_Ui] = []

    def port(self, uri: str) -> int | None:
        """The loopback port of the store's UI, or None where there can be none: MLflow's UI is not
        installed, no port is free."""
        if uri not in self._ports:
            self._ports[uri] = self._open(uri, self._command) if self._command else None
        return self._ports[uri]

    def close(self) -> None:
        """Ends the servers that this process has started. Bounded."""
        os.close(self._stopped)
        for server in self._servers:
            server.thread.join(_END_S)

    def _open(self, uri: str, command: Sequence[str]) -> int | None:
        try:
            ui = _Ui(uri, command, _claim_file(uri), self._stop)
        except OSError:
            return None
        self._servers.append(ui)
        return ui.port


class _Ui:
    """One store: waits for the lock if another process has it, then for connections."""

    def __init__(self, uri: str, command: Sequence[str], claim: IO[str], stop: int) -> None:
        """Errors: OSError if no port can be had."""
        # Taken here, since the environment changes with each call.
        self._environment = server_environment(uri, os.environ)
        self._command = command
        self._claim = claim  # holds the lock as long as it is open
        self._stop = stop
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        if self._lock():
            self._socket = _listen(_read_port(claim) or _first_port(uri))
            self.port = int(self._socket.getsockname()[1])
            _write_port(claim, self.port)
        else:
            self.port = _await_port(claim)
        self.thread = threading.Thread(target=self._run, name="tracker-ui", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while self._socket is None:
            if self._stopping(_TAKE_OVER_S):
                return
            if self._lock():
                with contextlib.suppress(OSError):  # its server has not let go of the port yet
                    self._socket = _bind(self.port)
        while self._connection_waits():
            self._serve(self._socket)
        self._socket.close()
        self._claim.close()  # after the port is free: whoever gets the lock finds it so

    def _lock(self) -> bool:
        try:
            fcntl.flock(self._claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def _stopping(self, wait_s: float) -> bool:
        return bool(select.select([self._stop], [], [], wait_s)[0])

    def _connection_waits(self) -> bool:
        """Blocks. False if it is time to stop."""
        assert self._socket is not None
        poller = select.poll()
        poller.register(self._stop, select.POLLIN)
        poller.register(self._socket, select.POLLIN)
        return all(descriptor != self._stop for descriptor, _ in poller.poll())

    def _serve(self, listener: socket.socket) -> None:
        """Runs the server until it ends by itself or close() is called."""
        began = time.monotonic()
        parent = os.pidfd_open(os.getpid())
        with tempfile.TemporaryFile() as log:
            try:
                self._process = subprocess.Popen(
                    [*self._command, str(listener.fileno()), str(parent)],
                    env=self._environment,
                    pass_fds=[listener.fileno(), parent],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            except OSError as error:
                return self._explain(listener, str(error), began)
            finally:
                os.close(parent)
            pidfd = os.pidfd_open(self._process.pid)
            if self._stop in select.select([self._stop, pidfd], [], [])[0]:
                self._process.kill()
            os.close(pidfd)
            if self._process.wait() > 0:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_TAIL))
                self._explain(listener, log.read().decode(errors="replace"), began)

    def _explain(self, listener: socket.socket, reason: str, began: float) -> None:
        """Tells the browsers that wait why there is no page, and does not start it in a loop."""
        text = f"MLflow's UI could not be started.\n\n{reason}".encode()
        head = (
            b"HTTP/1.0 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n"
        )
        listener.setblocking(False)
        with contextlib.suppress(OSError):
            while True:
                visitor, _ = listener.accept()
                visitor.settimeout(1.0)
                with contextlib.suppress(OSError), visitor:
                    visitor.recv(1 << 16)
                    visitor.sendall(head + text)
        listener.setblocking(True)
        self._stopping(max(0.0, began + _AGAIN_S - time.monotonic()))


def server_environment(uri: str, environ: Mapping[str, str]) -> dict[str, str]:
    """What the server's process needs to know. The store's URI, which may hold a password, is told
    in the environment, that others cannot read, and not in the arguments."""
    template = urlsplit(environ.get(settings.UI_URL_VARIABLE, ""))
    extra = {"MLFLOW_DISABLE_TELEMETRY": "true", settings.UI_STORE_VARIABLE: uri}
    if template.netloc:  # a proxy: MLflow answers strangers with 403
        host, port = template.hostname or "", f":{template.port}" if template.port else ""
        hosts = [
            "localhost",
            f"{LOOPBACK}:*",
            "localhost:*",
            LOOPBACK,
            host,
            host + port,
            host + ":*",
        ]
        extra["MLFLOW_SERVER_ALLOWED_HOSTS"] = ",".join(dict.fromkeys(hosts))
        extra["MLFLOW_SERVER_CORS_ALLOWED_ORIGINS"] = f"{template.scheme}://{host}{port}"
    return {**extra, **environ, settings.UI_STORE_VARIABLE: uri}


def _claim_file(uri: str) -> IO[str]:
    """The file of a store, the same for all notebooks of this user on this machine."""
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    folder = Path(base) / f"serverless-gpu-{os.getuid()}"
    name = hashlib.sha256(uri.encode()).hexdigest()[:20]
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        mine = found.st_uid == os.getuid() and stat.S_ISDIR(found.st_mode)
        if mine and not found.st_mode & 0o022:
            handle = os.open(folder / f"ui-{name}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            return os.fdopen(handle, "r+")
    except OSError:
        pass
    return tempfile.TemporaryFile("w+")  # nothing to share, the UI works all the same


def _first_port(uri: str) -> int:
    """Where to begin looking: the same for a store each time, also after the file is gone."""
    digest = hashlib.sha256(uri.encode()).digest()
    return _PORTS[int.from_bytes(digest[:4], "big") % len(_PORTS)]


def _bind(port: int) -> socket.socket:
    listener = socket.create_server((LOOPBACK, port), backlog=64)
    listener.setblocking(True)
    return listener


def _listen(port: int) -> socket.socket:
    """On this port, or on any other if it is taken. Errors: OSError."""
    try:
        return _bind(port)
    except OSError:
        return _bind(0)


def _read_port(claim: IO[str]) -> int | None:
    claim.seek(0)
    text = claim.read()
    return int(text) if text.endswith("\n") and text.strip().isdigit() else None


def _write_port(claim: IO[str], port: int) -> None:
    claim.seek(0)
    claim.truncate()
    claim.write(f"{port}\n")
    claim.flush()


def _await_port(claim: IO[str]) -> int:
    """Errors: TimeoutError if the one that has the lock does not say where it listens."""
    deadline = time.monotonic() + _PORT_S
    while time.monotonic() < deadline:
        port = _read_port(claim)
        if port is not None:
            return port
        time.sleep(0.01)  # a file that another process writes in its next few instructions
    raise TimeoutError("no port in the file of the store's UI")
