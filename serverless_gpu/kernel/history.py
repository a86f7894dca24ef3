"""The history of cells, as IPython keeps it, but no cell waits for the disk.

IPython begins to write a cell into its database when the cell begins, and until the disk has
confirmed that, the next cell cannot begin: milliseconds, on a busy disk many.

Threads: as IPython's: the main thread, and one that saves.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from typing import Any

from IPython.core.history import HistoryManager

#: Seconds for which cells are gathered before they are written: a quick cell does not share the CPU
#: with that, and quick ones in a row are written together. A cell that ends the kernel within this
#: time is in no history.
_GATHER_S = 0.05


class CellHistory(HistoryManager):
    """IPython's manager, whose lock is held only while the cells to be written are taken."""

    def __init__(self, *args: Any, **traits: Any) -> None:
        self._writing = threading.Lock()  # held until the disk has confirmed
        super().__init__(*args, **traits)

    def writeout_cache(self, conn: sqlite3.Connection | None = None) -> None:
        """Writes what there is. On return that which the other thread was writing is there, too."""
        if not self.enabled:
            return
        if conn is not None:  # only the thread that saves has one
            self._gather()
        with self._writing:
            with self.db_input_cache_lock:
                inputs, self.db_input_cache = self.db_input_cache, []
            with self.db_output_cache_lock:
                outputs, self.db_output_cache = self.db_output_cache, []
            if inputs:
                self._write(conn or self.db, "INSERT INTO history VALUES (?, ?, ?, ?)", inputs)
            if outputs:
                self._write(conn or self.db, "INSERT INTO output_history VALUES (?, ?, ?)", outputs)

    def _write(self, db: sqlite3.Connection, insert: str, rows: list[tuple[Any, ...]]) -> None:
        with db:
            for row in rows:
                try:
                    db.execute(insert, (self.session_number, *row))
                except sqlite3.IntegrityError:  # cells are counted anew, so that number is taken
                    self.new_session(db)
                    db.execute(insert, (self.session_number, *row))

    def _gather(self) -> None:
        """Waits for more cells; not when the thread is asked to end, as it is before each fork."""
        flag: Any = self.save_flag
        me = threading.current_thread()
        until = time.monotonic() + _GATHER_S
        while (left := until - time.monotonic()) > 0 and flag.wait(left):
            flag.clear()
            # IPython 8 and 9 call it differently.
            if getattr(me, "_stop_now", False) or getattr(me, "stop_now", False):
                flag.set()  # the thread's own loop looks for it
                return
