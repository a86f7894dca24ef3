"""Where rich output of ranks goes on the screen: pure, with a host that keeps what it is sent."""

from __future__ import annotations

from typing import Any

from serverless_gpu.displays import Cell, Displays, Place


class Screen:
    """Displays by their id, in the order in which they came, as a front end holds them."""

    colour, rich, shows_late = False, True, True
    bytes_per_second, shown_bytes = 0, 1_000_000

    def __init__(self) -> None:
        self.shown: dict[str, dict[str, Any]] = {}
        self.parents: list[Any] = []

    def capture(self) -> Any:
        return None

    def stream(self, parent: Any, name: str, text: bytes) -> None:
        raise AssertionError("no text belongs here")

    def message(self, parent: Any, message_type: str, content: dict[str, Any]) -> None:
        self.parents.append(parent)
        name = content["transient"]["display_id"]
        assert (message_type == "display_data") == (name not in self.shown)
        self.shown[name] = content["data"]

    def texts(self) -> list[str]:
        return [str(data.get("text/plain", "")) for data in self.shown.values()]


def text(value: str, **more: str) -> dict[str, Any]:
    return {"data": {"text/plain": value, **more}, "metadata": {}}


def cell_of(screen: Screen, parent: str = "cell", world: int = 4) -> Cell:
    return Cell(Place(screen, parent, world))


def test_a_display_names_its_ranks_and_an_only_rank_needs_no_name() -> None:
    screen, displays = Screen(), Displays()
    displays.show(cell_of(screen), {0, 1, 3}, "display_data", text("x"), None)
    displays.show(cell_of(screen, world=1), {0}, "display_data", text("y"), None)
    assert screen.texts() == ["[0-1,3] x", "y"]


def test_a_picture_stays_as_it_is_under_a_caption_of_its_own() -> None:
    screen, displays = Screen(), Displays()
    figure = text("<Figure>", **{"image/png": "abc"})
    displays.show(cell_of(screen), {2}, "display_data", figure, None)
    caption, picture = screen.shown.values()
    assert caption["text/plain"] == "[2]"
    assert picture == figure["data"]


def test_an_update_of_some_ranks_parts_what_they_shared() -> None:
    screen, displays, first = Screen(), Displays(), None
    first = cell_of(screen)
    displays.show(first, {0, 1, 2, 3}, "display_data", text("same"), "name")
    displays.show(first, {1}, "update_display_data", text("other"), "name")
    assert screen.texts() == ["[0,2-3] same", "[1] other"]
    displays.show(first, {0, 2, 3}, "update_display_data", text("new"), "name")
    displays.show(first, {1}, "update_display_data", text("last"), "name")
    assert screen.texts() == ["[0,2-3] new", "[1] last"]


def test_displays_that_part_stand_in_rank_order() -> None:
    screen, displays = Screen(), Displays()
    cell = cell_of(screen)
    displays.show(cell, {0, 1, 2, 3}, "display_data", text("same"), "name")
    for rank in range(4):
        displays.show(cell, {rank}, "update_display_data", text(str(rank)), "name")
    assert screen.texts() == ["[0] 0", "[1] 1", "[2] 2", "[3] 3"]


def test_an_update_in_a_later_cell_takes_nothing_of_other_ranks_there() -> None:
    screen, displays = Screen(), Displays()
    displays.show(cell_of(screen, "first"), {0, 1}, "display_data", text("old"), "name")
    displays.show(cell_of(screen, "second"), {0}, "update_display_data", text("new"), "name")
    assert screen.texts() == ["[1] old", "[0] new"]


def test_a_display_that_was_parted_by_an_update_is_not_what_a_rank_clears() -> None:
    screen, displays = Screen(), Displays()
    cell = cell_of(screen)
    displays.show(cell, {0, 1}, "display_data", text("first"), "name")
    displays.show(cell, {1}, "display_data", text("second"), None)
    displays.show(cell, {0}, "update_display_data", text("new"), "name")
    displays.clear(cell, {1}, wait=False)
    assert screen.texts() == ["[0] new", "", "[1] first"]


def test_a_later_cell_updates_the_display_of_an_earlier_one() -> None:
    screen, displays = Screen(), Displays()
    displays.show(cell_of(screen, "first"), {0, 1}, "display_data", text("old"), "name")
    displays.show(cell_of(screen, "second"), {0, 1}, "update_display_data", text("new"), "name")
    assert screen.texts() == ["[0-1] new"]
    assert screen.parents == ["first", "second"], "nbclient drops what names another cell"


def test_an_update_of_what_was_never_displayed_shows_nothing() -> None:
    screen, displays = Screen(), Displays()
    displays.show(cell_of(screen), {0}, "update_display_data", text("x"), "unknown")
    assert not screen.shown


def test_clearing_takes_away_only_the_rank_s_own() -> None:
    screen, displays = Screen(), Displays()
    cell = cell_of(screen)
    displays.show(cell, {0, 1}, "display_data", text("same"), None)
    displays.clear(cell, {0}, wait=True)
    assert screen.texts() == ["[0-1] same"], "it waits for the next display"
    displays.show(cell, {0}, "display_data", text("next"), None)
    displays.clear(cell, {0}, wait=True)
    displays.show(cell, {0}, "display_data", text("last"), None)
    assert screen.texts() == ["[0] last", "[1] same"]
    displays.clear(cell, {1}, wait=False)
    assert screen.texts() == ["[0] last", ""]
