"""How the run of a call comes to be: resumed, created, or, where the store is away, made in a
local store that stands in for it until replay.py copies it over.

Used by the tracker's main thread only.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable
from typing import Any

from serverless_gpu.tracking import fresh, settings, ui, url
from serverless_gpu.tracking.packets import Begin
from serverless_gpu.tracking.spool import Spool

STAND_IN_EXPERIMENT = "kept"

#: Has MLflow's UI show training runs, not evaluations of language models.
EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}

_RUNNING = 1  # mlflow.entities.RunStatus


def make_run(store_of: Callable[[str], Any], uri: str, begin: Begin) -> tuple[Any, str | None]:
    """The mlflow Run, resumed or new, and one line if that needs to be said.

    Errors: what the store raises.
    """
    fresh.ensure(uri)
    if begin.run_id:
        store = store_of(uri)
        store.update_run_info(begin.run_id, _RUNNING, None, None)
        return store.get_run(begin.run_id), None
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    tags = {"mlflow.user": _user(), **begin.tags}
    if begin.parent_run_id:
        tags["mlflow.parentRunId"] = begin.parent_run_id
    experiment_id, notice = begin.experiment_id, None
    if experiment_id is not None and not _exists(client, experiment_id):
        notice = f"MLflow: no experiment {experiment_id} in this store; using {begin.experiment!r}"
        experiment_id = None
        tags.pop("mlflow.parentRunId", None)  # it is in the other store as well
    experiment_id = experiment_id or _experiment_id(client, uri, begin.experiment)
    return client.create_run(experiment_id, tags=tags, run_name=begin.run_name), notice


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
    tags = {"mlflow.user": _user(), **begin.tags}
    run = client.create_run(experiment, tags=tags, run_name=begin.run_name)
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


def _exists(client: Any, experiment_id: str) -> bool:
    """Whether the id is one of this store's: MLflow keeps the id that ``set_experiment`` has
    chosen when ``set_tracking_uri`` then chooses another store."""
    try:
        client.get_experiment(experiment_id)
    except Exception as error:
        if getattr(error, "error_code", "") != "RESOURCE_DOES_NOT_EXIST":
            raise
        return False
    return True


def _experiment_id(client: Any, uri: str, name: str) -> str:
    from mlflow.exceptions import MlflowException

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
        raise MlflowException(f"experiment {name!r} is deleted: restore it, or choose another")
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
