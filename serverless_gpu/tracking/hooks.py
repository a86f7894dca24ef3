"""What is replaced inside MLflow in a rank process.

Four seams, all of them inert while no call is active:

- ``_tracking_store_registry.get_store``: every client, fluent function, autologger and tracing
  exporter resolves its store there, again and again, so objects made earlier follow too.
- ``active_run``, ``start_run``, ``end_run``, ``_get_or_start_run`` of the fluent API: a rank is
  inside the call's run from the beginning, without a ``start_run`` of its own.
- ``log_artifact`` and ``log_artifacts``, for a tracking server that is away (artifacts.py).
- two speed-ups, used only where MLflow still looks as expected.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from serverless_gpu.tracking import artifacts
from serverless_gpu.tracking.link import Link, TrackerGone
from serverless_gpu.tracking.packets import Note
from serverless_gpu.tracking.store import FanInStore
from serverless_gpu.tracking.url import absolute

UTILS = "mlflow.tracking._tracking_service.utils"
FLUENT = "mlflow.tracking.fluent"
_CLIENT = "mlflow.tracking._tracking_service.client"
_REGISTRY = "mlflow.tracking._model_registry.utils"

_MARK = "_serverless_gpu"  # on a function that is ours


class ActiveCall:
    """The call that this rank process is working for."""

    def __init__(self, link: Link, cwd: str) -> None:
        self.link = link
        self.cwd = cwd
        self.stores: dict[str, FanInStore] = {}  # by the URI as MLflow resolved it
        self.base: Any = None  # the call's run as mlflow.ActiveRun, once asked for
        self.ended = False  # the user's code has ended the run, as far as it can

    def store(self, uri: str, open_real: Callable[[], Any]) -> FanInStore:
        store = FanInStore(absolute(uri, self.cwd), self.link, open_real)
        return self.stores.setdefault(uri, store)

    def run(self, fluent: ModuleType) -> Any:
        """The call's run as mlflow.ActiveRun; None after the user's code has ended it, or if the
        tracker is gone or cannot make the run (whoever logs then is told why)."""
        if self.ended:
            return None
        if self.base is None:
            try:
                run = fluent._get_store().call_run()
            except Exception:
                return None
            self.base = run and _implicit(fluent.ActiveRun(run))
        return self.base

    def note_end(self, status: str) -> None:
        """``end_run`` without a run of the rank's own: only a failure changes anything."""
        self.ended = True
        if status != "FINISHED":
            try:
                self.link.send(Note(status))
            except TrackerGone:
                return  # the notebook ends the run with its own verdict


current: ActiveCall | None = None  # set by rank.activate


def install(mlflow_utils: ModuleType) -> None:
    """Replaces ``get_store`` once; cheap if it is done already."""
    registry = mlflow_utils._tracking_store_registry
    real = registry.get_store
    if getattr(real, _MARK, False):
        return

    def get_store(store_uri: str | None = None, artifact_uri: str | None = None) -> Any:
        active = current
        if active is None:
            return real(store_uri, artifact_uri)
        uri = store_uri or mlflow_utils.get_tracking_uri()
        store = active.stores.get(uri)
        return store or active.store(uri, functools.partial(real, uri, artifact_uri))

    setattr(get_store, _MARK, True)
    registry.get_store = get_store


def install_fluent(fluent: ModuleType) -> None:
    """Replaces the run functions of the fluent API once, wherever MLflow has bound their names."""
    if getattr(fluent.active_run, _MARK, False):
        return
    for name, make in _WRAPPERS.items():
        original = getattr(fluent, name)
        wrapper = functools.wraps(original)(make(fluent, original))
        setattr(wrapper, _MARK, True)
        for module_name, module in list(sys.modules.items()):
            ours = module_name.split(".", 1)[0] == "mlflow"
            if ours and getattr(module, "__dict__", {}).get(name) is original:
                setattr(module, name, wrapper)
    client: Any = getattr(sys.modules.get(_CLIENT), "TrackingServiceClient", None)
    if client is not None:
        client.log_artifact = artifacts.wrap(client.log_artifact, inside=False)
        client.log_artifacts = artifacts.wrap(client.log_artifacts, inside=True)
    _speed_up(fluent)


