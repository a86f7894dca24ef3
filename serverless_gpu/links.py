"""What becomes known of runs after their calls ended: links of runs that were made later, and
trouble at the run's end."""

from __future__ import annotations

import threading
import time

from .status import Status

#: Seconds in which a run must come to be. A new store on a busy disk takes that long.
_LIMIT = 10.0
#: Seconds between two looks while a link is missing.
LOOK = 0.02
#: Seconds that the end of a cell waits for links once one did not come in time.
_SLOW_LIMIT = 0.5


class LateLinks:
    """Status lines that wait for news of their run, first of all for its link.

    Threads: any; one lock, held while publishing.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[tuple[float, Status]] = []  # for the link
        self._settling: list[tuple[float, Status]] = []  # for the run's end; nobody waits for that
        self._slow = False

    def add(self, line: Status) -> None:
        with self._lock:
            self._waiting.append((time.monotonic() + _LIMIT, line))

    def missing(self) -> bool:
        return bool(self._waiting or self._settling)

    def look(self) -> None:
        """Shows what is known by now; gives up those whose time is over."""
        if not self.missing():
            return
        with self._lock:
            now = time.monotonic()
            settling, self._settling = self._settling, []
            for limit, line in settling:
                if line.settled():
                    line.show_link()
                elif now < limit:
                    self._settling.append((limit, line))
            still = []
            for limit, line in self._waiting:
                if not line.lacks_link():
                    line.show_link()
                    self._settling.append((limit, line))
                elif time.monotonic() < limit:
                    still.append((limit, line))
                else:
                    self._slow = True
            self._waiting = still

    def wait(self) -> None:
        """Blocks until no link is missing. Bounded, shorter once the store has shown to be slow.

        For the end of a cell: calls within one do not wait, but who saves the notebook then, or
        stops listening as nbconvert does, has the link.
        """
        limit = time.monotonic() + (_SLOW_LIMIT if self._slow else _LIMIT)
        while self._waiting and time.monotonic() < limit:
            self.look()
            if self._waiting:
                self._waiting[0][1].await_news(LOOK)
