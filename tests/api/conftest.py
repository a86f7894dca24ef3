"""Ranks for the tests in this folder: one pool, of CPU ranks, for the whole run."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from serverless_gpu import _core, call, pool, sessions

PATIENCE = 60.0


@pytest.fixture(scope="session", autouse=True)
def nothing_left() -> Iterator[None]:
    """No process that a test started outlives the tests."""
    before = {pid for pid, _, _ in _core.descendants(os.getpid())}
    yield
    pool.stop()
    left = [one for one in _core.descendants(os.getpid()) if one[0] not in before]
    assert not left, f"still running: {left}"


@pytest.fixture(autouse=True)
def cpu_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU ranks on every machine, without MLflow: that has tests of its own."""
    monkeypatch.setenv("SERVERLESS_GPU_ACCELERATOR", "cpu")
    monkeypatch.setenv("SERVERLESS_GPU_MLFLOW", "off")


@pytest.fixture
def session() -> Iterator[sessions.Session]:
    """The notebook's session, none at the start and none at the end."""
    one = sessions.session()
    one.stop()
    yield one
    one.stop()


@pytest.fixture
def quick_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Stop that is not obeyed is enforced soon, so that tests of it need not wait."""
    monkeypatch.setattr(call, "GRACE", 0.5)


class Ready:
    """A place where ranks say that they are where the test wants them."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        os.mkfifo(path)
        # Open for both: it neither blocks nor ends while ranks come and go.
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def wait(self, count: int) -> str:
        """The first `count` characters that ranks have written."""
        text, deadline = b"", time.monotonic() + PATIENCE
        import select

        while len(text) < count:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._fd], [], [], left)[0]:
                raise TimeoutError(f"{len(text)} of {count} ranks got ready")
            text += os.read(self._fd, count - len(text))
        return text.decode()

    def close(self) -> None:
        os.close(self._fd)


@pytest.fixture
def ready(tmp_path: Path) -> Iterator[Ready]:
    one = Ready(tmp_path / "ready")
    yield one
    one.close()


class Stopper:
    """Presses Stop while a call runs: once all ranks are ready, and again for each more of them."""

    def __init__(self, ready: Ready) -> None:
        self.ready = ready
        self._inside = False

    def _on_sigint(self, signum: int, frame: Any) -> None:
        if self._inside:
            raise KeyboardInterrupt

    def during(self, work: Callable[[], Any], counts: tuple[int, ...] = (2,)) -> Any:
        """What `work()` returns; raises what it raises, KeyboardInterrupt as a rule."""

        def press() -> None:
            for count in counts:
                try:
                    self.ready.wait(count)
                finally:  # ranks that do not get ready must not run for ever
                    os.kill(os.getpid(), signal.SIGINT)

        before = signal.signal(signal.SIGINT, self._on_sigint)
        thread = threading.Thread(target=press)
        thread.start()
        try:
            self._inside = True
            return work()
        finally:
            self._inside = False
            thread.join(PATIENCE)
            signal.signal(signal.SIGINT, before)


@pytest.fixture
def stopper(ready: Ready) -> Stopper:
    return Stopper(ready)
