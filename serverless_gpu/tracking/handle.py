"""The run of one call, as the notebook knows it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from serverless_gpu.tracking import url
from serverless_gpu.tracking.packets import Attach, Begin, End

if TYPE_CHECKING:
    from serverless_gpu.tracking.client import Tracker

Status: TypeAlias = Literal["FINISHED", "FAILED", "KILLED"]

END_LIMIT_S = 15.0  # default for RunHandle.end; a disk may take seconds for a commit
REMOTE_LIMIT_S = 1.0  # what a server may hold up a cell after its ranks have ended
WAIT_S = 0.05  # between looks for an answer that another thread may have taken


@dataclass(frozen=True)
class RunInfo:
    """A run that exists. ``url`` is None for a local store: ``open_command`` then is the shell
    command that shows it."""

    run_id: str
    experiment_id: str
    name: str
    tracking_uri: str
    artifact_uri: str
    url: str | None
    open_command: str | None


class RunHandle:
    """The run of one call, as the notebook knows it. Made by Tracker.begin.

    Threads: any.
    ``error``: one line once something has gone wrong with tracking; the call goes on.
    """

    def __init__(self, tracker: Tracker, begin: Begin, announced: RunInfo | None = None) -> None:
        """``announced``: a run that the tracker has been asked to make (ahead.py)."""
        self.error: str | None = None
        self._tracker = tracker
        self._begin = begin
        self._info = announced
        self._made = False  # whether the tracker has said that it is there
        self._end: End | None = None

    @property
    def remote(self) -> bool:
        """Whether its store is a server: nobody waits long for one, which may be away."""
        environment = self._begin.environment
        return url.remote(self._begin.tracking_uri or environment.get("MLFLOW_TRACKING_URI", ""))

    def look(self) -> None:
        """Takes what the tracker has told of all runs; never blocks. To be called now and then:
        messages that could not be sent yet go out here."""
        self._tracker._exchange()

    def info(self) -> RunInfo | None:
        """The run, once it is known; looks for news."""
        self.look()
        return self._info

    def ended(self) -> bool:
        """Whether the tracker has ended the run, as far as it could; looks for news."""
        self.look()
        return self.over

    @property
    def known(self) -> bool:
        """As info(), by the last look."""
        return self._info is not None

    @property
    def over(self) -> bool:
        """As ended(), by the last look."""
        return self._end is not None and self._begin.call not in self._tracker._handles

    def wait(self, limit_s: float) -> None:
        """Blocks until there is news for info(), `limit_s` seconds at most."""
        self._tracker._wait_readable(min(WAIT_S, max(0.0, limit_s)))

    def rank_config(self) -> dict[str, Any]:
        """What serverless_gpu.tracking.rank.activate needs besides `rank`; JSON-able."""
        socket_path, connected = self._tracker._address()
        uri = self._begin.tracking_uri
        if uri is None and self._begin.announced and self._info:
            uri = self._info.tracking_uri  # what each rank would find by looking into the folder
        return {
            "socket": socket_path,
            "call": self._begin.call,
            "tracking_uri": uri,
            "experiment": self._begin.experiment,
            "experiment_id": self._begin.experiment_id,
            "starting": not connected,
        }

    def log_text(self, text: str, artifact_file: str) -> None:
        """Adds a text artifact to the run; one way, best effort."""
        self._tracker._post(Attach(self._begin.call, artifact_file, text, None))

    def log_folder(self, path: str, artifact_folder: str) -> None:
        """Adds the files of a folder of logs, large ones compressed; they must stay where they are
        until the run has ended."""
        if os.path.isdir(path):  # made with the first line that a rank writes
            self._tracker._post(Attach(self._begin.call, artifact_folder, None, path))

    def log_file(self, path: str, artifact_folder: str = "") -> None:
        """Adds a file as an artifact; it must stay where it is until end() has returned."""
        self._tracker._post(Attach(self._begin.call, artifact_folder, None, os.path.abspath(path)))

    def end(
        self, status: Status, tags: Mapping[str, str] | None = None, *, timeout: float = END_LIMIT_S
    ) -> None:
        """Ends the run after everything that ranks have sent is written. Blocks for `timeout`
        seconds at most; after that `error` says so unless it is a server's, which is told later,
        and the tracker still goes on. With 0 it does not wait. A second call does nothing.
        """
        if self._end is not None:
            return
        made = self._info if self._made else None
        self._end = End(
            self._begin.call,
            status,
            dict(tags or {}),
            run_id=made.run_id if made else None,
            tracking_uri=made.tracking_uri if made else None,
            ended_ms=time.time_ns() // 1_000_000,
            awaited=timeout > 0,
        )
        self._tracker._finish(self, self._end, timeout)
