"""Tracking URIs made absolute, and the link under which a person can look at a run."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable

LOOPBACK = "127.0.0.1"
OFF = "off"  # as a template: no link to a local store, the command instead

_CREDENTIALS = re.compile(r"://[^/\s@]+@")


def absolute(uri: str, cwd: str) -> str:
    """The URI with a relative path resolved against ``cwd``: tracker and ranks may have another
    working directory than the notebook had when the user wrote it."""
    if uri.startswith("sqlite:///") and ":memory:" not in uri:
        return "sqlite:///" + os.path.join(cwd, uri[len("sqlite:///") :])
    if uri.startswith("file:") and not uri.startswith("file:/"):
        return "file://" + os.path.normpath(os.path.join(cwd, uri[len("file:") :]))
    if ":" in uri or uri.startswith(("databricks", "uc")):
        return uri
    return os.path.normpath(os.path.join(cwd, uri))


def remote(uri: str) -> bool:
    """Whether a server is asked, which may be slow or away."""
    return uri.startswith(("http://", "https://", "databricks"))


def run_url(
    tracking_uri: str,
    experiment_id: str,
    run_id: str,
    *,
    template: str | None = None,
    host: str | None = None,
    port: Callable[[str], int | None] = lambda uri: None,
) -> str | None:
    """The link to a run, or None for a local store that no server shows.

    ``template`` (SERVERLESS_GPU_MLFLOW_UI_URL, with {experiment_id}, {run_id} and {port}) wins:
    behind a proxy only the user knows the address. ``host`` is the Databricks workspace. ``port``
    starts a UI for a local store, and is asked only if one is wanted.
    """
    page = f"/#/experiments/{experiment_id}/runs/{run_id}"
    if tracking_uri == "databricks" or tracking_uri.startswith("databricks://"):
        workspace = f"{(host or '').rstrip('/')}/ml/experiments/{experiment_id}/runs/{run_id}"
        return _filled(template, experiment_id, run_id) or (workspace if host else None)
    if tracking_uri.startswith(("http://", "https://")):
        server = without_credentials(tracking_uri).rstrip("/")
        return _filled(template, experiment_id, run_id) or server + page
    if template == OFF:
        return None
    if template and "{port}" not in template:
        return _filled(template, experiment_id, run_id)
    number = port(tracking_uri)
    if number is None:
        return None
    return _filled(template, experiment_id, run_id, number) or f"http://{LOOPBACK}:{number}{page}"


def _filled(
    template: str | None, experiment_id: str, run_id: str, port: int | None = None
) -> str | None:
    if not template or template == OFF:
        return None
    values = {"experiment_id": experiment_id, "run_id": run_id, "port": str(port or "")}
    for name, value in values.items():
        template = template.replace("{" + name + "}", value)
    return template


def open_command(tracking_uri: str, *, with_ui: bool) -> str | None:
    """The command that shows a local store, or None where a server does. ``with_ui``: whether
    MLflow's UI is installed."""
    if remote(tracking_uri):
        return None
    install = "" if with_ui else "pip install 'serverless-gpu-kernel[ui]' && "
    store = shlex.quote(without_credentials(tracking_uri))
    return f"{install}mlflow ui --backend-store-uri {store}"


def without_credentials(text: str) -> str:
    """A URI, or a text with some in it, without the user and password that they may hold."""
    return _CREDENTIALS.sub("://", text)
