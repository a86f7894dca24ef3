"""The errors of calls: what users catch, and what makes them out of the reports of ranks.

In ranks, ``capture_failure`` turns an exception into a RankFailure; in the notebook,
``build_error`` turns the reports of all ranks into the one exception that the cell raises.
"""

from serverless_gpu.errors.build import build_error, build_timeout
from serverless_gpu.errors.capture import capture_failure, told
from serverless_gpu.errors.failure import (
    RankDeath,
    RankException,
    RankFailure,
    format_ranks,
    parse_ranks,
)
from serverless_gpu.errors.types import (
    AcceleratorMismatchError,
    ArgumentsError,
    CellSyntaxError,
    DistributedTimeoutError,
    FolderGoneError,
    NestedCallError,
    NotThereError,
    OptionError,
    QuestionStopped,
    RankDiedError,
    RankError,
    ResultError,
    UnpicklableError,
)

# Users read them as serverless_gpu.errors.RankError, not by the file they are written in.
for _error in (
    AcceleratorMismatchError,
    DistributedTimeoutError,
    NestedCallError,
    RankDiedError,
    RankError,
    RankException,
    ResultError,
    UnpicklableError,
):
    _error.__module__ = __name__

__all__ = [
    "AcceleratorMismatchError",
    "ArgumentsError",
    "CellSyntaxError",
    "DistributedTimeoutError",
    "FolderGoneError",
    "NestedCallError",
    "NotThereError",
    "OptionError",
    "QuestionStopped",
    "RankDeath",
    "RankDiedError",
    "RankError",
    "RankException",
    "RankFailure",
    "ResultError",
    "UnpicklableError",
    "build_error",
    "build_timeout",
    "capture_failure",
    "format_ranks",
    "parse_ranks",
    "told",
]
