"""What the tracker receives."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from serverless_gpu.tracking import inbox as inbox_module
from serverless_gpu.tracking.inbox import Inbox, listen
from serverless_gpu.tracking.packets import Bye, Hello, Note, packets

from .support import LIMIT_S, wait_until


def test_what_a_peer_sent_is_there_though_it_went_with_answers_unread(tmp_path: Path) -> None:
    listener = listen(str(tmp_path / "inbox"))
    myself = os.pidfd_open(os.getpid())
    inbox = Inbox(listener, myself, lambda: None)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sender:
        sender.connect(str(tmp_path / "inbox"))
        for message in (Hello("calls", "call", 0), Note("KILLED")):
            sender.send(packets(message)[0])
        inbox._look()
        [(peer, first)] = inbox.take(0) or []
        assert first == Note("KILLED")
        peer.sock.send(b"an answer")
        sender.send(packets(Note("FAILED"))[0])
    inbox._look()
    assert [message for _, message in inbox.take(0) or []] == [Note("FAILED")]
    os.close(myself)
    listener.close()


@pytest.fixture
def reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Inbox]:
    """An inbox whose reader waits for everything, as after a quiet time, and looks for nothing."""
    monkeypatch.setattr(inbox_module, "QUIET_S", -1.0)
    listener = listen(str(tmp_path / "inbox"))
    myself = os.pidfd_open(os.getpid())
    inbox = Inbox(listener, myself, lambda: None)
    reader = threading.Thread(target=inbox.read)
    reader.start()
    yield inbox
    with connected(tmp_path) as sender:
        sender.send(packets(Bye())[0])
        inbox.finished()
        reader.join(LIMIT_S)
    assert not reader.is_alive()
    os.close(myself)
    listener.close()


def connected(folder: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.connect(str(folder / "inbox"))
    return sock


def test_who_sleeps_is_woken_by_what_nobody_waits_for(reading: Inbox, tmp_path: Path) -> None:
    taken: list[Any] = []

    def take() -> None:
        for _ in range(3):
            taken.append(reading.take(0, idle=True))

    sleeper = threading.Thread(target=take)
    with connected(tmp_path) as rank:
        rank.send(packets(Hello("calls", "data", 0))[0])
        sleeper.start()
        for n in range(2):
            rank.send(packets(Note(f"{n}"))[0])
            wait_until(lambda n=n: len(taken) > n, "the note to be taken")
    with connected(tmp_path) as notebook:
        notebook.send(packets(Bye())[0])
        sleeper.join(LIMIT_S)
    assert [[message for _, message in items] for items in taken[:2]] == [[Note("0")], [Note("1")]]
    assert len(taken) == 3, "the notebook's end woke nobody"
