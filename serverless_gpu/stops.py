"""What Stop (SIGINT) means while a call goes on, and where it has to wait for a moment.

Signals are the main thread's: in others all of this does nothing.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .pool import Pool


class CallInterrupted(KeyboardInterrupt):
    """The user pressed Stop; no rank works for the call any more."""

    def _render_traceback_(self) -> list[str]:
        return [f"KeyboardInterrupt: {self}"]


CallInterrupted.__name__ = CallInterrupted.__qualname__ = "KeyboardInterrupt"


class Stops:
    """The presses of Stop during one call.

    Each is handed to the pool, which ends the ranks in bounded time and knows what a second press
    means; nothing is raised meanwhile, so that what the call has taken is given back. Only while
    values are read, which runs code of the user's classes here, does a press raise at once.
    """

    def __init__(self, owner: Pool) -> None:
        self._owner = owner
        self._call: int | None = None
        self._count = 0
        self._raises = False
        self._before: Any = None
        self._installed = False

    def __enter__(self) -> Stops:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._on_signal)
            self._installed = True
        return self

    def __exit__(self, *_: object) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, self._before)

    @property
    def pressed(self) -> bool:
        return self._count > 0

    def began(self, call: int) -> None:
        """From now on a press stops this call of the pool; so does one that came before."""
        self._call = call
        if self._count:
            self._owner.core.stop(call)

    @contextlib.contextmanager
    def raising(self) -> Iterator[None]:
        """Within it a press raises KeyboardInterrupt."""
        self._raises = True
        try:
            yield
        finally:
            self._raises = False

    def _on_signal(self, signum: int, frame: Any) -> None:
        self._count += 1
        if self._raises:
            self._raises = False
            raise KeyboardInterrupt
        if self._call is not None:
            self._owner.core.stop(self._call)


@contextlib.contextmanager
def in_one_line(message: str) -> Iterator[None]:
    """A Stop within it is shown as `message`, not with a traceback through this package."""
    try:
        yield
    except CallInterrupted:
        raise
    except KeyboardInterrupt:
        raise CallInterrupted(message) from None


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Lets what may not be left half done go to its end; a press of Stop is obeyed after it.

    REQUIRES: the block ends in bounded time.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda signum, frame: pressed.append(signum))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        signal.raise_signal(signal.SIGINT)
