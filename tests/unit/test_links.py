"""The end of a cell waits for the links of its runs, but not long for a server."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from serverless_gpu.links import LateLinks
from serverless_gpu.tracking.handle import REMOTE_LIMIT_S


class Line:
    """A status line without its link until `looks` more looks."""

    def __init__(self, looks: int, remote: bool, awaited: Callable[[], None]) -> None:
        self.run = SimpleNamespace(remote=remote)
        self.looks = looks
        self.looked_for_all = 0
        self.shown = 0
        self._awaited = awaited

    def look(self) -> None:
        self.looked_for_all += 1

    def lacks_link(self) -> bool:
        self.looks -= 1
        return self.looks >= 0

    def settled(self) -> bool:
        return False

    def show_link(self) -> None:
        self.shown += 1

    def await_news(self, limit_s: float) -> None:
        self._awaited()


def late(looks: int, *, remote: bool, since: float) -> tuple[LateLinks, Any, list[int]]:
    """Links that lack one, of a call whose ranks ended `since` seconds ago; and its waits."""
    waits: list[int] = []
    line: Any = Line(looks, remote, lambda: waits.append(1))
    links = LateLinks()
    links.add(line, time.monotonic() - since)
    return links, line, waits


def test_a_cell_ends_with_the_link_of_a_local_run_however_long_its_call_has_been_over() -> None:
    links, line, waits = late(3, remote=False, since=REMOTE_LIMIT_S)
    links.wait()
    assert (line.shown, len(waits)) == (1, 3)


def test_a_cell_ends_with_the_link_of_a_server_that_answers() -> None:
    links, line, waits = late(3, remote=True, since=0)
    links.wait()
    assert (line.shown, len(waits)) == (1, 3)


def test_a_server_that_has_had_its_time_holds_no_cell_and_its_link_comes_later() -> None:
    links, line, waits = late(2, remote=True, since=REMOTE_LIMIT_S)
    links.wait()
    assert (line.shown, len(waits)) == (0, 0)
    links.look()
    links.look()
    assert line.shown == 1


def test_one_look_at_what_the_tracker_has_told_serves_all_lines() -> None:
    links, first, _ = late(1, remote=False, since=0)
    others: list[Any] = [Line(looks, False, lambda: None) for looks in (0, 1, 2)]
    for line in others:
        links.add(line, time.monotonic())
    links.look()
    links.look()
    assert sum(line.looked_for_all for line in (first, *others)) == 2
    assert [line.shown for line in (first, *others)] == [1, 1, 1, 0]
