"""The file of what is kept, on a disk that is full."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from serverless_gpu.tracking import spool

URI = "http://127.0.0.1:1"


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Files may be no longer meanwhile: a write is cut there, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def kept(path: Path) -> list[dict[str, object]]:
    return [record for _, record in spool.records(path)]


def test_half_a_line_does_not_take_the_next_one_along(tmp_path: Path) -> None:
    mine = spool.Spool(URI, tmp_path)
    mine.keep(end=["first", "FINISHED", 1])
    assert mine.path is not None
    size = mine.path.stat().st_size
    with room_for(size + 10), pytest.raises(OSError, match="No space left"):
        mine.keep(end=["lost", "FINISHED", 2])
    with room_for(size + 10), pytest.raises(OSError, match="No space left"):
        spool.mark_written(mine.path, 0)
    mine.keep(end=["last", "FINISHED", 3])
    assert kept(mine.path) == [
        {"end": ["first", "FINISHED", 1]},
        {"end": ["last", "FINISHED", 3]},
    ]


@pytest.mark.parametrize("room", [0, 10], ids=["no byte", "a few bytes"])
def test_a_file_that_could_not_be_begun_is_begun_later(tmp_path: Path, room: int) -> None:
    mine = spool.Spool(URI, tmp_path)
    with room_for(room), pytest.raises(OSError):
        mine.keep(end=["lost", "FINISHED", 1])
    assert mine.path is None and list(tmp_path.iterdir()) == []
    mine.keep(end=["later", "FINISHED", 2])
    assert mine.path is not None
    assert (spool.uri_of(mine.path), kept(mine.path)) == (URI, [{"end": ["later", "FINISHED", 2]}])
