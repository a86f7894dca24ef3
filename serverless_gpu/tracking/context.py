"""What the notebook has chosen about tracking at the moment of a call.

Never imports mlflow: if the user's code has, its state counts, else the environment.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from serverless_gpu.tracking.url import absolute

_UTILS = "mlflow.tracking._tracking_service.utils"
_FLUENT = "mlflow.tracking.fluent"


@dataclass(frozen=True)
class TrackingContext:
    """The notebook's choices for one call.

    tracking_uri: absolute; None for MLflow's own default in ``cwd``.
    experiment_id: chosen by the user; of another store if that was changed since.
    experiment: the name to use without a (right) id.
    parent_run_id: the notebook's active run, under which the call's run is nested.
    run_id: a run to resume instead of making one (MLFLOW_RUN_ID).
    run_name: given by the user; None lets MLflow, then the first rank that names it, choose.
    protected: the notebook's own runs, which ranks may log to but not end.
    """

    tracking_uri: str | None
    experiment: str
    parent_run_id: str | None
    run_id: str | None
    run_name: str | None
    protected: tuple[str, ...]
    experiment_id: str | None = None
    cwd: str = ""


def capture_context(name: str | None) -> TrackingContext:
    """The context of a call made now, in this thread. ``name`` names the run.

    Threads: the one that runs the user's code, since MLflow's active run belongs to a thread.
    """
    environ = os.environ
    try:
        cwd = os.getcwd()
    except FileNotFoundError:  # the folder has been removed; the call says so, not its tracking
        cwd = environ.get("PWD", "/")
    uri = environ.get("MLFLOW_TRACKING_URI")
    experiment = environ.get("MLFLOW_EXPERIMENT_NAME")
    experiment_id = environ.get("MLFLOW_EXPERIMENT_ID") if experiment is None else None
    runs: list[Any] = []
    utils, fluent = sys.modules.get(_UTILS), sys.modules.get(_FLUENT)
    if utils is not None:
        uri = getattr(utils, "_tracking_uri", None) or uri
    if fluent is not None:
        runs = _active_runs(fluent)
        experiment_id = getattr(fluent, "_active_experiment_id", None) or experiment_id
    parent = runs[-1] if runs else None
    if parent is not None:  # a nested run is shown under its parent in the same experiment only
        experiment_id = parent.info.experiment_id
    if experiment is None:
        experiment = default_experiment(environ, _main_namespace(), cwd)
    return TrackingContext(
        tracking_uri=absolute(str(uri), cwd) if uri else None,
        experiment=experiment,
        parent_run_id=parent.info.run_id if parent is not None else None,
        run_id=environ.get("MLFLOW_RUN_ID") if parent is None else None,
        run_name=name,
        protected=tuple(run.info.run_id for run in runs),
        experiment_id=str(experiment_id) if experiment_id is not None else None,
        cwd=cwd,
    )


def default_experiment(
    environ: Mapping[str, str], namespace: Mapping[str, object], cwd: str
) -> str:
    """The notebook's name where the front end tells it, else the folder's; on Databricks the
    notebook's path, as there."""
    workspace = _workspace_path()
    if workspace:
        return workspace
    notebook = _notebook_file(environ, namespace)
    stem = PurePath(notebook).stem if notebook else ""
    return stem or PurePath(cwd).name or "Default"


def notebook_file() -> str:
    """The notebook's file where the front end tells it, else ""."""
    return _workspace_path() or _notebook_file(os.environ, _main_namespace())


def _notebook_file(environ: Mapping[str, str], namespace: Mapping[str, object]) -> str:
    """Jupyter server tells it in a variable, VS Code in a name of the namespace."""
    return str(environ.get("JPY_SESSION_NAME") or namespace.get("__vsc_ipynb_file__") or "")


def _workspace_path() -> str:
    """Of a notebook in a Databricks workspace; "" elsewhere."""
    context: Any = sys.modules.get("dbruntime.databricks_repl_context")
    try:
        return str(context.get_context().notebookPath or "")
    except AttributeError:
        return ""


def _main_namespace() -> Mapping[str, object]:
    return vars(sys.modules["__main__"])


def _active_runs(fluent: Any) -> list[Any]:
    """The runs that this thread is inside of, outermost first. MLflow may be half imported or of
    another make: then there are none."""
    try:
        return list(fluent._active_run_stack.get())
    except AttributeError:
        return []
