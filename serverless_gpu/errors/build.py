"""From what ranks reported to the one exception that the user's cell raises."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

from .failure import RankDeath, RankFailure, first_line, format_ranks
from .types import DistributedTimeoutError, RankDiedError, RankError

# An object that is also one of these would end a program or an event loop instead of being caught.
_NEVER = (KeyboardInterrupt, SystemExit, GeneratorExit, RankError)
_OURS = frozenset({"rank", "failures", "deaths", "results", "_message", "_recipe"})


def build_error(
    failures: Mapping[int, RankFailure],
    deaths: Mapping[int, RankDeath],
    results: Mapping[int, Any],
    first: int,
    world_size: int | None = None,
    log: str = "",
) -> RankError:
    """The error of a call that rank ``first`` ended, by an exception or by its death.

    failures, deaths, results: by rank; ranks of the world in none of them were stopped.
    log: path of what the first rank has written, told of one that has died.
    """
    message = _message(failures, deaths, results, first, world_size, log)
    error = _make(failures, deaths, results, first, message)
    recipe = (dict(failures), dict(deaths), dict(results), first, world_size, log)
    error._recipe = (build_error, recipe)
    return error


def build_timeout(
    seconds: float,
    stacks: Mapping[int, str],
    failures: Mapping[int, RankFailure],
    results: Mapping[int, Any],
    report: str = "",
) -> DistributedTimeoutError:
    """The error of a call whose deadline passed. Stacks are shown once where they are equal.

    stacks: by rank, where it was. report: who waits for whom, as the hang report says it.
    """
    from serverless_gpu import stacks as reports

    lines = [f"the call did not end within {seconds:g} s"]
    if report:
        lines.append(report)
    lines += _finished(results)
    lines += reports.report(stacks)
    error = DistributedTimeoutError("\n".join(lines), failures=failures, results=results)
    error.rank = min(stacks, default=-1)
    error.seconds = seconds
    error.stacks = dict(stacks)
    recipe = (seconds, dict(stacks), dict(failures), dict(results), report)
    error._recipe = (build_timeout, recipe)
    return error


def _make(
    failures: Mapping[int, RankFailure],
    deaths: Mapping[int, RankDeath],
    results: Mapping[int, Any],
    first: int,
    message: str,
) -> RankError:
    failure = failures.get(first)
    cause = failure.exception() if failure else None
    kind: type[RankError] = RankError
    if failure is None or failure.kind == "SystemExit":
        kind = RankDiedError
    error = kind(message, rank=first, failures=failures, deaths=deaths, results=results)
    if failure is not None and kind is RankError:
        original, loaded = failure.load_cause()
        error = _also(original, loaded, error) or error
    error.__cause__ = cause
    return error


def _also(
    original: type[BaseException] | None, loaded: BaseException | None, plain: RankError
) -> RankError | None:
    """The same error as an instance of the original type too; None if that cannot be."""
    if original is None or issubclass(original, _NEVER) or not issubclass(original, Exception):
        return None
    try:
        body = {"__module__": RankError.__module__, "__doc__": RankError.__doc__}
        kind = types.new_class("RankError", (RankError, original), {}, lambda ns: ns.update(body))
        # The builtin type decides how the object is laid out, so it makes it; no __init__ runs.
        builtin: Any = next(base for base in original.__mro__ if base.__module__ == "builtins")
        error: RankError = builtin.__new__(kind)
        error.__dict__.update(plain.__dict__)
        if loaded is not None:
            _take_over(error, loaded)
        str(error)
    except Exception:  # whatever metaclasses, __new__ and properties of strangers raise
        return None
    return error


def _take_over(error: RankError, loaded: BaseException) -> None:
    """What handlers of the original type read: ``args``, ``errno``, attributes, slots."""
    error.args = loaded.args
    for name, value in loaded.__dict__.items():
        if name not in _OURS:
            error.__dict__[name] = value
    for kind in type(loaded).__mro__:
        if kind in (BaseException, Exception, object):
            continue
        for name, member in vars(kind).items():
            described = isinstance(member, (types.MemberDescriptorType, types.GetSetDescriptorType))
            if described and not name.startswith("__") and hasattr(loaded, name):
                setattr(error, name, getattr(loaded, name))


def _message(
    failures: Mapping[int, RankFailure],
    deaths: Mapping[int, RankDeath],
    results: Mapping[int, Any],
    first: int,
    world_size: int | None,
    log: str,
) -> str:
    failure = failures.get(first)
    lines: list[str] = []
    if failure is None:
        death = deaths.get(first, RankDeath(0))
        lines += [f"rank {first} {death.describe()}"]
        lines += [death.advice()] if death.advice() else []
        lines += [f"What it wrote: {log}"] if log else []
    else:
        lines += [first_line(first, failure)]
        lines += [failure.advice] if failure.advice else []
    rest = [*_others(failures, deaths, first), *_stopped(failures, deaths, results, world_size)]
    return "\n".join([*lines, *([", ".join(rest)] if rest else []), *_finished(results)])


def _others(
    failures: Mapping[int, RankFailure], deaths: Mapping[int, RankDeath], first: int
) -> list[str]:
    """What the other ranks raised and how they died, folded: equal things once."""
    said: dict[str, list[int]] = {}
    main = failures.get(first)
    for rank, failure in failures.items():
        if rank == first:
            continue
        same = main is not None and first_line(0, main) == first_line(0, failure)
        text = "raised the same" if same else f"raised {failure.kind} after that"
        said.setdefault(text, []).append(rank)
    for rank, death in deaths.items():
        if rank != first:
            killed = death.signal is not None and not death.lost_channel
            end = f"killed by {death.signal_name}" if killed else "ended"
            said.setdefault(f"{end} after that", []).append(rank)
    return [f"{ranks_text(ranks)} {text}" for text, ranks in said.items()]


def _stopped(
    failures: Mapping[int, RankFailure],
    deaths: Mapping[int, RankDeath],
    results: Mapping[int, Any],
    world_size: int | None,
) -> list[str]:
    rest = set(range(world_size or 0)) - set(failures) - set(deaths) - set(results)
    if not rest:
        return []
    return [f"{ranks_text(rest)} {'was' if len(rest) == 1 else 'were'} stopped"]


def _finished(results: Mapping[int, Any]) -> list[str]:
    return [f"{ranks_text(results)} had finished: see .results"] if results else []


def ranks_text(ranks: Any) -> str:
    """``rank 3`` or ``ranks 0-2,4``."""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {format_ranks(ranks)}"
