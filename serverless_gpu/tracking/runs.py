"""Calls and their runs: made, named, ended.

Used by the tracker's main thread only; no sockets here.
"""

from __future__ import annotations

import collections
import contextlib
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from serverless_gpu.tracking import ahead, fresh, making, settings, url
from serverless_gpu.tracking.batches import BatchWriter
from serverless_gpu.tracking.packets import Begin, End
from serverless_gpu.tracking.trouble import impatient, one_line, refused

MAKE_S = 10.0  # for a server to answer, until a call's run is made in a local store instead
RETRY_S = 5.0  # before a run that could not be made is tried again
_KEPT_CALLS = 256  # late messages of older calls find their run by its id only

# mlflow.entities.RunStatus
RUNNING = 1
END_NAME = {3: "FINISHED", 4: "FAILED", 5: "KILLED"}
_NAME = "mlflow.runName"
END_NUMBER = {name: number for number, name in END_NAME.items()}

# Each Begin carries its own choice of these.
_NOT_TAKEN_OVER = {
    *("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID", "MLFLOW_RUN_ID"),
    "MLFLOW_ENABLE_ASYNC_LOGGING",
}


@dataclass
class SharedRun:
    """A run that ranks share: a call's own, or one that ranks made within the call."""

    run_id: str
    uri: str
    named: bool = True
    made: Any = None  # the mlflow Run as it was made, for when its store is away
    inside: set[int] = field(default_factory=set)
    ends: dict[int, str] = field(default_factory=dict)


@dataclass
class Call:
    begin: Begin
    uri: str
    run: SharedRun | None = None
    open: bool = True
    error: Exception | None = None  # why the run could not be made
    failed_at: float = 0.0  # monotonic seconds, of `error`
    children: dict[tuple[Any, ...], SharedRun] = field(default_factory=dict)
    turn: collections.Counter[tuple[Any, ...]] = field(default_factory=collections.Counter)
    experiments: dict[tuple[str, str], str] = field(default_factory=dict)
    params: dict[tuple[str, str], tuple[int, str]] = field(default_factory=dict)
    earlier: frozenset[str] | None = None  # params of a resumed run before this call
    notes: list[str] = field(default_factory=list)
    info: dict[str, Any] | None = None
    notice: str | None = None  # to be said about the run that was made
    described: bool = False  # where it runs is attached
    samples: int = 0  # of system metrics
    sampled_at: float | None = None  # monotonic seconds; at first when the run was seen
    told: tuple[Any, ...] = ()  # what the notebook knows
    names_told: bool = False

    @property
    def stands_in(self) -> bool:
        """Whether the run is in a local store because its own was away."""
        return self.run is not None and self.run.uri != self.uri

    def runs(self) -> list[SharedRun]:
        return [*([self.run] if self.run else []), *self.children.values()]


def verdict(status: str, ranks_say: Iterable[str]) -> str:
    """The status of a run at its end. The notebook knows best about FAILED and KILLED; its FINISHED
    gives way to what ranks said, FAILED first."""
    if status != "FINISHED":
        return status
    said = set(ranks_say)
    return next((worse for worse in ("FAILED", "KILLED") if worse in said), "FINISHED")


class _StillAway(Exception):
    """The store."""


