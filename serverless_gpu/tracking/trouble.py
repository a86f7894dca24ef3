"""Errors of tracking stores: which pass, which do not, and how they are told."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

from serverless_gpu.tracking.url import without_credentials

#: Of a store that has understood and will say the same again. One that does not know us today
#: (UNAUTHENTICATED, PERMISSION_DENIED) may tomorrow, with a new token.
_NEVER_RIGHT = (
    *("INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_DOES_NOT_EXIST"),
    *("RESOURCE_ALREADY_EXISTS", "INVALID_STATE"),
)
_NOT_US = ("UNAUTHENTICATED", "PERMISSION_DENIED")
#: What matters in the long texts of MLflow and requests, the innermost error.
_CAUSES = re.compile(
    r"\[Errno -?\d+\] ([^'\")>]+)|(timed out|error code \d+|too many \d+ error responses)"
)
_UNANSWERED = re.compile(r"API request to .* failed with (\w+ )?(exception|error code (5\d\d|429))")
_TRACKING_URI = "MLFLOW_TRACKING_URI"
_TIMEOUT, _RETRIES = "MLFLOW_HTTP_REQUEST_TIMEOUT", "MLFLOW_HTTP_REQUEST_MAX_RETRIES"


def refused(error: BaseException) -> bool:
    """Whether the store will never take this, so that to keep it and try again is no use."""
    return getattr(error, "error_code", "") in _NEVER_RIGHT


def in_vain(error: BaseException) -> bool:
    """Whether trying again at once is no use."""
    return getattr(error, "error_code", "") in _NOT_US


def unreachable(error: BaseException) -> bool:
    """Whether nobody has answered, or somebody who could not do it now, as far as MLflow tells."""
    if isinstance(error, (ConnectionError, TimeoutError)):
        return True
    if type(error).__name__ == "RestException":
        return int(error.get_http_status_code()) >= 500  # type: ignore[attr-defined]
    return bool(_UNANSWERED.search(str(error)))


def one_line(error: BaseException) -> str:
    """The first line of an error's text, short enough for a status line, without credentials."""
    lines = str(error).strip().splitlines()
    return without_credentials((lines[0] if lines else type(error).__name__)[:300])


def why(uri: str, error: BaseException) -> str:
    """Which store does not do its duty, and why, in a few words."""
    text = one_line(error)
    found = _CAUSES.search(str(error))
    if found is not None:
        text = next(group for group in found.groups() if group)
    return f"{without_credentials(uri)}: {text}"


def replay_command(path: Path) -> str:
    return f"serverless-gpu mlflow-replay {path}"


def towards(uri: str) -> contextlib.AbstractContextManager[None]:
    """MLflow 2 finds a server's files by the process's own tracking URI, whatever URI is asked."""
    return _environment({_TRACKING_URI: uri})


def impatient(seconds: float, retries: int = 0) -> contextlib.AbstractContextManager[None]:
    """Has MLflow's requests give up soon, or sooner if the user wants that."""
    limits = {}
    for name, limit in ((_TIMEOUT, seconds), (_RETRIES, retries)):
        with contextlib.suppress(ValueError):
            limits[name] = str(int(min(limit, float(os.environ.get(name) or limit))))
    return _environment(limits)


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def portable(error: Exception) -> Exception:
    """The error itself if a rank can unpickle it, else one with its text."""
    from mlflow.exceptions import MlflowException

    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        return MlflowException(f"{type(error).__name__}: {one_line(error)}")
