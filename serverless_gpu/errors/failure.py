"""What a rank reports about its end: plain values that travel, and exceptions made of them."""

from __future__ import annotations

import signal
import sys
import types
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .. import _core
from . import pressure


@dataclass(frozen=True)
class Frame:
    """One line of a traceback, with the lines around it.

    label: what a notebook calls the file (``Cell In[3]``), "" to let the reader find out.
    first: the number of the first of ``lines``; those have no line ends.
    ours: it belongs to what runs user code, and is shown only by ``%xmode Verbose``.
    left_out: how many frames before it are not told, as they are too many or at one place.
    """

    filename: str
    line: int
    function: str
    label: str = ""
    first: int = 0
    lines: tuple[str, ...] = ()
    ours: bool = False
    left_out: int = 0


@dataclass(frozen=True)
class Link:
    """One exception of a chain.

    relation: how the next one came out of it. below: lines under its message, as of its notes.
    """

    kind: str
    message: str
    frames: tuple[Frame, ...] = ()
    relation: str = ""
    below: tuple[str, ...] = ()

    def shown(self) -> tuple[Frame, ...]:
        """The frames of the user and of libraries; the innermost one if there is none."""
        return tuple(frame for frame in self.frames if not frame.ours) or self.frames[-1:]


@dataclass(frozen=True)
class RankFailure:
    """An exception that ended a call on one rank.

    kind: the name of its type, with the module unless it is the notebook or builtin.
    message: ``str`` of it, cut at 4,000 characters.
    traceback: the text Python would print, from the first frame of the user on; up to 64 KB.
    cause: the pickled pair (type, exception), or (type, None), or None, by what could be pickled.
    chain: the exception with its causes and contexts, oldest first.
    advice: one sentence of the notebook's on what to do, or nothing.
    """

    kind: str
    message: str
    traceback: str = ""
    cause: bytes | None = None
    chain: tuple[Link, ...] = ()
    advice: str = ""

    def load_cause(self) -> tuple[type[BaseException] | None, BaseException | None]:
        """Type and exception as far as this process can load them."""
        from serverless_gpu import serialize

        if self.cause is None:
            return None, None
        try:
            kind, error = serialize.loads_inline(self.cause)
        except Exception:  # a module that only ranks have: the text has to do
            return None, None
        return kind, error

    def exception(self) -> BaseException:
        """The exception, or a stand-in with its name and text; with the rank's traceback."""
        _, error = self.load_cause()
        chain = self.chain or (Link(self.kind, self.message),)
        before: BaseException | None = None
        relation = ""
        for link in chain:
            is_last = link is chain[-1]
            one = error if is_last and error is not None else RankException(link.kind, link.message)
            if relation == "cause":
                one.__cause__ = before
            else:
                one.__context__ = before
            before = one.with_traceback(_traceback(link.shown()))
            relation = link.relation
        assert before is not None
        return before


