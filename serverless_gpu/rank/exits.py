"""What is done at a rank's end: what its own code has asked for, and not what the imports in the
fork server have, which end with every process anyway and cost each rank milliseconds."""

from __future__ import annotations

import atexit
import logging
import sys
import weakref
from collections.abc import Callable
from typing import Any

#: What torch reports at the end of a process, to a logger named like the module.
_REPORTS = (
    ("torch._subclasses.fake_tensor", "dump_cache_stats"),
    ("torch._dynamo.utils", "dump_compile_times"),
    ("torch._dynamo.eval_frame", "_log_traced_frames"),
)

_last_inherited: object = None
_asked_first: set[str] = set()  # modules whose report is made only if it is heard


def leave_inherited_here() -> None:
    """Called in the fork server after imports; again after more of them."""
    _leave_finalizers()
    for module, name in _REPORTS:
        report = getattr(sys.modules.get(module), name, None)
        if report is not None and module not in _asked_first:
            _asked_first.add(module)
            atexit.unregister(report)
            atexit.register(_report_if_heard, report, logging.getLogger(module))


def _leave_finalizers() -> None:
    """torch alone has more than a hundred, to undo registrations. Merely looking through them
    copies as many pages in each rank."""
    global _last_inherited
    registry: dict[Any, Any] = getattr(weakref.finalize, "_registry", {})
    for finalizer in list(registry):
        finalizer.atexit = False
    run_all: Any = getattr(weakref.finalize, "_exitfunc", None)
    if not registry or run_all is None:
        return
    atexit.unregister(run_all)
    if _last_inherited is None:
        atexit.register(_finalize, registry, run_all)
    _last_inherited = next(reversed(registry))


def _finalize(registry: dict[Any, Any], run_all: Callable[[], None]) -> None:
    if registry and next(reversed(registry)) is not _last_inherited:
        run_all()


def _report_if_heard(report: Callable[[], None], logger: logging.Logger) -> None:
    if logger.isEnabledFor(logging.INFO):
        report()
