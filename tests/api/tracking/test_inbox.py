"""What the tracker receives."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from serverless_gpu.tracking.inbox import Inbox, listen
from serverless_gpu.tracking.packets import Hello, Note, packets


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
