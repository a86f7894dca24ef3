"""Objects to frames and one memfd, and back."""

from __future__ import annotations

import os
import pickle
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pickle import PickleBuffer
from types import TracebackType
from typing import Any

from serverless_gpu import _core

from . import arguments, blame
from .reducers import DISPATCH_TABLE, LARGE, Reducers
from .tensors import Cuda

# Both frames together stay below 64 KB: a message takes them with room to spare.
_STREAM_LIMIT = 48 * 1024
_SIZES_LIMIT = 1024  # sizes in the second frame (8 KB); more go into the memfd
_ALIGNMENT = 4096  # of every item in the memfd, as runtime/shared_buffer.h lays them out
_THREADS = min(8, len(os.sched_getaffinity(0)))
_PLAIN = (type(None), bool, int, float)
_COUNTS = struct.Struct("<QQ")  # number of buffers; bytes of the stream in the memfd, or 0


@dataclass(frozen=True, eq=False)
class Payload:
    """A dumped object. Owns the memfd until ``close``, ``detach`` or the end of a ``with``.

    frames: the pickle (empty if it lies in the memfd) and the layout of the memfd; below 64 KB.
    fd: the sealed memfd with all that is large, -1 if nothing is. Many receivers may map it.
    nbytes: bytes to send, in frames and memfd together.
    largest: of a call, the name and the bytes of its largest argument; None below 64 KB.
    """

    frames: list[bytes]
    fd: int
    nbytes: int
    largest: tuple[str, int] | None = None

    def detach(self) -> int:
        """Hands the memfd over to the caller, who closes it (or passes it to ``load``)."""
        fd = self.fd
        object.__setattr__(self, "fd", -1)
        return fd

    def close(self) -> None:
        """Closes the memfd. Receivers that have mapped it keep what they have."""
        fd = self.detach()
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Payload:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class _Pieces:
    """The file a pickler writes to. A long ``bytes`` in the object is kept, not copied."""

    def __init__(self, limit: float = float("inf")) -> None:
        self._limit = limit
        self.pieces: list[bytes] = []
        self.size = 0
        self.beside = 0  # bytes of buffers that travel beside the stream

    def sent(self) -> int:
        return self.size + self.beside

    def write(self, piece: Any) -> None:
        # A bytearray may change before it is sent, and a memoryview's owner too.
        kept = piece if type(piece) is bytes else bytes(piece)
        self.pieces.append(kept)
        self.size += len(kept)
        if self.size > self._limit:
            raise pickle.PicklingError(f"larger than {self._limit:,} bytes")


class _Pickler(pickle.Pickler):
    dispatch_table = DISPATCH_TABLE

    def __init__(self, file: Any, reducers: Reducers, buffer_callback: Any = None) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffer_callback)
        self.reducer_override = reducers.reduce  # type: ignore[method-assign]


class _Dump:
    """One dump: the stream, and the buffers that travel beside it."""

    def __init__(self, cuda: Cuda) -> None:
        self.reducers = Reducers(cuda)
        self.stream = _Pieces()
        self.buffers: list[PickleBuffer] = []
        self.views: list[memoryview] = []

    def pickle(self, obj: object) -> arguments.MarkedCall | None:
        call = None
        if arguments.is_call(obj):
            obj = call = arguments.MarkedCall(obj, self.stream.sent)  # type: ignore[arg-type]
            self.reducers.add(arguments.MarkedCall, arguments.MarkedCall.reduce)
            self.reducers.add(arguments.Mark, call.reduce_mark)
        _Pickler(self.stream, self.reducers, self._stays_in_band).dump(obj)
        return call

    def _stays_in_band(self, buffer: PickleBuffer) -> bool:
        view = buffer.raw()
        if view.nbytes < LARGE:
            return True
        self.buffers.append(buffer)
        self.views.append(view)
        self.stream.beside += view.nbytes
        return False

    def pack(self) -> tuple[list[bytes], int, int]:
        """Frames, memfd, and the number of bytes in both."""
        items: list[Any] = []
        total = self.stream.size
        for buffer, view in zip(self.buffers, self.views, strict=True):
            handle = self.reducers.tensors and self.reducers.tensors.handle_of(buffer)
            pieces, count = handle.pieces(view) if handle else ([view], view.nbytes)
            items.append(pieces)
            total += count
        sizes = struct.pack(f"<{len(self.views)}Q", *(view.nbytes for view in self.views))
        if len(self.views) > _SIZES_LIMIT:
            items.insert(0, sizes)
            sizes = b""
        stream = b""
        in_memfd = 0
        if self.stream.size > _STREAM_LIMIT:
            in_memfd = self.stream.size
            items.append(self.stream.pieces)
        else:
            stream = b"".join(self.stream.pieces)
        if not items:
            return [stream, b""], -1, total
        fd, _ = _core.share(items, _THREADS)
        return [stream, _COUNTS.pack(len(self.views), in_memfd) + sizes], fd, total


