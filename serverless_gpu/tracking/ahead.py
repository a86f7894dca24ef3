"""Runs whose id the notebook chooses itself, so that their links are there before the runs are.

A run takes its store many milliseconds to make; a call that does little takes fewer. But the link
of a run in a database that the tracker writes to itself consists of what the run before had, and an
id. So once the tracker has made a run it hands out names for more of the same place; the notebook
draws an id for a name, shows the link, and the tracker then makes that run. Nothing is made ahead,
so nothing is left over, and a run's start is the call's.

A run that comes to be elsewhere after all (its experiment was deleted meanwhile) replaces the
announced one as soon as that is known.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import replace
from typing import NamedTuple

from serverless_gpu.tracking import fresh
from serverless_gpu.tracking.handle import RunInfo
from serverless_gpu.tracking.packets import Announced, Began, Begin

#: Names handed out, so at most as many runs are known to the notebook and not to the store.
NAMES = 16


class _Known(NamedTuple):
    """A place where runs are made: what calls that mean it have in common, and a run in it."""

    begin: Begin
    file: tuple[int, int] | None
    info: RunInfo


class Ahead:
    """What is known of one place, the last one where a run was made.

    Threads: one at a time. Opens nothing; looks at a store's file at most.
    """

    def __init__(self) -> None:
        self._known: _Known | None = None
        self._names: list[str] = []

    def announce(self, begin: Begin) -> tuple[Begin, RunInfo | None]:
        """The Begin with an announced run, and that run, if its place is known."""
        known = self._known
        if known is None or not self._names or begin.lazy or begin.run_id is not None:
            return begin, None
        if known.begin != _place(begin) or known.file != _file(known.info.tracking_uri):
            return begin, None
        name = self._names.pop()  # also where the user has chosen one: it is one run more
        experiment = known.info.experiment_id
        made = Announced(uuid.uuid4().hex, begin.run_name or name, experiment)
        begin = begin._replace(announced=made)
        return begin, _renumbered(known.info, made)

    def learn(self, begin: Begin, info: RunInfo | None, told: Began) -> None:
        """What the tracker has told of a call's run."""
        wanted = begin.announced
        if told.error or (info is not None and wanted and info.run_id != wanted.run_id):
            return self.forget()
        if info is None or not told.names:
            return
        known = _Known(_place(begin), _file(info.tracking_uri), info)
        if wanted is None or self._known is None or self._known.begin != known.begin:
            self._known, self._names = known, list(told.names)
        elif len(self._names) < NAMES:
            self._names.append(told.names[0])

    def forget(self) -> None:
        """The place may not be there any more."""
        self._known, self._names = None, []


def _place(begin: Begin) -> Begin:
    return begin._replace(
        call="",
        parent_run_id=None,
        run_id=None,
        run_name=None,
        protected=(),
        tags={},
        lazy=False,
        started_ms=0,
        announced=None,
    )


def _file(uri: str) -> tuple[int, int] | None:
    """Which file a store is in, since users remove it to start anew; None if it is in none."""
    path = fresh.sqlite_file(uri)
    if path is None:
        return None
    try:
        found = os.stat(path)
    except OSError:
        return (0, 0)
    return found.st_dev, found.st_ino


def _renumbered(info: RunInfo, made: Announced) -> RunInfo:
    """The run that differs from a made one only in its id and name."""
    return replace(
        info,
        run_id=made.run_id,
        name=made.name,
        artifact_uri=info.artifact_uri.replace(info.run_id, made.run_id),
        url=info.url and info.url.replace(info.run_id, made.run_id),
    )
