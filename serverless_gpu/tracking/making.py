"""How the run of a call comes to be: resumed, created, or, where the store is away, made in a
local store that stands in for it until replay.py copies it over.

Used by the tracker's main thread only.
"""

from __future__ import annotations

import contextlib
import getpass
import inspect
import os
import types
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from serverless_gpu.tracking import fresh, settings, surroundings, ui, url
from serverless_gpu.tracking.packets import Announced, Begin
from serverless_gpu.tracking.spool import Spool
from serverless_gpu.tracking.trouble import refused

STAND_IN_EXPERIMENT = "kept"

#: Has MLflow's UI show training runs, not evaluations of language models.
EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}

_RUNNING = 1  # mlflow.entities.RunStatus


def make_run(store_of: Callable[[str], Any], uri: str, begin: Begin) -> tuple[Any, str | None]:
    """The mlflow Run, resumed or new, and one line if that needs to be said.

    Errors: what the store raises.
    """
    fresh.ensure(uri)
    store = store_of(uri)
    notice = None
    if begin.run_id and _exists(store.get_run, begin.run_id):
        store.update_run_info(begin.run_id, _RUNNING, None, None)
        return store.get_run(begin.run_id), None
    if begin.run_id and begin.announced is None:
        notice = f"MLflow: no run {begin.run_id} in this store; this is a new one"
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    client = MlflowClient(tracking_uri=uri)
    tags = _tags(begin)
    if begin.parent_run_id:
        tags["mlflow.parentRunId"] = begin.parent_run_id
    wanted = begin.announced
    name = wanted.name if wanted else begin.run_name
    if wanted is not None:
        try:
            with _next_run_id(store, wanted):
                return client.create_run(wanted.experiment_id, begin.started_ms, tags, name), None
        except MlflowException as error:
            if not refused(error):  # else its experiment has gone: another, or a clear error
                raise
    known = begin.experiment_id
    if known is not None and not _exists(client.get_experiment, known):
        notice = f"MLflow: no experiment {known} in this store; using {begin.experiment!r}"
        known = None
        tags.pop("mlflow.parentRunId", None)  # it is in the other store as well
    experiment = known or experiment_id(client, uri, begin.experiment)
    return client.create_run(experiment, begin.started_ms, tags, name), notice


def names(store: Any, count: int) -> tuple[str, ...]:
    """Names for runs whose id may be chosen, as MLflow makes them; none if the store is one that
    draws the ids itself."""
    if _id_source(store) is None:
        return ()
    from mlflow.utils import name_utils

    untyped: Any = name_utils
    return tuple(untyped._generate_random_name() for _ in range(count))


def _id_source(store: Any) -> dict[str, Any] | None:
    """The namespace from which a store in this very process takes the ids of its runs."""
    found: dict[str, Any] | None = getattr(
        inspect.unwrap(type(store).create_run), "__globals__", None
    )
    draws = found is not None and getattr(found.get("uuid"), "uuid4", None) is not None
    return found if draws else None


@contextlib.contextmanager
def _next_run_id(store: Any, wanted: Announced) -> Iterator[None]:
    """Has the store draw this id first; MLflow has no argument for it."""
    source = _id_source(store)
    if source is None:
        yield
        return
    real = source["uuid"]
    ids = iter([uuid.UUID(wanted.run_id)])
    drawn = {**vars(real), "uuid4": lambda: next(ids, None) or real.uuid4()}
    source["uuid"] = types.SimpleNamespace(**drawn)
    try:
        yield
    finally:
        source["uuid"] = real


def _tags(begin: Begin) -> dict[str, str]:
    commit = surroundings.commit(begin.cwd)
    known = {} if commit is None else {"mlflow.source.git.commit": commit}
    return {"mlflow.user": _user(), **begin.tags, **known}


def make_stand_in(spool: Spool, begin: Begin) -> tuple[str, Any]:
    """(URI of the local store, the mlflow Run in it); noted in the spool.

    Errors: OSError, what MLflow raises.
    """
    from mlflow import MlflowClient

    uri, artifacts = spool.stand_in()
    fresh.ensure(uri)
    client = MlflowClient(tracking_uri=uri)
    found = client.get_experiment_by_name(STAND_IN_EXPERIMENT)
    experiment = (
        found.experiment_id
        if found is not None
        else client.create_experiment(STAND_IN_EXPERIMENT, artifact_location=artifacts)
    )
    name = begin.announced.name if begin.announced else begin.run_name
    run = client.create_run(experiment, begin.started_ms, _tags(begin), name)
    spool.keep(
        copy={
            "store": uri,
            "run_id": run.info.run_id,
            "experiment": begin.experiment,
            "experiment_id": begin.experiment_id,
            "parent_run_id": begin.parent_run_id,
            "into": begin.run_id,
        }
    )
    return uri, run


def describe(info: Any, uri: str, ui_port: Callable[[str], int | None]) -> dict[str, Any]:
    """The fields of client.RunInfo, of an mlflow RunInfo."""
    link = url.run_url(
        uri,
        info.experiment_id,
        info.run_id,
        template=os.environ.get(settings.UI_URL_VARIABLE),
        host=_databricks_host(uri),
        port=ui_port,
    )
    return {
        "run_id": info.run_id,
        "experiment_id": info.experiment_id,
        "name": info.run_name,
        "tracking_uri": uri,
        "artifact_uri": info.artifact_uri,
        "url": link,
        "open_command": None if link else url.open_command(uri, with_ui=ui.available()),
    }


def _exists(get: Callable[[str], Any], number: str) -> bool:
    """Whether the id is one of this store's. MLflow keeps the experiment that ``set_experiment``
    has chosen when ``set_tracking_uri`` then chooses another store; an announced run may have been
    made by a tracker that has died since."""
    try:
        get(number)
    except Exception as error:
        if getattr(error, "error_code", "") != "RESOURCE_DOES_NOT_EXIST":
            raise
        return False
    return True


def experiment_id(client: Any, uri: str, name: str) -> str:
    """Of the experiment of this name, made if there is none. Errors: what the store raises."""
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import INVALID_STATE

    if uri.startswith("databricks") and not name.startswith("/"):  # a name there is a path
        name = f"/Users/{_databricks_user(uri)}/{name}"
    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return str(client.create_experiment(name, tags=EXPERIMENT_TAGS))
        except MlflowException:  # somebody else was faster, or it is a real refusal
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    if found.lifecycle_stage == "deleted":
        text = f"experiment {name!r} is deleted: restore it, or choose another"
        raise MlflowException(text, INVALID_STATE)
    return str(found.experiment_id)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's uid without a name
        return str(os.getuid())


def _databricks_user(uri: str) -> str:
    from mlflow.utils import databricks_utils, rest_utils

    utils: Any = databricks_utils  # not typed in MLflow
    rest: Any = rest_utils
    credentials = utils.get_databricks_host_creds(uri)
    me = rest.http_request(credentials, "/api/2.0/preview/scim/v2/Me", "GET")
    me.raise_for_status()
    return str(me.json()["userName"])


def _databricks_host(uri: str) -> str | None:
    if not uri.startswith("databricks"):
        return None
    from mlflow.utils import databricks_utils

    utils: Any = databricks_utils  # not typed in MLflow
    return str(utils.get_databricks_host_creds(uri).host)
