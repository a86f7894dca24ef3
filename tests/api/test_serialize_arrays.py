"""Arrays and tensors: out of band, shared where they were, private to each receiver."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pandas
import pytest
from serialize_peer import Notebook, Peer, through

from serverless_gpu import serialize

N = 100_000  # elements: large enough to travel out of band in any dtype but bits


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.close()


def mappings() -> int:
    """How many mappings of ours this process has."""
    return Path("/proc/self/maps").read_text().count("memfd:sgpu")


def test_a_large_array_is_in_the_memfd_and_not_in_the_frames() -> None:
    with serialize.dump(numpy.arange(N)) as payload:
        assert payload.fd >= 0
        assert sum(map(len, payload.frames)) < 2000
        assert 8 * N <= payload.nbytes < 8 * N + 2000


def test_small_things_need_no_memfd() -> None:
    with serialize.dump([1, "a", numpy.arange(100)]) as payload:
        assert payload.fd == -1


@pytest.mark.parametrize(
    "array",
    [
        numpy.arange(N, dtype="f4").reshape(100, -1),
        numpy.asfortranarray(numpy.arange(N).reshape(100, -1)),
        numpy.arange(2 * N)[::2],
        numpy.arange(3 * N).reshape(3, 100, -1).transpose(1, 0, 2),
        numpy.zeros(N, dtype=[("a", "i4"), ("b", "f8")]),
        numpy.array(["x" * 9] * N),
        numpy.array([{"a": 1}] * 3, dtype=object),
        numpy.arange(N).astype("datetime64[s]"),
    ],
    ids=["C", "Fortran", "strided", "transposed", "record", "text", "object", "dates"],
)
def test_arrays_of_all_forms_arrive_equal_and_writable(array: Any) -> None:
    loaded = through(array)
    assert loaded.dtype == array.dtype
    assert numpy.array_equal(loaded, array)
    assert loaded.flags.f_contiguous or not array.flags.f_contiguous
    loaded[0] = loaded[1]


def test_a_strided_array_travels_out_of_band_too() -> None:
    with serialize.dump(numpy.arange(2 * N)[::2]) as payload:
        assert payload.frames[0], "the pickle is so long that it lies in the memfd itself"
        assert payload.nbytes < 8 * N + 2000


def test_a_read_only_array_stays_read_only() -> None:
    array = numpy.arange(N)
    array.flags.writeable = False
    assert not through(array).flags.writeable


def test_receivers_write_without_seeing_each_other() -> None:
    array = numpy.zeros(N)
    payload = serialize.dump(array)
    first = serialize.load(payload.frames, os.dup(payload.fd))
    second = serialize.load(payload.frames, payload.detach())
    first += 1
    assert (first.sum(), second.sum(), array.sum()) == (N, 0, 0)


def test_memory_goes_when_the_last_array_of_a_payload_dies() -> None:
    before = mappings()
    first, second = through([numpy.zeros(N), numpy.ones(N)])
    assert mappings() == before + 1
    view = first[5:]
    del first, second
    assert mappings() == before + 1
    del view
    assert mappings() == before


def test_load_closes_the_memfd_even_if_it_fails() -> None:
    payload = serialize.dump(numpy.zeros(N))
    fd = payload.detach()
    with pytest.raises(Exception, match="unpack"):
        serialize.load([payload.frames[0], b""], fd)
    with pytest.raises(OSError):
        os.fstat(fd)


def test_a_payload_closes_its_memfd_once() -> None:
    payload = serialize.dump(numpy.zeros(N))
    fd = payload.fd
    payload.close()
    other = os.open("/dev/null", os.O_RDONLY)  # most likely the same number
    payload.close()
    os.fstat(other)
    os.close(other)
    assert payload.fd == -1
    assert fd >= 0


def test_dumping_keeps_nothing_of_what_was_dumped() -> None:
    class Watched(numpy.ndarray[Any, Any]):
        ended = False

        def __del__(self) -> None:
            Watched.ended = True

    gc.disable()
    try:
        watched = numpy.zeros(N).view(Watched)
        serialize.dump((len, (watched.base, [watched]), {})).close()
        del watched
        assert Watched.ended
    finally:
        gc.enable()


def test_long_bytes_and_text_arrive() -> None:
    value = {"bytes": os.urandom(N), "text": "é" * N, "array": bytearray(N)}
    assert through(value) == value


def test_frames_stay_small_with_thousands_of_large_arrays() -> None:
    arrays = [numpy.full(8200, i) for i in range(2500)]
    payload = serialize.dump(arrays)
    assert sum(map(len, payload.frames)) < 64 * 1024
    loaded = serialize.load(payload.frames, payload.detach())
    assert all((array == i).all() for i, array in enumerate(loaded))


def test_frames_stay_small_with_many_small_things() -> None:
    values = [f"value {i}" for i in range(N)]
    payload = serialize.dump(values)
    assert sum(map(len, payload.frames)) < 64 * 1024
    assert serialize.load(payload.frames, payload.detach()) == values


def test_data_frames_travel_out_of_band() -> None:
    frame = pandas.DataFrame({"x": numpy.arange(N), "y": ["a", "b"] * (N // 2)})
    payload = serialize.dump(frame)
    assert payload.fd >= 0
    assert len(payload.frames[0]) < 10_000
    loaded = serialize.load(payload.frames, payload.detach())
    pandas.testing.assert_frame_equal(loaded, frame)
    loaded.loc[0, "x"] = 7
    assert frame.loc[0, "x"] == 0


def test_arrow_tables_travel_out_of_band() -> None:
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table({"x": numpy.arange(N), "y": ["a", None] * (N // 2)})
    payload = serialize.dump(table)
    assert len(payload.frames[0]) < 10_000
    assert serialize.load(payload.frames, payload.detach()) == table


def test_a_mapped_file_is_mapped_again_and_not_sent(tmp_path: Path) -> None:
    numpy.arange(N).tofile(tmp_path / "train.bin")
    data = numpy.memmap(tmp_path / "train.bin", dtype="i8", mode="r", offset=80)
    with serialize.dump(data) as payload:
        assert payload.nbytes < 2000
    assert isinstance(through(data), numpy.memmap)
    assert numpy.array_equal(through(data), data)
    assert numpy.array_equal(through(data[7:]), data[7:])


def test_more_than_four_gigabytes_of_zeros_arrive(peer: Peer) -> None:
    # Holes and pages of zeros: the array is never touched here, and read at three places there.
    notebook = Notebook().cell("def look(a): return a.nbytes, int(a[0]), int(a[-1]), int(a[2**31])")
    array = numpy.zeros(2**32 + 10, dtype="u1")
    array[-1], array[2**31] = 3, 4
    if os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGESIZE") < 12 * 2**30:
        pytest.skip("needs 12 GB of free memory")
    assert peer.run(notebook.look, array) == (2**32 + 10, 0, 3, 4)


def test_bytes_of_more_than_two_gigabytes_arrive(peer: Peer) -> None:
    if os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGESIZE") < 12 * 2**30:
        pytest.skip("needs 12 GB of free memory")
    notebook = Notebook().cell("def make(n): return bytes(n) + b'end'")
    value = peer.run(notebook.make, 2**31 + 10)
    assert len(value) == 2**31 + 13
    assert value.endswith(b"\0end")


def test_the_largest_argument_is_named() -> None:
    notebook = Notebook().cell("""
        import numpy
        table = numpy.zeros(1_000_000)
        def train(model, data=None, *rest): return model
        def greedy(x): return table.sum()
        """)
    big = numpy.zeros(N)
    with serialize.dump((notebook.train, (1, big), {"x": 2})) as payload:
        assert payload.largest == ("data", 8 * N)
    with serialize.dump((notebook.train, (1, 2), {"x": [big]})) as payload:
        assert payload.largest == ("x", 8 * N)
    with serialize.dump((notebook.train, (1, 2, bytes(N)), {})) as payload:
        assert payload.largest and payload.largest[0] == "args[2]"
    with serialize.dump((notebook.greedy, (1,), {})) as payload:
        assert payload.largest == ("table (used by greedy)", 8_000_000)
    with serialize.dump((notebook.train, (1,), {})) as payload:
        assert payload.largest is None
