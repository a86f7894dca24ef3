"""The tracker's reader: one thread that takes packets off the sockets and does nothing else.

So a store that is slow never makes a rank's ``log_metric`` slow, and what a rank has sent is safe
from the rank's end.
"""

from __future__ import annotations

import os
import select
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from serverless_gpu.tracking import held
from serverless_gpu.tracking.packets import Assembler, Attach, Begin, Bye, End, Hello, packets

LOOK_S = 0.02  # how often one-way sockets are looked at; a rank's send wakes nobody
QUIET_S = 1.0  # without a message on them they are waited for, as others are
DRAIN_S = 0.5  # for ranks to end after the notebook, while their last metrics are still taken
LEAVE_S = 1.7  # from the notebook's end to the tracker's, whatever the store does
WAITING_MESSAGES = 1_000_000  # more, and the ranks wait for the store: memory has a bound
ANSWER_SEND_S = 5.0  # for a peer to take its answer

_PER_LOOK = 4000  # messages of one socket in a row: more than its buffer holds
_PACKET_LIMIT = 1 << 17


@dataclass(eq=False)
class Peer:
    """The other end of a connection."""

    sock: socket.socket
    assembler: Assembler = field(default_factory=Assembler)
    hello: Hello | None = None

    def send(self, message: object) -> None:
        """Errors: OSError if the peer has gone or does not read."""
        poller = select.poll()  # select() knows no descriptor above 1023
        try:
            poller.register(self.sock, select.POLLOUT)
        except ValueError:  # the reader has closed it
            raise BrokenPipeError("the peer has gone") from None
        for packet in packets(message):
            if not poller.poll(ANSWER_SEND_S * 1000):
                raise TimeoutError("the peer does not read its answers")
            self.sock.send(packet)


