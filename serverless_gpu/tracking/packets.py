"""The messages between notebook, ranks and tracker, and how they are cut into packets.

The transport is ``AF_UNIX SOCK_SEQPACKET``: a packet that ``send`` has accepted is in the operating
system's hands, so the SIGKILL of its sender loses nothing, and neither a SIGKILL nor a
KeyboardInterrupt leaves half a packet. The folder of the socket is private to the user (0700);
that is what makes pickles acceptable here.

A packet is one flag byte and a piece of a pickle. Messages longer than one packet are cut; a
receiver drops the beginning of a message whose sender gave up and began another one.

``Log`` is a bare tuple and not a class because it is the hot path: a NamedTuple pickles four times
slower.
"""

from __future__ import annotations

import pickle
from typing import Any, Literal, NamedTuple, TypeAlias

MetricRow: TypeAlias = tuple[Any, ...]
"""(key, value, timestamp in ms, step[, model_id, dataset_name, dataset_digest])"""

TagRow: TypeAlias = tuple[str, str]

Log: TypeAlias = tuple[str, str, list[MetricRow], list[TagRow]]
"""Rank -> tracker, one way: (tracking URI as the rank sees it, run id, metrics, tags)."""

PeerKind: TypeAlias = Literal["data", "calls", "notebook"]


class Hello(NamedTuple):
    """The first message of every connection. ``rank`` is -1 for the notebook."""

    kind: PeerKind
    call: str
    rank: int


class Note(NamedTuple):
    """Rank -> tracker, one way: the user's code ended the call's run with this status."""

    status: str


class Ask(NamedTuple):
    """Rank -> tracker, answered by the Answer with the same number, after all that any rank had
    sent before is written. ``method`` is one of the store's, or begins with "!" (see runs.py)."""

    number: int
    uri: str
    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Answer(NamedTuple):
    """Tracker -> rank. ``error`` is raised in the caller if it is not None."""

    number: int
    error: BaseException | None
    value: Any


class Announced(NamedTuple):
    """A run that the notebook has shown a link to and the tracker is to make, see ahead.py."""

    run_id: str
    name: str
    experiment_id: str


class Begin(NamedTuple):
    """Notebook -> tracker: a call begins. Answered by Began once the run exists (``lazy``: once a
    rank has asked for it)."""

    call: str
    tracking_uri: str | None
    experiment: str
    experiment_id: str | None
    parent_run_id: str | None
    run_id: str | None
    run_name: str | None
    protected: tuple[str, ...]
    tags: dict[str, str]
    lazy: bool
    cwd: str
    environment: dict[str, str]
    started_ms: int
    announced: Announced | None = None


class Began(NamedTuple):
    """Tracker -> notebook: what became of a Begin; sent again when the run gets its name.
    ``names``: told once, for runs of the same place that the notebook may announce."""

    call: str
    info: dict[str, Any] | None
    error: str | None
    names: tuple[str, ...] = ()


class End(NamedTuple):
    """Notebook -> tracker: a call is over. Answered by Ended, after all that ranks had sent.

    ``run_id`` and ``tracking_uri`` are what the notebook knows, for a tracker that never saw the
    Begin. ``awaited``: the notebook does nothing else until the answer is there.
    """

    call: str
    status: str
    tags: dict[str, str]
    run_id: str | None
    tracking_uri: str | None
    ended_ms: int
    awaited: bool


class Ended(NamedTuple):
    """Tracker -> notebook. ``error``: one line about what could not be written."""

    call: str
    error: str | None


class Attach(NamedTuple):
    """Notebook -> tracker, one way: an artifact of the call's run, given as text or as the path of
    a file, or of a folder of logs, that stays until the call has ended. ``artifact_file`` is the
    folder in the run for a path. ``held``: files of the folder, kept open by the tracker, since the
    folder goes with the notebook."""

    call: str
    artifact_file: str
    text: str | None
    path: str | None
    held: tuple[tuple[str, int], ...] = ()


class Bye(NamedTuple):
    """Notebook -> tracker: write what there is, mark open runs KILLED, end. Answered by the end of
    the connection, once all before it has been received."""


PACKET_BYTES = 60_000  # well below any system's limit for one packet

_WHOLE, _FIRST, _MIDDLE, _LAST = b"0", b"1", b"2", b"3"


def packets(message: object) -> list[bytes]:
    """The packets of a message, to be sent in this order over one socket."""
    data = pickle.dumps(message, 5)
    if len(data) <= PACKET_BYTES:
        return [_WHOLE + data]
    pieces = [data[at : at + PACKET_BYTES] for at in range(0, len(data), PACKET_BYTES)]
    return [_FIRST + pieces[0], *(_MIDDLE + piece for piece in pieces[1:-1]), _LAST + pieces[-1]]


class Assembler:
    """Puts the packets of one socket together again."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def feed(self, packet: bytes) -> Any:
        """The message that this packet completes, else None."""
        flag = packet[:1]
        if flag == _WHOLE:
            self._pieces.clear()
            return pickle.loads(memoryview(packet)[1:])
        if flag == _FIRST:
            self._pieces = [packet[1:]]
            return None
        if not self._pieces:  # the rest of a message whose beginning was dropped
            return None
        self._pieces.append(packet[1:])
        if flag != _LAST:
            return None
        data = b"".join(self._pieces)
        self._pieces.clear()
        return pickle.loads(data)
