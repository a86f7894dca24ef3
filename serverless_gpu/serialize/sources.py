"""The source text of code that has no file: cells of a notebook, strings given to exec.

A traceback shows lines of such code only where ``linecache`` knows them, and ``inspect.getsource``
(Triton, torch.compile) works only there. So the text travels with the code and is entered into the
receiver's ``linecache``.
"""

from __future__ import annotations

import linecache

# More than this of one cell is data, not code: it is not worth sending with every call.
LIMIT = 256 * 1024

_texts: dict[str, tuple[list[str], str]] = {}  # name -> linecache's list of lines, the same joined


def text_of(filename: str) -> str | None:
    """The text behind a code object's file name if only this process knows it, else None.

    The same string object is returned as long as the source stays the same, so that one pickle
    holds it once.
    """
    entry = linecache.cache.get(filename)
    if entry is None or len(entry) != 4 or entry[1] is not None:
        return None  # unknown, not loaded yet, or a file that the receiver can read itself
    size, _, lines, _ = entry
    if size > LIMIT:
        return None
    known = _texts.get(filename)
    if known is None or known[0] is not lines:
        known = (lines, "".join(lines))
        _texts[filename] = known
    return known[1]


def enter(filename: str, text: str) -> None:
    """Makes the text known to ``linecache``, such that ``linecache.checkcache`` leaves it alone."""
    if text_of(filename) == text:
        return
    lines = text.splitlines(keepends=True)
    linecache.cache[filename] = (len(text), None, lines, filename)
    _texts[filename] = (lines, text)