class Inbox:
    """Messages as (peer, message), in an order that keeps promises: a question comes after all
    that any rank had sent when it was asked.

    Threads: read() in a thread of its own; take() in the main thread; the lock inside is the
    tracker's only one.
    """

    def __init__(self, listener: socket.socket, notebook: int, on_late: Callable[[], None]) -> None:
        """``notebook`` is a pidfd. ``on_late`` is called in the reader's thread if the main thread
        has not called finished() within LEAVE_S after the notebook's end."""
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, None)
        self._selector.register(notebook, selectors.EVENT_READ, None)
        self._notebook = notebook
        self._on_late = on_late
        self._one_way: list[Peer] = []
        self._heard_at = 0.0  # monotonic seconds, on a one-way socket
        self._items: list[tuple[Peer, Any]] = []
        self._changed = threading.Condition()
        self._urgent = False
        self._asleep = False  # the main thread is to be told of anything that comes
        self._closed = False
        self._finished = threading.Event()
        self._left_at: float | None = None
        self.leaving = threading.Event()  # the notebook has ended or said bye

    def take(self, wait_s: float, *, idle: bool = False) -> list[tuple[Peer, Any]] | None:
        """Everything that has come: at once if somebody waits for what becomes of it, else after
        `wait_s`; if `idle`, that counts from the first thing that comes or from the notebook's end.
        None once nothing will come any more."""
        with self._changed:
            if idle:
                self._asleep = True
                self._changed.wait_for(lambda: self._items or self._closed or self.leaving.is_set())
                self._asleep = False
            self._changed.wait_for(lambda: self._urgent or self._closed, wait_s)
            items, self._items, self._urgent = self._items, [], False
            return None if self._closed and not items else items

    def finished(self) -> None:
        """The main thread has written everything."""
        self._finished.set()

    def read(self) -> None:
        """The thread's body."""
        while not self._finished.is_set():
            self._look()
            if self._left_at is None:
                continue
            elapsed = time.monotonic() - self._left_at
            if elapsed > DRAIN_S or not self._one_way:
                with self._changed:
                    self._closed = True
                    self._changed.notify()
            if elapsed > LEAVE_S:
                return self._on_late()

    def _look(self) -> None:
        one_way: list[tuple[Peer, Any]] = []
        questions: list[tuple[Peer, Any]] = []
        for key, _events in self._wait():
            if key.data in self._one_way:
                continue  # it is received from below, with the others
            if key.fd == self._notebook:
                self._selector.unregister(self._notebook)
                self._leave()
            elif isinstance(key.data, Peer):
                self._receive(key.data, one_way, questions)
        # Whoever asked just now may know, from another rank, of messages that were sent before on
        # a socket not accepted yet. So: questions first, then new peers, then all one-way sockets.
        self._accept(one_way, questions)
        with self._changed:
            full = len(self._items) > WAITING_MESSAGES
        if not full or questions:
            for peer in list(self._one_way):
                self._receive(peer, one_way, questions)
        if one_way:
            self._heard_at = time.monotonic()
        if one_way or questions:
            with self._changed:
                self._items += one_way
                self._items += questions
                self._urgent |= any(_somebody_waits(message) for _, message in questions)
                if self._urgent or self._asleep:
                    self._changed.notify()

    def _wait(self) -> list[tuple[selectors.SelectorKey, int]]:
        """Until there is something to do, or for LOOK_S where ranks may send without waking us."""
        if self.leaving.is_set():
            return self._selector.select(LOOK_S)
        if self._one_way and time.monotonic() < self._heard_at + QUIET_S:
            return self._selector.select(LOOK_S)
        watched = list(self._one_way)
        for peer in watched:
            self._selector.register(peer.sock, selectors.EVENT_READ, peer)
        found = self._selector.select()
        for peer in watched:
            self._selector.unregister(peer.sock)
        # Also if they are not received from now, since too much waits for the store.
        self._heard_at = time.monotonic()
        return found

    def _accept(self, one_way: list[Any], questions: list[Any]) -> None:
        while True:
            try:
                sock, _address = self._listener.accept()
            except OSError:  # none waits, or no descriptor is left for it
                return
            sock.setblocking(False)
            peer = Peer(sock)
            self._selector.register(sock, selectors.EVENT_READ, peer)
            self._receive(peer, one_way, questions)

    def _receive(self, peer: Peer, one_way: list[Any], questions: list[Any]) -> None:
        for _ in range(_PER_LOOK):
            try:
                packet = peer.sock.recv(_PACKET_LIMIT)
            except BlockingIOError:
                return
            except ConnectionResetError:
                continue  # it went with answers unread, which is told once, before what it sent
            except OSError:
                packet = b""
            if not packet:
                return self._forget(peer)
            try:
                message = peer.assembler.feed(packet)
            except Exception:  # not our packets: that peer is dropped, nobody else suffers
                return self._forget(peer)
            if message is None:
                continue
            if isinstance(message, Hello):
                peer.hello = message
                if message.kind == "data":
                    self._selector.unregister(peer.sock)
                    self._one_way.append(peer)
            elif isinstance(message, Bye):
                self._leave()
                return self._forget(peer)  # which tells that all before it is here
            elif isinstance(message, Attach):
                questions.append((peer, held.hold(message)))
            elif peer.hello is not None:
                (one_way if peer.hello.kind == "data" else questions).append((peer, message))

    def _forget(self, peer: Peer) -> None:
        if peer in self._one_way:
            self._one_way.remove(peer)
        else:
            self._selector.unregister(peer.sock)
        peer.sock.close()

    def _leave(self) -> None:
        if self._left_at is None:
            self._left_at = time.monotonic()
            self.leaving.set()
            with self._changed:
                self._changed.notify()


def _somebody_waits(message: object) -> bool:
    """Not for a run whose link is shown already, nor for one that no rank may ever ask for: making
    it would take the CPU from the very call that it is of."""
    if isinstance(message, Begin):
        return message.announced is None and not message.lazy
    if isinstance(message, End):
        return message.awaited
    return not isinstance(message, Attach)


def listen(path: str) -> socket.socket:
    """A listening socket that appears under its name only when it can be connected to."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    hidden = f"{path}.{os.getpid()}"
    sock.bind(hidden)
    sock.listen(1024)
    sock.setblocking(False)
    os.rename(hidden, path)
    return sock
