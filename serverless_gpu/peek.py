"""Looks into the session's rank 0 for an editor: completions and help of names that live there.

Never in a hurry's way: while ranks are busy, or take longer than a moment, there is no answer.
"""

from __future__ import annotations

import threading
from typing import Any

from . import call, serialize
from .sessions import session

#: Seconds that an editor waits at most.
LIMIT_S = 0.5


def completions(code: str, cursor: int) -> list[tuple[int, int, str, str]]:
    """Completions of a cell's code at `cursor` (characters): start, end, text, type."""
    return _ask("complete", (code, cursor)) or []


def inspection(name: str, detail: int) -> dict[str, Any]:
    """The help of a name as a MIME bundle; empty if there is none."""
    return _ask("inspect", (name, detail)) or {}


def _ask(mode: str, question: Any) -> Any:
    """Rank 0's answer; None if it has none within the limit."""
    found = session().peer(0)
    if found is None or not call.one_call.acquire(blocking=False):
        return None
    owner, group = found
    ticket = None
    try:
        payload = serialize.dump(question, what="question")
        context = call.context(owner, group, call.CallOptions(mlflow="off"), None)
        ticket = owner.core.begin_call(
            members=group.members,
            world=group.world,
            mode=mode,
            frames=[context, *payload.frames],
            fd=payload.detach(),
            timeout=None,
            grace=call.GRACE,
            output="none",
            output_ranks="",
            colour=False,
        )
        ended = ticket.wait(LIMIT_S)
    finally:
        if ticket is None or ticket.done:
            call.one_call.release()
        else:
            # The rank goes on thinking about it, also if a Stop has ended our wait. It is no reason
            # to interrupt it: only the next call waits for its end.
            threading.Thread(target=_await, args=[ticket], daemon=True).start()
    return _value(ticket) if ended else None


def _await(ticket: Any) -> None:
    try:
        ticket.wait()
    finally:
        call.one_call.release()


def _value(ticket: Any) -> Any:
    (one,) = ticket.outcomes()
    if one["state"] == "died":
        return None
    answer = serialize.load(one["frames"], one["fd"])
    return answer if one["state"] == "returned" else None
