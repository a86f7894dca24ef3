"""What trackers that have ended could not write is taken up by the next tracker of the same store.

Exactly once: a file is written by whoever holds its lock, from where the one before has come to.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from serverless_gpu.tracking import spool
from serverless_gpu.tracking.replay import Replayed, replay
from serverless_gpu.tracking.trouble import impatient, refused, replay_command, why

SLICE_S = 1.0  # of writing, before ranks' questions are answered again
_REQUEST_S = 5.0  # for the store to answer


@dataclass
class _Claim:
    uri: str
    path: Path
    lock: int
    values: int = 0
    copied: int = 0
    refused: list[str] = field(default_factory=list)


class Leftovers:
    """Used by the tracker's main thread only. Owns the locks; they end with the process, too."""

    def __init__(self) -> None:
        self._claims: list[_Claim] = []
        self._seen: set[Path] = set()

    def look(self, uri: str) -> None:
        """Takes up what lies there for a store that answers. Never raises."""
        try:
            found = spool.files(uri)
        except OSError:
            return
        for path in found:
            if path in self._seen:
                continue
            try:
                self._claims.append(_Claim(uri, path, spool.claim(path)))
            except OSError:  # its notebook runs: perhaps no longer at the next look
                continue
            self._seen.add(path)

    def under_way(self) -> bool:
        """Whether write() has more to do."""
        return bool(self._claims)

    def write(self) -> tuple[str, str] | None:
        """Writes for SLICE_S. Gives (URI, one line) once a file is done with. Never raises."""
        if not self._claims:
            return None
        claim = self._claims[0]
        try:
            with impatient(_REQUEST_S):
                done = replay(claim.path, claim.uri, SLICE_S)
        except Exception as error:
            self._leave(claim)
            if refused(error):  # as a whole, so the user has to do something first
                text = f"{why(claim.uri, error)}; kept until you run: {replay_command(claim.path)}"
                return claim.uri, f"MLflow: {text}"
            self._seen.discard(claim.path)  # the store is away again
            return None
        return self._written(claim, done)

    def _written(self, claim: _Claim, done: Replayed) -> tuple[str, str] | None:
        claim.values += done.values
        claim.copied += len(done.copied)
        claim.refused += done.refused
        if not done.complete:
            return None
        spool.remove(claim.path, stand_in=not claim.refused)
        self._leave(claim)
        runs = f" and {claim.copied} whole runs" if claim.copied else ""
        text = f"MLflow: an earlier notebook's {claim.values} values{runs} are in the store now"
        if claim.refused:
            text += f", which refused {len(claim.refused)}: {claim.refused[0]}"
        return claim.uri, text

    def _leave(self, claim: _Claim) -> None:
        self._claims.remove(claim)
        os.close(claim.lock)
