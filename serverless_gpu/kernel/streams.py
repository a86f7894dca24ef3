"""sys.stdout and sys.stderr of the kernel: text goes to the cell that it belongs to."""

from __future__ import annotations

import codecs
import io
import os
from typing import TYPE_CHECKING, Any

from serverless_gpu.kernel import cells

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Buffer


class CellStream(io.TextIOBase):
    """A text stream into the running cell.

    Threads: any; a write is never split, and writes of one thread keep their order.
    """

    def __init__(self, fd: int, name: str) -> None:
        super().__init__()
        self._fd = fd
        self.name = name
        self.mode = "w"
        self.buffer = _ByteStream(self)

    encoding = "utf-8"
    errors = "backslashreplace"
    newlines = None
    line_buffering = True
    write_through = True

    def write(self, text: str, /) -> int:
        """Append `text`. It is shown after 50 ms at the latest."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        kernel, cell = cells.running_kernel(), cells.current()
        if kernel is None or cell is None:
            # A forked child: the descriptor leads to the kernel, which reads it.
            os.write(self._fd, text.encode("utf-8", "backslashreplace"))
        else:
            kernel.write(self._fd, text, cell.handle)
        return len(text)

    def writelines(self, lines: Iterable[str], /) -> None:  # type: ignore[override]
        """Append all of `lines`; no separators are added."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Show what was written so far."""
        kernel = cells.running_kernel()
        if kernel is not None:
            kernel.flush()

    def fileno(self) -> int:
        """1 or 2. What is written there comes to the cell as well."""
        return self._fd

    def isatty(self) -> bool:
        """False."""
        return False

    def writable(self) -> bool:
        """True."""
        return True

    def close(self) -> None:
        """Nothing: the cells after this one want to write, too."""

    def reconfigure(self, **_settings: Any) -> None:
        """Accepted, as io.TextIOWrapper has it; encoding and buffering are not ours to change."""


class _ByteStream(io.BufferedIOBase):
    """What `sys.stdout.buffer` is: bytes, decoded as UTF-8 as they come."""

    def __init__(self, text: CellStream) -> None:
        super().__init__()
        self._text = text
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self.raw = self

    @property
    def name(self) -> str:
        return self._text.name

    def write(self, data: Buffer, /) -> int:
        raw = memoryview(data).tobytes()
        self._text.write(self._decoder.decode(raw))
        return len(raw)

    def flush(self) -> None:
        self._text.flush()

    def fileno(self) -> int:
        return self._text.fileno()

    def isatty(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        """Nothing, as for the text stream."""
