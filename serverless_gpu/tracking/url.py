"""Tracking URIs made absolute, and the link under which a person can look at a run."""

from __future__ import annotations

import os
import shlex


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


def run_url(
    tracking_uri: str,
    experiment_id: str,
    run_id: str,
    *,
    template: str | None = None,
    host: str | None = None,
) -> str | None:
    """The link to a run, or None for a local store that no server shows.

    ``template`` (SERVERLESS_GPU_MLFLOW_UI_URL, with {experiment_id} and {run_id}) wins: behind a
    proxy only the user knows the address. ``host`` is the Databricks workspace.
    """
    if template:
        return template.replace("{experiment_id}", experiment_id).replace("{run_id}", run_id)
    if tracking_uri == "databricks" or tracking_uri.startswith("databricks://"):
        return f"{host.rstrip('/')}/ml/experiments/{experiment_id}/runs/{run_id}" if host else None
    if tracking_uri.startswith(("http://", "https://")):
        return f"{tracking_uri.rstrip('/')}/#/experiments/{experiment_id}/runs/{run_id}"
    return None


def open_command(tracking_uri: str) -> str | None:
    """The command that shows a local store, or None where a server does."""
    if tracking_uri.startswith(("http://", "https://", "databricks")):
        return None
    return f"mlflow ui --backend-store-uri {shlex.quote(tracking_uri)}"
