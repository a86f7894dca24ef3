"""Tensors: torch's own reduction, with storages as buffers that can travel out of band.

Working on storages keeps what torch keeps (parameters, subclasses, sparse and quantized tensors,
views, tied weights). This module never imports torch: it is given it.
"""

from __future__ import annotations

import pickle
from types import ModuleType
from typing import Any, Literal

from . import rebuild

Cuda = Literal["cpu", "error"]


class Handle:
    """One storage of a dump, and which of its bytes the dump needs.

    Only storages that tensors hold have parts; where a program sends the storage itself, all of
    it is needed.
    """

    __slots__ = ("_parts", "_whole", "buffer", "storage")

    def __init__(self, storage: Any) -> None:
        self.storage = storage
        self.buffer: pickle.PickleBuffer | None = None
        self._parts: list[tuple[int, int]] = []
        self._whole = False

    def need(self, begin: int, end: int) -> None:
        """Bytes from begin to end are read by some tensor."""
        self._parts.append((begin, end))

    def need_all(self) -> None:
        self._whole = True

    def pieces(self, view: memoryview) -> tuple[list[memoryview | int], int]:
        """The storage as parts to send and holes (ints) between them; and the bytes to send."""
        if self._whole:
            return [view], view.nbytes
        pieces: list[memoryview | int] = []
        at = sent = 0
        for begin, end in sorted(self._parts):
            begin = max(begin, at)
            if end <= begin:
                continue
            if begin > at:
                pieces.append(begin - at)
            pieces.append(view[begin:end])
            sent += end - begin
            at = end
        if at < view.nbytes:
            pieces.append(view.nbytes - at)
        return pieces, sent


class Typed:
    """A storage as torch's older reductions name it: with a dtype."""

    __slots__ = ("dtype", "handle")

    def __init__(self, handle: Handle, dtype: Any) -> None:
        self.handle = handle
        self.dtype = dtype


class CudaTensorError(pickle.PicklingError):
    """A tensor on a GPU where only CPU tensors can be sent."""


class TensorReducer:
    """The reductions of one dump. Handles live as long as it does: the stream refers to them."""

    def __init__(self, torch: ModuleType, cuda: Cuda) -> None:
        self._torch = torch
        self._cuda = cuda
        self._handles: dict[int, Handle] = {}
        self._of_buffer: dict[int, Handle] = {}
        utils = torch._utils
        self._plain = {utils._rebuild_tensor_v2, utils._rebuild_tensor_v3, utils._rebuild_qtensor}
        self._with_type = torch._tensor._rebuild_from_type_v2

    def handle_of(self, buffer: pickle.PickleBuffer) -> Handle | None:
        """The storage a buffer was made of."""
        return self._of_buffer.get(id(buffer))

    def reduce_tensor(self, tensor: Any) -> Any:
        """Reduction of any ``torch.Tensor``; raises CudaTensorError."""
        if self._cuda == "error" and tensor.device.type == "cuda":
            raise CudaTensorError(f"a tensor on {tensor.device} cannot be sent")
        reduced = tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        if not isinstance(reduced, tuple):
            return reduced
        make, args, *rest = reduced
        if make is self._with_type and args[0] in self._plain:
            inner = self._over_handle(tensor, args[2])
            return make, (args[0], args[1], inner, *args[3:]), *rest
        if make in self._plain:
            return make, self._over_handle(tensor, args), *rest
        return reduced

    def reduce_handle(self, handle: Handle) -> Any:
        """The bytes of a storage, on the CPU."""
        storage = handle.storage
        if storage.device.type != "cpu":
            storage = handle.storage = storage.cpu()
        if storage.nbytes() == 0:
            return rebuild.storage, (b"",)
        torch = self._torch
        flat = torch.empty(0, dtype=torch.uint8).set_(storage)
        handle.buffer = pickle.PickleBuffer(flat.numpy())
        self._of_buffer[id(handle.buffer)] = handle
        return rebuild.storage, (handle.buffer,)

    def reduce_typed(self, typed: Typed) -> Any:
        return rebuild.typed_storage, (typed.handle, typed.dtype)

    def reduce_own_untyped(self, storage: Any) -> Any:
        """A storage that the program itself refers to."""
        handle = self._handle(storage)
        handle.need_all()
        return rebuild.same, (handle,)

    def reduce_own_typed(self, storage: Any) -> Any:
        handle = self._handle(storage._untyped_storage)
        handle.need_all()
        return rebuild.typed_storage, (handle, storage.dtype)

    def _handle(self, storage: Any) -> Handle:
        # Python may have several objects for one storage; the storage's own address is one. The
        # handle keeps the storage alive, so the address is not given away during the dump.
        return self._handles.setdefault(storage._cdata, Handle(storage))

    def _over_handle(self, tensor: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        storage, offset, size, stride, *rest = args
        typed = isinstance(storage, self._torch.storage.TypedStorage)
        handle = self._handle(storage._untyped_storage if typed else storage)
        if all(size):
            reach = sum((n - 1) * step for n, step in zip(size, stride, strict=True)) + 1
            item = tensor.element_size()
            handle.need(offset * item, (offset + reach) * item)
        # Newer dtypes come with a plain storage, but torch's function wants a typed one for them
        # too (torch.save makes one on the way), of which it reads the bytes alone.
        dtype = storage.dtype if typed else self._torch.uint8
        return Typed(handle, dtype), offset, size, stride, *rest
