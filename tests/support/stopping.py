"""Ranks that say when they are where a test wants them, and a Stop that is pressed then."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PATIENCE = 60.0  # seconds


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
        while len(text) < count:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._fd], [], [], left)[0]:
                raise TimeoutError(f"{len(text)} of {count} ranks got ready")
            text += os.read(self._fd, count - len(text))
        return text.decode()

    def close(self) -> None:
        os.close(self._fd)


class Stopper:
    """Presses Stop while a call runs: once all ranks are ready, and again for each more of them."""

    def __init__(self, ready: Ready) -> None:
        self.ready = ready
        #: time.perf_counter() of the last Stop.
        self.pressed_at = 0.0
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
                    self.pressed_at = time.perf_counter()
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