class RankException(Exception):
    """Stands in for an exception of a rank that could not be brought here.

    kind: the name of its type. message: its text.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(kind, message)
        self.kind = kind
        self.message = message

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}" if self.message else self.kind


@dataclass(frozen=True)
class RankDeath:
    """The end of a rank's process while it worked for a call.

    Either signal (its number) or exit_code is set.
    out_of_memory: whether the system killed it for want of memory; None if that is not known.
    machine_out_of_memory: the system killed some process of the machine at that time.
    memory_limit, memory_peak: of its cgroup, and what it held at most, in bytes; 0: not known.
    limits: those that it had.
    program: path of what it had become by an exec.
    """

    pid: int
    signal: int | None = None
    exit_code: int | None = None
    out_of_memory: bool | None = None
    machine_out_of_memory: bool = False
    memory_limit: int = 0
    memory_peak: int = 0
    limits: pressure.Limits = pressure.NO_LIMITS
    program: str = ""

    @property
    def signal_name(self) -> str | None:
        """``SIGKILL``, or ``signal 40`` for one without a name."""
        if self.signal is None:
            return None
        try:
            return signal.Signals(self.signal).name
        except ValueError:
            return f"signal {self.signal}"

    @property
    def lost_channel(self) -> bool:
        """It ended itself, since its own code had closed its channel to the notebook."""
        return self.signal == _core.CHANNEL_LOST

    def describe(self) -> str:
        """What happened, for after ``rank 3 ``."""
        if self.lost_channel:
            return f"(pid {self.pid}) had to end: its code closed descriptors that the rank needs"
        if self.program:
            return f"(pid {self.pid}) was replaced by another program: {self.program}"
        if self.signal is None:
            return f"(pid {self.pid}) ended with exit code {self.exit_code}"
        text = f"(pid {self.pid}) was killed by {self.signal_name}"
        if not self.out_of_memory:
            return text
        facts = []
        if self.memory_limit:
            facts.append(f"cgroup limit {pressure.size(self.memory_limit)}")
        if self.memory_peak:
            facts.append(f"the rank held up to {pressure.size(self.memory_peak)}")
        return f"{text}: the system was out of memory" + (f" ({'; '.join(facts)})" if facts else "")

    def advice(self) -> str:
        """One sentence on what to do, or nothing."""
        if self.lost_channel:
            return (
                "os.closerange does that, and what turns a process into a daemon: close only "
                "descriptors that your own code has opened."
            )
        if self.program:
            return (
                "os.exec* does that, in the process of the rank, which cannot answer any more: run "
                "programs by subprocess."
            )
        if self.signal is None:
            return "It left by os._exit, or a library ended the process: see the rank's output."
        if self.signal == signal.SIGKILL:
            return self._advice_on_a_kill()
        if special := pressure.of_death(self.signal, self.limits):
            return special
        if self.signal in (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGABRT):
            return "Native code failed (a C extension, CUDA, NCCL): see the rank's output."
        return ""

    def _advice_on_a_kill(self) -> str:
        if self.out_of_memory:
            return "Use less memory per rank: a smaller batch, fewer ranks, or fewer workers."
        if self.machine_out_of_memory:
            return (
                "The machine ran out of memory meanwhile: most likely it was that (dmesg names "
                "whom it killed). Try a smaller batch, fewer ranks, or fewer workers."
            )
        if self.out_of_memory is None:
            return "If nobody sent it, memory ran out: try a smaller batch, or see dmesg."
        held = f" (it held up to {pressure.size(self.memory_peak)})" if self.memory_peak else ""
        return (
            f"Not for want of memory{held}: somebody sent it, by kill -9, a job scheduler, an "
            "administrator, or code of the rank."
        )


def first_line(rank: int, failure: RankFailure) -> str:
    """``rank 3: ValueError: bad batch``; as many lines as the message has."""
    if failure.kind == "SystemExit":
        return f"rank {rank} called sys.exit({failure.message})"
    return f"rank {rank}: {failure.kind}" + (f": {failure.message}" if failure.message else "")


def format_ranks(ranks: Iterable[int]) -> str:
    """``0-2,4``: the one text form of a set of ranks."""
    parts: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if parts and rank == parts[-1][-1] + 1:
            parts[-1].append(rank)
        else:
            parts.append([rank])
    return ",".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)


def parse_ranks(text: str) -> list[int]:
    """The ranks of `0-2,4`, in the order written. REQUIRES: text that the magics have checked."""
    ranks: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        ranks.extend(range(int(first), int(last or first) + 1))
    return ranks


def _here() -> Any:
    return sys._getframe()


def _traceback(frames: tuple[Frame, ...]) -> types.TracebackType | None:
    """A traceback that shows these frames wherever Python shows tracebacks.

    Its frames are those of an empty function under other names: nothing of the rank is in them.
    """
    result: types.TracebackType | None = None
    for frame in reversed(frames):
        code = _without_columns(_here.__code__).replace(
            co_filename=frame.filename, co_name=frame.function, co_firstlineno=frame.line
        )
        made = types.FunctionType(code, {"sys": sys, "__name__": "rank"})()
        # A place that the code has: IPython's look for the node at another one never ends.
        result = types.TracebackType(result, made, 0, frame.line)
    return result


def _without_columns(code: types.CodeType) -> types.CodeType:
    """The same code, all of it in its first line, with no column that could be underlined."""
    if sys.version_info < (3, 11):
        return code
    units = len(code.co_code) // 2
    entries = [min(8, units - at) for at in range(0, units, 8)]
    # Of CPython's Objects/locations.md: entries of 1 to 8 units, kind 13 (a line, no columns), and
    # by how much the line changes.
    table = b"".join(bytes((0x80 | 13 << 3 | length - 1, 0)) for length in entries)
    return code.replace(co_linetable=table)