def _active_run(fluent: ModuleType, original: Callable[..., Any]) -> Callable[..., Any]:
    def active_run() -> Any:
        run = original()
        return run if run is not None or current is None else current.run(fluent)

    return active_run


def _start_run(fluent: ModuleType, original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def start_run(*args: Any, **kwargs: Any) -> Any:
        active = current
        if active is None:
            return original(*args, **kwargs)
        asked = signature.bind(*args, **kwargs).arguments
        stack = fluent._active_run_stack.get()
        if asked.get("nested"):
            # Nested in the call's run, which is active although nobody has started it here.
            alone = not (stack or asked.get("run_id") or asked.get("parent_run_id"))
            if alone and active.run(fluent) is not None:
                stack.append(active.base)
        elif len(stack) == 1 and getattr(stack[0], _MARK, False):
            _leave_implicit(fluent, stack.pop())
        run = original(*args, **kwargs)
        active.ended = False
        return run

    return start_run


def _end_run(fluent: ModuleType, original: Callable[..., Any]) -> Callable[..., Any]:
    def end_run(status: str = "FINISHED") -> None:
        active = current
        stack = fluent._active_run_stack.get()
        if active is not None and not stack:
            return active.note_end(status)
        original(status)
        if active is not None and not stack:
            active.ended = True

    return end_run


def _get_or_start_run(fluent: ModuleType, original: Callable[..., Any]) -> Callable[..., Any]:
    def get_or_start_run() -> Any:
        stack = fluent._active_run_stack.get()
        if stack:
            return stack[-1]
        run = original()
        return run if current is None else _implicit(run)

    return get_or_start_run


def _implicit(run: Any) -> Any:
    """Marks a run that this rank is in without a start_run of the user's. Entering it explicitly
    later is no mistake, although MLflow would say that a run is already active."""
    setattr(run, _MARK, True)
    return run


def _leave_implicit(fluent: ModuleType, run: Any) -> None:
    monitor = fluent.run_id_to_system_metrics_monitor.pop(run.info.run_id, None)
    if monitor is not None:  # the explicit start makes another one
        monitor.finish()


_WRAPPERS = {
    "active_run": _active_run,
    "start_run": _start_run,
    "end_run": _end_run,
    "_get_or_start_run": _get_or_start_run,
}


def _speed_up(fluent: ModuleType) -> None:
    """115 -> 8 us of MLflow's own Python in one log_metric."""
    registry = sys.modules.get(_REGISTRY)
    if registry is not None and importlib.util.find_spec("pyspark") is None:
        # Each MlflowClient() tries 'import pyspark' anew.
        registry._get_registry_uri_from_spark_session = lambda: None  # type: ignore[attr-defined]
    client_class = getattr(fluent, "MlflowClient", None)
    utils = sys.modules.get(UTILS)
    if registry is None or utils is None or not isinstance(client_class, type):
        return
    clients: dict[tuple[Any, ...], Any] = {}
    # Twice in each log_metric, and os.environ.get() takes a microsecond to encode the name.
    raw = getattr(os.environ, "_data", None)
    environment: Any = os.environ.get if raw is None else raw.get
    names: Any = ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI")
    tracking, model_registry = names if raw is None else map(os.fsencode, names)

    def client(*args: Any, **kwargs: Any) -> Any:
        if args or kwargs:
            return client_class(*args, **kwargs)
        key = (
            *(utils._tracking_uri, environment(tracking)),
            *(registry._registry_uri, environment(model_registry)),
        )
        return clients.get(key) or clients.setdefault(key, client_class())

    fluent.MlflowClient = client  # type: ignore[attr-defined]
