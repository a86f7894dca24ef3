"""The logs of ranks as the notebook shows them, and what they lack."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import format_ranks
from .errors.build import ranks_text

if TYPE_CHECKING:
    from .pool import Pool

#: Bytes of logs that a cell shows.
_MOST = 1 << 20


def folder(owner: Pool, call: int) -> Path:
    """Where the logs of a call are, if its ranks have written anything."""
    return Path(owner.core.log_path(call, 0)).parent


def folder_of_all(owner: Pool) -> Path:
    """Where each call has its folder."""
    return folder(owner, 0).parent


def lacking(owner: Pool, call: int) -> str:
    """What the logs of a call that has ended lack: a line with its end, "" if nothing."""
    losses = owner.core.log_losses().get(call, {})
    refused = sum(loss[0] for loss in losses.values())
    rotated = sum(loss[2] for loss in losses.values())
    parts = []
    if refused:
        why = {os.strerror(loss[1]) for loss in losses.values() if loss[0]}
        parts.append(
            f"{refused:,} bytes that could not be written ({', '.join(sorted(why))}; see df -h)"
        )
    if rotated:
        parts.append(f"{rotated:,} bytes between begin and end, for want of room")
    if not parts:
        return ""
    what = " and ".join(parts)
    whose = "The log of rank" if len(losses) == 1 else "The logs of ranks"
    verb = "lacks" if len(losses) == 1 else "lack"
    return f"{whose} {format_ranks(losses)} in {folder(owner, call)} {verb} {what}\n"


def of_last_call(owner: Pool, wanted: Collection[int] | None) -> str:
    """What ranks wrote in the last call that has logs, with the names of the files, an excerpt if
    it is long, and what is missing; "" if there are none. wanted: ranks; None: all."""
    found = [_number(path) for path in folder_of_all(owner).glob("*")]
    calls = {*found, *owner.core.log_losses()}
    if not calls:
        return ""
    call = max(calls)
    files: dict[int, list[Path]] = {}  # by rank, the parts of its log in their order
    for path in sorted(folder(owner, call).glob("rank-*.log*")):
        files.setdefault(_number(path), []).append(path)
    chosen = {rank: files[rank] for rank in sorted(files) if wanted is None or rank in wanted}
    text = lacking(owner, call)
    if files and (silent := set(wanted or ()) - set(files)):
        who = ranks_text(silent).capitalize()
        text += f"{who} wrote nothing in the last call that has logs; {ranks_text(files)} did.\n"
    for rank, parts in chosen.items():
        text += f"--- rank {rank} ({', '.join(map(str, parts))})\n"
        text += _excerpt(parts, _MOST // len(chosen))
    return text


def _number(path: Path) -> int:
    """Of `call-12` and `rank-3.log.1`: 12 and 3."""
    return int(path.name.partition(".")[0].rpartition("-")[2])


def _excerpt(parts: list[Path], most: int) -> str:
    """What the files hold; of more than `most` bytes a fifth from the begin, the rest from the
    end."""
    sizes = [path.stat().st_size for path in parts]
    if sum(sizes) <= most:
        return "".join(path.read_text(errors="replace") for path in parts)
    with open(parts[0], "rb") as f:
        head = f.read(most // 5)
    tail = b""
    for path in reversed(parts):
        room = most - len(head) - len(tail)
        if room <= 0:
            break
        with open(path, "rb") as f:
            f.seek(max(0, path.stat().st_size - room))
            tail = f.read() + tail
    left_out = sum(sizes) - len(head) - len(tail)
    note = f"\n… {left_out:,} bytes, all in the files named above\n"
    return head.decode(errors="replace") + note + tail.decode(errors="replace")
