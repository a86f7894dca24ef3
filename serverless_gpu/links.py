"""What becomes known of runs after their calls ended: links of runs that were made later, and
trouble at the run's end."""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

from .status import Status
from .tracking.handle import REMOTE_LIMIT_S

#: Seconds in which a run must come to be. A new store on a busy disk takes that long.
_LIMIT = 10.0
#: Seconds between two looks while a link is missing.
LOOK = 0.02
#: Seconds that the end of a cell waits for links once one did not come in time.
_SLOW_LIMIT = 0.5


class _Late(NamedTuple):
    """A status line, and in monotonic seconds: until when news of its run is awaited, and until
    when the end of its cell waits for them."""

    line: Status
    limit: float
    hold: float


class LateLinks:
    """Status lines that wait for news of their run, first of all for its link.

    Threads: any; one lock, held while publishing.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[_Late] = []  # for the link
        self._settling: list[_Late] = []  # for the run's end; nobody waits for that
        self._slow = False

    def add(self, line: Status, ended: float) -> None:
        """`ended`: when its ranks had, in monotonic seconds."""
        with self._lock:
            now = time.monotonic()
            hold = now + (_SLOW_LIMIT if self._slow else _LIMIT)
            if line.run is not None and line.run.remote:
                hold = min(hold, ended + REMOTE_LIMIT_S)
            self._waiting.append(_Late(line, now + _LIMIT, hold))

    def missing(self) -> bool:
        return bool(self._waiting or self._settling)

    def look(self) -> None:
        """Shows what is known by now; gives up those whose time is over."""
        if not self.missing():
            return
        with self._lock:
            for late in [*self._settling, *self._waiting][:1]:  # for all: there may be hundreds
                late.line.look()
            now = time.monotonic()
            settling, self._settling = self._settling, []
            for late in settling:
                if late.line.settled():
                    late.line.show_link()
                elif now < late.limit:
                    self._settling.append(late)
            still = []
            for late in self._waiting:
                if not late.line.lacks_link():
                    late.line.show_link()
                    self._settling.append(late)
                elif time.monotonic() < late.limit:
                    still.append(late)
                else:
                    self._slow = True
            self._waiting = still

    def wait(self) -> None:
        """Blocks until no link is missing. Bounded, shorter once the store has shown to be slow,
        and for a server.

        For the end of a cell: calls within one do not wait, but who saves the notebook then, or
        stops listening as nbconvert does, has the link.
        """
        while True:
            self.look()
            held = [late for late in self._waiting if time.monotonic() < late.hold]
            if not held:
                break
            held[0].line.await_news(LOOK)
        self._slow = self._slow or bool(self._waiting)