def dump(
    obj: object,
    *,
    what: str = "value",
    cuda: Cuda = "cpu",
    variables: Mapping[str, Any] | None = None,
) -> Payload:
    """Takes the object apart. The caller owns the payload's memfd.

    A call, ``(function, args, kwargs, ...)``, goes through one pickle, so what its parts share
    stays shared. what: how an error calls the object. cuda: tensors on a GPU are moved to the CPU,
    or are an error. variables: a dict in it, whose values an error calls by their keys. Raises
    UnpicklableError, which names what cannot be sent; OSError if there is no memory.
    """
    if type(obj) in _PLAIN or (type(obj) is dict and not obj):  # results of most quick calls
        stream = pickle.dumps(obj, 5)
        if len(stream) <= _STREAM_LIMIT:
            return Payload([stream, b""], -1, len(stream))
    work = _Dump(cuda)
    problem = None
    try:
        call = work.pickle(obj)
    except Exception as error:
        problem = blame.explain(obj, what, cuda, error, variables)
    if problem is not None:
        raise problem  # out here: the frames of the first error would keep all they hold alive
    frames, fd, total = work.pack()
    return Payload(frames, fd, total, call.largest() if call and total >= LARGE else None)


def load(frames: Sequence[bytes], fd: int) -> Any:
    """The object of a dump; takes the memfd over and closes it, whatever happens.

    Arrays and tensors that travelled in the memfd are views of a private mapping: writable without
    anybody else seeing it, and they keep the mapping until the last of them dies. Raises what
    unpickling raises (ModuleNotFoundError, AttributeError, ...).
    """
    if fd < 0:
        return pickle.loads(frames[0])
    try:
        mapping = memoryview(_core.PrivateMapping(fd))
    finally:
        os.close(fd)
    count, in_memfd = _COUNTS.unpack_from(frames[1])
    items = _Items(mapping)
    sizes = items.take(8 * count) if count > _SIZES_LIMIT else frames[1][_COUNTS.size :]
    buffers = [items.take(size) for size in struct.unpack(f"<{count}Q", sizes)]
    stream = items.take(in_memfd) if in_memfd else frames[0]
    return pickle.loads(stream, buffers=buffers)


class _Items:
    """The items of a memfd, in order: their sizes tell where they are."""

    def __init__(self, mapping: memoryview) -> None:
        self._mapping = mapping
        self._at = 0

    def take(self, size: int) -> memoryview:
        item = self._mapping[self._at : self._at + size]
        self._at += -(-size // _ALIGNMENT) * _ALIGNMENT
        return item


def dumps_inline(obj: object, *, limit: float = float("inf")) -> bytes:
    """The object as one string of bytes, large arrays included.

    Raises what pickling raises, PicklingError if there would be more than ``limit`` bytes.
    """
    stream = _Pieces(limit)
    _Pickler(stream, Reducers()).dump(obj)
    return b"".join(stream.pieces)


def loads_inline(data: bytes) -> Any:
    """The object of ``dumps_inline``."""
    return pickle.loads(data)