class Runs:
    def __init__(self, ui_port: Callable[[str], int | None], batches: BatchWriter) -> None:
        """``ui_port`` gives the loopback port of a local store's UI, see ui.py."""
        from mlflow.tracking._tracking_service import utils

        self._utils: Any = utils  # not typed in MLflow
        self._ui_port = ui_port
        self._batches = batches
        self.calls: dict[str, Call] = {}
        self.shared: dict[str, SharedRun] = {}  # every run of every call, by id
        self._early_notes: dict[str, list[str]] = {}
        self.protected: set[str] = set()  # the notebook's own runs
        self.notices: dict[str, str] = {}  # by URI, to be said with the next call there
        self._taken_over = set(settings.tracking_environment(os.environ))

    def begin(self, begin: Begin) -> Call:
        """Registers a call; makes its run unless it is lazy. Never raises: Call.error."""
        if begin.call in self.calls:  # sent twice by an interrupted notebook
            return self.calls[begin.call]
        self._take_over(begin)
        uri = url.absolute(begin.tracking_uri or self._utils.get_tracking_uri(), begin.cwd)
        call = self.calls[begin.call] = Call(begin, uri)
        call.notes = self._early_notes.pop(begin.call, [])
        fresh.forget_removed(uri)
        self.protected.update(begin.protected)
        while len(self.calls) > _KEPT_CALLS:
            for run in self.calls.pop(next(iter(self.calls))).runs():
                self.shared.pop(run.run_id, None)
        if not begin.lazy:
            self._try_to_make_run(call)
        return call

    def end(self, end: End) -> None:
        """Ends the call's runs. Errors: what the store raises because it refuses that."""
        call = self.calls.get(end.call)
        if call is None or call.run is None:
            if end.run_id is not None and end.tracking_uri is not None:
                where = (end.tracking_uri, end.run_id)
                self._batches.end(*where, end.status, _cut(end.tags), end.ended_ms)
            if call is not None:
                call.open = False
            return
        if not call.open:
            return
        call.open = False
        said = [*call.run.ends.values(), *call.notes]
        for run in call.children.values():
            if not run.inside <= set(run.ends):
                status = verdict(end.status, run.ends.values())
                self._batches.end(run.uri, run.run_id, status, {}, end.ended_ms)
        status = verdict(end.status, said)
        self._batches.end(call.run.uri, call.run.run_id, status, _cut(end.tags), end.ended_ms)
        if call.stands_in:  # now it may be copied
            self._batches.hold(call.uri, -1)

    def moved(self, copied: dict[str, str]) -> None:
        """Runs of stand-in stores have been copied to where they belong: {old id: new id}."""
        for call in self.calls.values():
            if call.run is not None and call.run.run_id in copied:
                run = SharedRun(copied[call.run.run_id], call.uri)
                made = self.store(run.uri).get_run(run.run_id)
                call.run = self.shared[run.run_id] = run
                call.info = making.describe(made.info, run.uri, self._ui_port)

    def kill_open(self) -> None:
        """The notebook is gone: its open runs are KILLED. Never raises."""
        for call in [call for call in self.calls.values() if call.open]:
            try:
                now = int(time.time() * 1000)
                self.end(End(call.begin.call, "KILLED", {}, None, None, now, awaited=False))
            except Exception:
                continue  # nobody is left to be told; the next run may be in another store

    def note(self, call_id: str, status: str) -> None:
        """A rank's code has ended the call's run with this status."""
        if call_id in self.calls:
            self.calls[call_id].notes.append(status)
        else:  # a rank is ahead of the notebook's Begin
            self._early_notes[call_id] = [*self._early_notes.get(call_id, []), status]

    def run_of(self, call: Call) -> SharedRun:
        """The call's run. Errors: MlflowException that says why there is none, not even in a local
        store."""
        if call.run is None and (call.error is None or time.monotonic() > call.failed_at + RETRY_S):
            self._try_to_make_run(call)
        if call.run is None:
            from mlflow.exceptions import MlflowException

            raise MlflowException(f"the call's run could not be made: {call.error}")
        return call.run

    def earlier_params(self, call: Call, run_id: str) -> frozenset[str]:
        """Names of the params that a resumed run had before this call; of other runs, none."""
        resumed = call.run is not None and run_id == call.run.run_id == call.begin.run_id
        if not resumed or call.begin.announced is not None or call.run is None:
            return frozenset()
        if call.earlier is None:
            call.earlier = frozenset(self.get_run(call.run).data.params)
        return call.earlier

    def home(self, run_id: object, uri: str) -> str:
        """Where a run lives, whatever URI was asked for; `uri` if it is not ours."""
        run = self.shared.get(run_id) if isinstance(run_id, str) else None
        return run.uri if run else uri

    def seen_from(self, call: Call, uri: str) -> str:
        """The store that a URI means for this call: the stand-in for one that was away."""
        return call.run.uri if call.run is not None and call.stands_in and uri == call.uri else uri

    def store(self, uri: str) -> Any:
        return open_store(uri)

    def get_run(self, run: SharedRun) -> Any:
        """The mlflow Run, as it was made if its store is away."""
        if not self._batches.away(run.uri) or run.made is None:
            try:
                return self.store(run.uri).get_run(run.run_id)
            except Exception as error:
                if refused(error) or run.made is None:
                    raise
                self._batches.failed(run.uri, error)
        return run.made

    def take_notice(self, call: Call) -> None:
        """What is to be said once about the call's store is said of this call."""
        uri = call.uri
        call.notice = self._batches.take_notice(uri) or self.notices.pop(uri, None) or call.notice

    def trouble(self, call: Call) -> str | None:
        """One line while the call's run is not, or not whole, where it belongs."""
        if call.run is None:
            return None if call.error is None else f"MLflow: no run: {one_line(call.error)}"
        return self._batches.trouble(call.uri) or call.notice

    def names(self, call: Call) -> tuple[str, ...]:
        """Names for runs of the same place that the notebook may announce (ahead.py); once."""
        resumed = call.begin.run_id is not None and call.begin.announced is None
        if call.run is None or call.names_told or resumed or self.trouble(call) is not None:
            return ()
        call.names_told = True
        count = ahead.NAMES if call.begin.announced is None else 1
        return making.names(self.store(call.run.uri), count)

    def rename(self, call: Call, run: SharedRun, name: str | None) -> None:
        """The first name that ranks give holds, unless the notebook has given one."""
        if not name or run.named:
            return
        run.named = True
        if self._batches.away(run.uri):
            self._batches.write([(run.uri, run.run_id, [], [(_NAME, name)])])
        else:
            self.store(run.uri).update_run_info(run.run_id, None, None, name)
        if run is call.run and call.info is not None:
            call.info = {**call.info, "name": name}

    def _take_over(self, begin: Begin) -> None:
        for name in self._taken_over - set(begin.environment):
            os.environ.pop(name, None)
        for name in _NOT_TAKEN_OVER:
            os.environ.pop(name, None)
        self._taken_over = set(begin.environment) - _NOT_TAKEN_OVER
        os.environ.update({name: begin.environment[name] for name in self._taken_over})
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
        # Old stores in "mlruns" go on working, and a server that is away is said to be so soon.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
        # MLflow puts a new store and its artifacts into the working directory.
        with contextlib.suppress(OSError):
            os.chdir(begin.cwd)

    def _try_to_make_run(self, call: Call) -> None:
        begin = call.begin
        try:
            if self._batches.away(call.uri):  # it has just been asked: nobody waits for it again
                raise _StillAway("the store is away")
            with impatient(MAKE_S, retries=1):
                made, call.notice = making.make_run(self.store, call.uri, begin)
                uri = call.uri
            call.error = None
        except Exception as error:
            call.error, call.failed_at = error, time.monotonic()
            if not isinstance(error, _StillAway):
                self._batches.failed(call.uri, error)
            try:
                uri, made = making.make_stand_in(self._batches.spool(call.uri), begin)
            except Exception:
                return  # the first cause is what is told
            self._batches.hold(call.uri, +1)
        named = begin.run_name is not None or begin.run_id is not None
        run = SharedRun(made.info.run_id, uri, named, made)
        call.run = self.shared[run.run_id] = run
        call.info = making.describe(made.info, uri, self._ui_port)


def open_store(uri: str) -> Any:
    """The mlflow store of a URI."""
    from mlflow.tracking._tracking_service import utils

    untyped: Any = utils
    return untyped._get_store(uri)


def _cut(tags: dict[str, str]) -> dict[str, str]:
    from mlflow.utils.validation import MAX_TAG_VAL_LENGTH

    return {key: value[:MAX_TAG_VAL_LENGTH] for key, value in tags.items()}
