"""The rank's side of tracking: plain ``mlflow.*`` calls land in the call's run.

    preload()            once, in the process that ranks are forked from
    rehearse()           in a rank that waits for its first call
    activate(config)     before the user's code of a call
    deactivate()         after it

Threads: activate and deactivate in the main thread, while no user code runs.

MLflow imports this module while it is itself being imported (entry point group
``mlflow.tracking_store``, target ``on_mlflow_import``), in every process where the package is
installed: in a rank that imports MLflow late, and in subprocesses of ranks, that is what installs
the hooks. So importing this module costs little and does nothing elsewhere.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping
from typing import Any

from serverless_gpu import environ
from serverless_gpu.tracking import hooks
from serverless_gpu.tracking.link import Link, RankConfig
from serverless_gpu.tracking.url import absolute

CALL_VARIABLE = "SERVERLESS_GPU_TRACKING"  # the config as JSON, for subprocesses of ranks

# What MLflow itself sets (set_experiment, set_tracking_uri, start_run), and what would make a rank
# adopt a run or an experiment that is not the call's.
_VARIABLES = (
    CALL_VARIABLE,
    "MLFLOW_TRACKING_URI",
    "MLFLOW_EXPERIMENT_NAME",
    "MLFLOW_EXPERIMENT_ID",
    "MLFLOW_RUN_ID",
    "MLFLOW_DISABLE_TELEMETRY",
    "MLFLOW_ALLOW_FILE_STORE",
    "MLFLOW_SYSTEM_METRICS_NODE_ID",
    "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING",
)

_saved: dict[str, str | None] = {}


def preload() -> None:
    """Imports MLflow and warms up what ranks would do one by one. Opens no store.

    Postcondition: no more threads than before (the caller forks).
    """
    threads = threading.active_count()
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # a thread at import, 25 us per log_metric
    import mlflow.tracking.fluent as fluent
    from mlflow.tracking._tracking_service import utils
    from mlflow.tracking.context import registry

    telemetry: Any = sys.modules.get("mlflow.telemetry")
    if telemetry is not None:  # MLflow 3; it may have been imported before the line above
        telemetry.set_telemetry_client()
    registry.resolve_tags()  # imports GitPython and runs git: 140 ms in the first start_run
    utils.get_tracking_uri()  # imports the file store, to look for an old one in the folder
    hooks.install(utils)
    hooks.install_fluent(fluent)
    if threading.active_count() > threads:
        raise RuntimeError(f"MLflow started a thread: {threading.enumerate()}")


def rehearse() -> None:
    """Enters and leaves a call of nobody's. A forked process copies the pages that it writes to,
    which takes a millisecond: now, and not in the call."""
    activate({"socket": "", "call": "", "rank": 0})
    deactivate()


def activate(values: Mapping[str, Any]) -> None:
    """Enters a call. ``values`` is ``RunHandle.rank_config()`` and its ``rank``.

    REQUIRES: ``os.environ`` and the working directory are those of the notebook at the call.
    Connects to nothing; the first use of MLflow does.
    """
    if hooks.current is not None:
        deactivate()
    config = RankConfig.parse(values)
    _saved.update(environ.some(_VARIABLES))
    allowed = _saved["MLFLOW_ALLOW_FILE_STORE"]
    environ.put(
        {
            "MLFLOW_RUN_ID": None,
            # A name and an id that do not agree make MLflow raise, so only one of them is set.
            "MLFLOW_EXPERIMENT_ID": config.experiment_id or None,
            "MLFLOW_EXPERIMENT_NAME": None if config.experiment_id else config.experiment or None,
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "MLFLOW_ALLOW_FILE_STORE": "true" if allowed is None else allowed,
            "MLFLOW_SYSTEM_METRICS_NODE_ID": f"rank{config.rank}",
            # They describe the machine, so the tracker logs them, once.
            "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING": None,
            CALL_VARIABLE: json.dumps(config._asdict()),
        }
    )
    hooks.current = hooks.ActiveCall(Link(config), os.getcwd())
    utils, fluent = sys.modules.get(hooks.UTILS), sys.modules.get(hooks.FLUENT)
    if utils is not None:
        utils._tracking_uri = None  # type: ignore[attr-defined]
        hooks.install(utils)
        _choose_store(utils, config)
    if fluent is not None:
        hooks.install_fluent(fluent)
        _forget_runs(fluent)


def deactivate() -> None:
    """Leaves the call: what was logged is with the tracker, and MLflow is as it was before."""
    active = hooks.current
    if active is None:
        return
    utils, fluent = sys.modules.get(hooks.UTILS), sys.modules.get(hooks.FLUENT)
    try:
        if fluent is not None:
            _finish_threads(fluent)
    finally:
        hooks.current = None
        active.link.close()
        if fluent is not None:
            _forget_runs(fluent)
        if utils is not None and utils._tracking_uri is not None:
            utils.set_tracking_uri(None)
        environ.put(_saved)
        _saved.clear()


def _choose_store(utils: Any, config: RankConfig) -> None:
    """Sets the URI for good: MLflow's default would follow the rank's working directory, and
    Lightning reads the variable only once, at import."""
    if config.tracking_uri is not None:
        environ.put({"MLFLOW_TRACKING_URI": absolute(config.tracking_uri, os.getcwd())})
    else:
        os.environ.pop("MLFLOW_TRACKING_URI", None)
        os.environ["MLFLOW_TRACKING_URI"] = utils.get_tracking_uri()


def _forget_runs(fluent: Any) -> None:
    fluent._active_experiment_id = None
    # A new one, since MLflow 2's cannot be emptied for all threads.
    fluent._active_run_stack = type(fluent._active_run_stack)(default_factory=list)


def _finish_threads(fluent: Any) -> None:
    """Lets MLflow's own threads, where the user's code has started some, hand over the rest."""
    monitors = fluent.run_id_to_system_metrics_monitor
    while monitors:
        monitors.popitem()[1].finish()
    tracing = sys.modules.get("mlflow.tracing.provider")
    once = getattr(getattr(tracing, "provider", None), "once", None)
    if getattr(once, "_done", False):
        fluent.flush_trace_async_logging()


def __getattr__(name: str) -> Any:
    """MLflow looks up ``on_mlflow_import``, the entry point's target, while it is being imported.

    The look-up is the event, because this module may have been imported long before. What it finds
    is no store, and no URI leads there.
    """
    if name != "on_mlflow_import":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _install_late()
    return _no_store


def _no_store(*_args: Any, **_kwargs: Any) -> Any:
    raise NotImplementedError("'serverless-gpu:' is not a tracking URI")


def _install_late() -> None:
    utils = sys.modules.get(hooks.UTILS)
    if utils is None or not hasattr(utils, "_tracking_store_registry"):
        return
    if hooks.current is None and CALL_VARIABLE in os.environ:  # a subprocess of a rank
        config = RankConfig.parse(json.loads(os.environ[CALL_VARIABLE]))
        hooks.current = hooks.ActiveCall(Link(config), os.getcwd())
    if hooks.current is None:
        return
    from mlflow.utils.import_hooks import register_post_import_hook

    hooks.install(utils)
    _choose_store(utils, hooks.current.link.config)
    register_post_import_hook(hooks.install_fluent, hooks.FLUENT)


def _after_fork() -> None:
    """A DataLoader worker, say: it must not speak through its parent's sockets."""
    if hooks.current is not None:
        hooks.current.link.after_fork()


os.register_at_fork(after_in_child=_after_fork)
