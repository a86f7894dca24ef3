"""Rich output of ranks on the screen: each under the ranks that made it, updated in place."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass, field
from typing import Any

from .errors import format_ranks
from .hosts import Host

_DIM, _PLAIN = "\x1b[38;5;244m", "\x1b[0m"
#: Displays of earlier cells that ranks can still update.
_KEPT = 1000
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Place:
    """Where a call's displays go."""

    host: Host
    parent: Any
    world: int


@dataclass(eq=False)
class _Shown:
    """One display of a cell, shared by the ranks that made the same."""

    place: Place
    ranks: set[int]
    content: dict[str, Any]  # as ranks sent it
    display_id: str = field(
        default_factory=lambda: f"serverless-gpu-rank-{os.getpid()}-{next(_numbers)}"
    )
    caption_id: str = ""  # of the caption above it, if that is an output of its own


class Displays:
    """What ranks have displayed, and the names they gave it.

    Threads: one at a time.
    """

    def __init__(self) -> None:
        self._named: dict[tuple[int, str], _Shown] = {}  # by rank and the rank's display_id

    def show(
        self, cell: Cell, ranks: set[int], kind: str, content: dict[str, Any], name: str | None
    ) -> None:
        """A `display_data` or `update_display_data` that `ranks` sent alike, with the display_id
        that they gave it. An update of what was never displayed shows nothing, as in Jupyter."""
        if kind == "update_display_data":
            for shown, some in _by_display(ranks, lambda rank: self._named.get((rank, name or ""))):
                self._redraw(cell, shown, some, content)
            return
        cleared = ranks & cell.clear_next
        cell.clear_next -= cleared
        fresh = set(ranks)
        for shown, some in _by_display(cleared, cell.last.get):
            self._keep_name(self._redraw(cell, shown, some, content), some, name)
            fresh -= some
        if fresh:
            self._keep_name(self._new(cell, fresh, content, fresh), fresh, name)

    def clear(self, cell: Cell, ranks: set[int], wait: bool) -> None:
        """Clears the last display of these ranks only: what others have shown, and the text of all,
        is not theirs to take away."""
        if not wait:
            for shown, some in _by_display(ranks, cell.last.get):
                self._redraw(cell, shown, some, {"data": {}, "metadata": {}})
        cell.clear_next |= {rank for rank in ranks if rank in cell.last}

    def _new(self, cell: Cell, ranks: set[int], content: dict[str, Any], last: set[int]) -> _Shown:
        """A display below all others. last: the ranks whose last display it is."""
        shown = _Shown(cell.place, set(ranks), content)
        if _wants_own_caption(shown):
            shown.caption_id = f"{shown.display_id}-caption"
        for rank in last:
            cell.last[rank] = shown
        _publish(shown, "display_data", cell.place)
        return shown

    def _redraw(
        self, cell: Cell, shown: _Shown, ranks: set[int], content: dict[str, Any]
    ) -> _Shown:
        """Shows `content` in the place of what these ranks showed. If they are not all that share
        it, those with the lowest rank keep the place, so that ranks stand in order in the end, and
        the others get one below; in a later cell only what has changed moves there."""
        others, before = shown.ranks - ranks, shown.content
        if others and (min(others) < min(ranks) or shown.place is not cell.place):
            return self._split(cell, shown, ranks, content)
        shown.content = content
        if others:
            self._split(cell, shown, others, before)
        else:
            _publish(shown, "update_display_data", cell.place)
        return shown

    def _split(self, cell: Cell, shown: _Shown, ranks: set[int], content: dict[str, Any]) -> _Shown:
        """Gives some of the ranks that share a display one of their own, with the same names."""
        shown.ranks -= ranks
        _publish(shown, "update_display_data", cell.place)
        names = [key for key, one in self._named.items() if one is shown and key[0] in ranks]
        last = {rank for rank in ranks if cell.last.get(rank) is shown}
        own = self._new(cell, ranks, content, last)
        self._named.update(dict.fromkeys(names, own))
        return own

    def _keep_name(self, shown: _Shown, ranks: set[int], name: str | None) -> None:
        if name is None:
            return
        for rank in ranks:
            self._named.pop((rank, name), None)
            self._named[rank, name] = shown
        while len(self._named) > _KEPT:
            del self._named[next(iter(self._named))]


@dataclass
class Cell:
    """The displays of one call."""

    place: Place
    last: dict[int, _Shown] = field(default_factory=dict)  # by rank
    clear_next: set[int] = field(default_factory=set)  # whose next display replaces the last


def _by_display(ranks: set[int], find: Any) -> list[tuple[_Shown, set[int]]]:
    """The displays of these ranks, each with those of them that share it."""
    groups: dict[int, tuple[_Shown, set[int]]] = {}
    for rank in sorted(ranks):
        shown = find(rank)
        if shown is not None:
            groups.setdefault(id(shown), (shown, set()))[1].add(rank)
    return list(groups.values())


def _wants_own_caption(shown: _Shown) -> bool:
    """Pictures and the like cannot hold their caption; in text and HTML it takes less room."""
    place = shown.place
    if place.world == 1 or not place.host.rich:
        return False
    return not shown.content["data"].keys() <= {"text/plain", "text/html"}


def _publish(shown: _Shown, kind: str, place: Place) -> None:
    """As output of the cell that runs, wherever the display is: its id leads front ends there."""
    ranks = format_ranks(sorted(shown.ranks))
    data = shown.content["data"]
    if shown.caption_id:
        label = {"text/plain": f"[{ranks}]", "text/html": _label(ranks)} if data else {}
        _send(place, kind, {"data": label, "metadata": {}}, shown.caption_id)
    elif place.world > 1:
        data = _captioned(data, ranks, place.host.colour)
    metadata = shown.content.get("metadata", {})
    _send(place, kind, {"data": data, "metadata": metadata}, shown.display_id)


def _send(place: Place, kind: str, content: dict[str, Any], display_id: str) -> None:
    message = {**content, "transient": {"display_id": display_id}}
    place.host.message(place.parent, kind, message)


def _label(ranks: str) -> str:
    return f'<div style="opacity:.65;font-size:85%">[{ranks}]</div>'


def _captioned(data: dict[str, Any], ranks: str, colour: bool) -> dict[str, Any]:
    data = dict(data)
    plain, html = data.get("text/plain"), data.get("text/html")
    if isinstance(plain, str):
        prefix = f"{_DIM}[{ranks}]{_PLAIN} " if colour else f"[{ranks}] "
        data["text/plain"] = prefix + plain
    if isinstance(html, list):
        html = "".join(html)
    if isinstance(html, str):
        data["text/html"] = _label(ranks) + html
    return data
