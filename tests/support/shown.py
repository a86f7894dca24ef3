"""What a cell or a terminal shows of ranks' lines."""

from __future__ import annotations

import re


def ranks_of(text: str, line: str) -> list[int]:
    """The ranks under which `line` is shown. Lines merge as far as ranks are in step, which a busy
    machine decides; that each rank's line is there, once, is what counts."""
    ranks: list[int] = []
    for prefix in re.findall(rf"\[([\d,-]+)\] {re.escape(line)}", text):
        for part in prefix.split(","):
            first, _, last = part.partition("-")
            ranks += range(int(first), int(last or first) + 1)
    return sorted(ranks)


def frames_shown(error: BaseException) -> int:
    """How many lines of code a notebook shows for one of our errors."""
    blocks = error._render_traceback_()  # type: ignore[attr-defined]
    return sum(block.count("----> ") for block in blocks)
