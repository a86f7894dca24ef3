"""Calls and their runs: made, named, ended.

Used by the tracker's main thread only; no sockets here.
"""

from __future__ import annotations

import collections
import contextlib
import getpass
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from serverless_gpu.tracking import fresh, settings, ui, url
from serverless_gpu.tracking.packets import Begin, End

RETRY_S = 5.0  # before a run that could not be made is tried again
_KEPT_CALLS = 256  # late messages of older calls find their run by its id only

# mlflow.entities.RunStatus
RUNNING = 1
END_NAME = {3: "FINISHED", 4: "FAILED", 5: "KILLED"}
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
    notes: list[str] = field(default_factory=list)
    info: dict[str, Any] | None = None
    news: bool = False  # `info` or `error` has changed since the notebook was told

    def runs(self) -> list[SharedRun]:
        return [*([self.run] if self.run else []), *self.children.values()]


def verdict(status: str, ranks_say: Iterable[str]) -> str:
    """The status of a run at its end. The notebook knows best about FAILED and KILLED; its FINISHED
    gives way to what ranks said, FAILED first."""
    if status != "FINISHED":
        return status
    said = set(ranks_say)
    return next((worse for worse in ("FAILED", "KILLED") if worse in said), "FINISHED")


class Runs:
    def __init__(self, ui_port: Callable[[str], int | None]) -> None:
        """``ui_port`` gives the loopback port of a local store's UI, see ui.py."""
        from mlflow.tracking._tracking_service import utils

        self._utils: Any = utils  # not typed in MLflow
        self._ui_port = ui_port
        self.calls: dict[str, Call] = {}
        self.shared: dict[str, SharedRun] = {}  # every run of every call, by id
        self.protected: set[str] = set()  # the notebook's own runs
        self._taken_over = set(settings.tracking_environment(os.environ))

    def begin(self, begin: Begin) -> Call:
        """Registers a call; makes its run unless it is lazy. Never raises: Call.error."""
        if begin.call in self.calls:  # sent twice by an interrupted notebook
            return self.calls[begin.call]
        self._take_over(begin)
        uri = url.absolute(begin.tracking_uri or self._utils.get_tracking_uri(), begin.cwd)
        call = self.calls[begin.call] = Call(begin, uri)
        self._forget_deleted(uri)
        self.protected.update(begin.protected)
        while len(self.calls) > _KEPT_CALLS:
            for run in self.calls.pop(next(iter(self.calls))).runs():
                self.shared.pop(run.run_id, None)
        if not begin.lazy:
            self._try_to_make_run(call)
        return call

    def end(self, end: End) -> None:
        """Ends the call's runs. Errors: what the store raises."""
        call = self.calls.get(end.call)
        tags = dict(end.tags)
        if call is None or call.run is None:
            if end.run_id is not None and end.tracking_uri is not None:
                self._terminate(end.run_id, end.tracking_uri, end.status, tags)
            if call is not None:
                call.open = False
            return
        if not call.open:
            return
        call.open = False
        said = [*call.run.ends.values(), *call.notes]
        for run in call.children.values():
            if not run.inside <= set(run.ends):
                self._terminate(run.run_id, run.uri, verdict(end.status, run.ends.values()), {})
        self._terminate(call.run.run_id, call.run.uri, verdict(end.status, said), tags)

    def kill_open(self) -> None:
        """The notebook is gone: its open runs are KILLED. Never raises."""
        for call in [call for call in self.calls.values() if call.open]:
            try:
                self.end(End(call.begin.call, "KILLED", {}, None, None))
            except Exception:
                continue  # nobody is left to be told; the next run may be in another store

    def note(self, call_id: str, status: str) -> None:
        """A rank's code has ended the call's run with this status."""
        if call_id in self.calls:
            self.calls[call_id].notes.append(status)

    def run_of(self, call: Call) -> SharedRun:
        """The call's run. Errors: MlflowException that says why it could not be made."""
        if call.run is None and (call.error is None or time.monotonic() > call.failed_at + RETRY_S):
            self._try_to_make_run(call)
        if call.run is None:
            from mlflow.exceptions import MlflowException

            raise MlflowException(f"the call's run could not be made: {call.error}")
        return call.run

    def home(self, run_id: object, uri: str) -> str:
        """Where a run lives, whatever URI was asked for; `uri` if it is not ours."""
        run = self.shared.get(run_id) if isinstance(run_id, str) else None
        return run.uri if run else uri

    def store(self, uri: str) -> Any:
        return self._utils._get_store(uri)

    def rename(self, call: Call, run: SharedRun, name: str | None) -> None:
        """The first name that ranks give holds, unless the notebook has given one."""
        if not name or run.named:
            return
        run.named = True
        self.store(run.uri).update_run_info(run.run_id, None, None, name)
        if run is call.run and call.info is not None:
            call.info = {**call.info, "name": name}
            call.news = True

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
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
        # MLflow puts a new store and its artifacts into the working directory.
        with contextlib.suppress(OSError):
            os.chdir(begin.cwd)

    def _forget_deleted(self, uri: str) -> None:
        """A sqlite file that the user has removed to start anew is made again. Left to itself,
        MLflow goes on with the removed one for the life of the process."""
        path = uri[len("sqlite:///") :]
        exists = os.path.exists(path) or os.path.exists(unquote(path))  # both spellings are met
        if exists or not uri.startswith("sqlite:///"):
            return
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

        self._utils._tracking_store_registry._get_store_with_resolved_uri.cache_clear()
        for name in ("_engine_map", "_db_uri_sql_alchemy_engine_map"):  # MLflow 3, MLflow 2
            getattr(SqlAlchemyStore, name, {}).pop(uri, None)

    def _try_to_make_run(self, call: Call) -> None:
        call.news = True
        fresh.ensure(call.uri)
        try:
            made = self._resume(call) if call.begin.run_id else self._create(call)
            named = call.begin.run_name is not None or call.begin.run_id is not None
            call.run = self.shared[made.run_id] = SharedRun(made.run_id, call.uri, named)
            call.info = self._describe(call, made)
            call.error = None
        except Exception as error:
            call.error, call.failed_at = error, time.monotonic()

    def _resume(self, call: Call) -> Any:
        store = self.store(call.uri)
        store.update_run_info(call.begin.run_id, RUNNING, None, None)
        return store.get_run(call.begin.run_id).info

    def _create(self, call: Call) -> Any:
        from mlflow import MlflowClient

        begin = call.begin
        client = MlflowClient(tracking_uri=call.uri)
        tags = {"mlflow.user": _user(), **begin.tags}
        if begin.parent_run_id:
            tags["mlflow.parentRunId"] = begin.parent_run_id
        experiment_id = begin.experiment_id or _experiment_id(client, begin.experiment)
        return client.create_run(experiment_id, tags=tags, run_name=begin.run_name).info

    def _describe(self, call: Call, made: Any) -> dict[str, Any]:
        """The fields of client.RunInfo."""
        link = url.run_url(
            call.uri,
            made.experiment_id,
            made.run_id,
            template=os.environ.get(settings.UI_URL_VARIABLE),
            host=_databricks_host(call.uri),
            port=self._ui_port,
        )
        return {
            "run_id": made.run_id,
            "experiment_id": made.experiment_id,
            "name": made.run_name,
            "tracking_uri": call.uri,
            "artifact_uri": made.artifact_uri,
            "url": link,
            "open_command": None if link else url.open_command(call.uri, with_ui=ui.available()),
        }

    def _terminate(self, run_id: str, uri: str, status: str, tags: dict[str, str]) -> None:
        from mlflow.entities import RunTag
        from mlflow.utils.validation import MAX_TAG_VAL_LENGTH

        store = self.store(uri)
        if tags:
            rows = [RunTag(key, value[:MAX_TAG_VAL_LENGTH]) for key, value in tags.items()]
            store.log_batch(run_id, [], [], rows)
        store.update_run_info(run_id, END_NUMBER[status], int(time.time() * 1000), None)


def _experiment_id(client: Any, name: str | None) -> str:
    from mlflow.exceptions import MlflowException

    if name is None:
        return "0"
    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return str(client.create_experiment(name))
        except MlflowException:  # somebody else was faster, or it is a real refusal
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    if found.lifecycle_stage == "deleted":
        raise MlflowException(f"experiment {name!r} is deleted: restore it, or choose another")
    return str(found.experiment_id)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's uid without a name
        return str(os.getuid())


def _databricks_host(uri: str) -> str | None:
    if not uri.startswith("databricks"):
        return None
    from mlflow.utils import databricks_utils

    utils: Any = databricks_utils  # not typed in MLflow
    return str(utils.get_databricks_host_creds(uri).host)
