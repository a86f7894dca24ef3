"""Where code is, in the words a notebook shows: ``Cell In[3], line 4``."""

from __future__ import annotations

import os
import re
import sys
from typing import Any

_CELL = re.compile(r"^<ipython-input-(\d+)-\w+>$")
#: The number of code that is no cell of the notebook: what `session().run(...)` was given.
NO_CELL = 0


def cell_of(filename: str) -> str | None:
    """``Cell In[3]`` for the file name of a cell's code, ``session().run`` for code that is no cell
    of the notebook, else None."""
    named = _CELL.match(filename)
    if named and int(named[1]) == NO_CELL:
        return "session().run"
    shell: Any = getattr(sys.modules.get("IPython.core.getipython"), "get_ipython", lambda: None)()
    format_code_name = getattr(getattr(shell, "compile", None), "format_code_name", None)
    found = format_code_name(filename) if format_code_name else None
    if found:
        return " ".join(found)
    return f"Cell In[{named[1]}]" if named else None  # of a cell that another process has run


def file_of(filename: str) -> str:
    """A file name as short as it stays clear: relative if it is below the working folder."""
    try:
        relative = os.path.relpath(filename)
    except (OSError, ValueError):  # the working folder is gone
        return filename
    return filename if relative.startswith("..") or filename.startswith("<") else relative


def place(filename: str, line: int) -> str:
    """``Cell In[3], line 4`` or ``train.py:4``."""
    cell = cell_of(filename)
    return f"{cell}, line {line}" if cell else f"{file_of(filename)}:{line}"
