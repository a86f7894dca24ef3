"""What the user chose about tracking: environment variables of the notebook."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias, cast

Mode: TypeAlias = Literal["always", "lazy", "off"]

MODE_VARIABLE = "SERVERLESS_GPU_MLFLOW"
UI_URL_VARIABLE = "SERVERLESS_GPU_MLFLOW_UI_URL"  # a template, or "off": no local UI
UI_STORE_VARIABLE = "_SERVERLESS_GPU_MLFLOW_UI_STORE"  # for the UI's own process
PER_RANK_VARIABLE = "SERVERLESS_GPU_MLFLOW_PER_RANK"

_MODES = ("always", "lazy", "off")

# What a tracking server, a Databricks workspace or an artifact store may need to let us in.
_TRACKER_PREFIXES = ("MLFLOW_", "DATABRICKS_", "AWS_", "AZURE_", "GOOGLE_", "GCP_", "S3_")
_TRACKER_NAMES = {
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", UI_URL_VARIABLE),
    *("http_proxy", "https_proxy", "no_proxy", "all_proxy"),
    *("XDG_STATE_HOME", "XDG_RUNTIME_DIR"),
    *("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR"),
}


def mode(flag: str | None, environ: Mapping[str, str]) -> Mode:
    """When a call makes a run: always, lazily (at the first thing logged) or not at all.

    ``flag`` is the call's own choice (``mlflow=`` or ``--mlflow``) and wins over the environment.

    Errors: ValueError with one line that names the wrong value and the right ones.
    """
    value = flag if flag is not None else environ.get(MODE_VARIABLE) or "always"
    if not isinstance(value, str) or value.lower() not in _MODES:
        source = "mlflow" if flag is not None else MODE_VARIABLE
        from serverless_gpu.errors import OptionError

        raise OptionError(f"{source}={value!r}: must be one of {', '.join(_MODES)}")
    return cast(Mode, value.lower())


def tracking_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of the notebook that the tracker takes over at each call: MLflow's own, and
    credentials. They travel over the private socket only."""
    return {
        name: value
        for name, value in environ.items()
        if name in _TRACKER_NAMES or name.startswith(_TRACKER_PREFIXES)
    }
