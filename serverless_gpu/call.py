"""One call on ranks, from the notebook's side: begin, watch, collect, and say how it went."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from . import accelerator, hosts, output, pool, serialize, status
from .errors import (
    DistributedTimeoutError,
    RankDeath,
    RankFailure,
    ResultError,
    build_error,
    build_timeout,
    format_ranks,
)
from .tracking import client as tracking

#: Seconds others get to end by themselves after a failure, and user code to clean up after a Stop.
GRACE = 5.0
#: Seconds that a call whose work is done waits for its run to exist; a new store takes 1.5 s once.
LINK_LIMIT = 10.0
#: The same once the store has shown to be slow.
SLOW_LINK_LIMIT = 0.5
#: Arguments of this size make the status line say what was sent.
LARGE_ARGUMENT = 64 << 20
DEFAULT_TIMEOUT = 3 * 60 * 60.0

#: One call at a time: a second thread's call waits for the first.
_one_call = threading.Lock()


class CallInterrupted(KeyboardInterrupt):
    """The user pressed Stop; all ranks have ended what they did."""

    def _render_traceback_(self) -> list[str]:
        return [f"KeyboardInterrupt: {self}"]


CallInterrupted.__name__ = CallInterrupted.__qualname__ = "KeyboardInterrupt"


@dataclass(frozen=True)
class CallOptions:
    """What a call was asked for besides its code."""

    timeout: float | None = DEFAULT_TIMEOUT
    mlflow: str | None = None
    name: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    output: str = "merged"
    output_ranks: str = ""
    title: str = ""  # what runs: a function's name, or "cell"
    source: str = ""  # its text, for the run


@dataclass(frozen=True)
class Group:
    """The ranks that a call runs on."""

    members: list[tuple[int, int]]  # (rank, child), in rank order
    world: int
    session: bool
    epoch: str
    device: str


@dataclass(frozen=True)
class Ended:
    """How a call ended: what `run` returns or raises is made of it."""

    values: dict[int, Any]
    failures: dict[int, RankFailure]
    deaths: dict[int, RankDeath]
    unsound: bool  # ranks were stopped in the middle: their groups are not to be used again
    dead: list[int]  # ranks
    error: BaseException | None


def run(
    owner: pool.Pool, group: Group, mode: str, payload: serialize.Payload, options: CallOptions
) -> Ended:
    """Runs a dumped request on every member. Blocks until all have ended; never raises for what
    ranks do. KeyboardInterrupt while it waits stops the ranks, bounded. FileNotFoundError if the
    notebook's folder is gone.

    Takes `payload` over.
    """
    with _one_call:
        _check_folder()
        return _run(owner, group, mode, payload, options)


def _run(
    owner: pool.Pool, group: Group, mode: str, payload: serialize.Payload, options: CallOptions
) -> Ended:
    host = hosts.find()
    parent = host.capture()
    track = tracking.mode(options.mlflow, os.environ)
    handle = None
    call_name = f"{owner.token}-{time.monotonic_ns()}"
    if track != "off":
        context = tracking.capture_context(options.name)
        tags = {"mlflow.source.name": options.title} if options.title else {}
        handle = owner.tracker().begin(call_name, context, tags=tags, mode=track)
    warm = owner.fork_server_up()
    line = status.Status(host, parent, len(group.members), group.device, warm, handle)
    if payload.nbytes > LARGE_ARGUMENT and payload.largest is not None:
        name, size = payload.largest
        line.note = (
            f"sent {payload.nbytes / 1e9:.1f} GB ({name}: {size / 1e9:.1f} GB); "
            "loading it inside the function is cheaper"
        )
    line.show(ready=warm)
    frames = [_context(owner, group, options, handle), *payload.frames]
    out = owner.output
    sink = output.Sink(host, parent, group.world, _shown_ranks(options))

    def start() -> Any:
        return owner.core.begin_call(
            members=group.members,
            world=group.world,
            mode=mode,
            frames=frames,
            fd=payload.detach(),
            timeout=options.timeout,
            grace=GRACE,
            output=options.output,
            output_ranks=options.output_ranks,
            colour=host.colour,
        )

    began_ns = time.monotonic_ns()
    ticket = out.begin(sink, start)
    stopped = _watch(owner, ticket, line)
    out.finish(ticket.id)
    ended = _collect(owner, ticket, group, options, stopped, began_ns)
    if handle is not None and track == "always":
        _await_link(owner, handle)
    _finish_tracking(handle, ended)
    line.finish(*_final_words(ended))
    return ended


def _await_link(owner: pool.Pool, handle: tracking.RunHandle) -> None:
    """The line of a call that was quicker than the store still ends with the link of its run."""
    limit = time.monotonic() + (SLOW_LINK_LIMIT if owner.slow_store else LINK_LIMIT)
    while handle.info() is None and handle.error is None:
        if time.monotonic() >= limit:
            owner.slow_store = True
            return
        handle.wait(limit - time.monotonic())


def _check_folder() -> None:
    """Raises FileNotFoundError, in words, if ranks could not work where the notebook does."""
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise FileNotFoundError(
            error.errno,
            "the notebook's folder has been deleted, so ranks cannot work in it; change to one "
            "that exists with %cd",
        ) from None


def _shown_ranks(options: CallOptions) -> frozenset[int] | None:
    if options.output == "none":
        return frozenset()
    if options.output != "ranks":
        return None
    shown: set[int] = set()
    for part in options.output_ranks.split(","):
        first, _, last = part.partition("-")
        shown.update(range(int(first), int(last or first) + 1))
    return frozenset(shown)


def _context(owner: pool.Pool, group: Group, options: CallOptions, handle: Any) -> bytes:
    """What ranks make their surroundings of, see rank/environment.py."""
    tracked = None
    if handle is not None:
        tracked = {rank: handle.rank_config(rank) for rank, _ in group.members}
    folder = os.getcwd()
    context = {
        "env": {**os.environ, **options.env},
        "cwd": folder,
        "path": [entry or folder for entry in sys.path],
        "threads": accelerator.threads_per_rank(group.world),
        "seed": None,
        "store_file": owner.store_file(),
        "epoch": group.epoch,
        "session": group.session,
        "tracking": tracked,
    }
    return pickle.dumps(context, 5)


def _watch(owner: pool.Pool, ticket: Any, line: status.Status) -> bool:
    """Waits for the end, updates the line. True if the user pressed Stop."""
    stopped = False
    while True:
        try:
            if ticket.wait(status.INTERVAL):
                return stopped
            line.show(ticket.view(), ready=owner.fork_server_up())
        except KeyboardInterrupt:
            stopped = True
            owner.core.stop(ticket.id)


def _collect(
    owner: pool.Pool,
    ticket: Any,
    group: Group,
    options: CallOptions,
    stopped: bool,
    began_ns: int,
) -> Ended:
    view = ticket.view()
    values: dict[int, Any] = {}
    failures: dict[int, RankFailure] = {}
    deaths: dict[int, RankDeath] = {}
    order: list[tuple[bool, float, int]] = []  # (consequence, seconds, rank) of the unreturned
    consequences: set[int] = set()
    for o in ticket.outcomes():
        rank = o["rank"]
        if o["state"] == "died":
            deaths[rank] = _death(o)
            order.append((o["consequence"], o["seconds"], rank))
        else:
            try:
                loaded = serialize.load(o["frames"], o["fd"])
            except BaseException as problem:
                loaded = _unloadable(rank, problem)
            if o["consequence"] and (_is_abort(loaded) or _follows(loaded)):
                pass  # it only did as it was told
            elif isinstance(loaded, RankFailure) and o["state"] == "raised":
                failures[rank] = loaded
                # One clock for all processes: the time of raising, not that of arriving here.
                when = (o["raised_ns"] - began_ns) / 1e9
                order.append((o["consequence"] or _follows(loaded), when, rank))
            elif isinstance(loaded, ResultError):
                failures[rank] = RankFailure("ResultError", str(loaded))
                order.append((False, o["seconds"], rank))
            else:
                values[rank] = loaded
        if o["consequence"]:
            consequences.add(rank)
    unsound = view["cause"] in ("stop", "deadline") or bool(consequences) or bool(deaths)
    error = _error(owner, view, values, failures, deaths, sorted(order), group, options, stopped)
    return Ended(values, failures, deaths, unsound, sorted(deaths), error)


def _is_abort(loaded: object) -> bool:
    kinds = ("CallAborted", "KeyboardInterrupt")
    return isinstance(loaded, RankFailure) and loaded.kind.rpartition(".")[2] in kinds


def _unloadable(rank: int, error: BaseException) -> ResultError:
    return ResultError(rank, f"its result cannot be unpickled here: {error!r}")


def _follows(failure: object) -> bool:
    """Whether an exception speaks of another rank's end: it then is not the first cause, whatever
    the order of arrival."""
    if not isinstance(failure, RankFailure):
        return False
    text = f"{failure.kind}: {failure.message}"
    return failure.kind.rpartition(".")[2] in ("DistNetworkError", "DistBackendError") or any(
        sign in text for sign in ("Connection closed by peer", "Connection reset by peer", "gloo/")
    )


def _death(outcome: dict[str, Any]) -> RankDeath:
    code = outcome["status"]
    if not outcome["exit_known"]:
        return RankDeath(outcome["pid"], signal=signal.SIGKILL)
    if os.WIFSIGNALED(code):
        return RankDeath(outcome["pid"], signal=os.WTERMSIG(code))
    return RankDeath(outcome["pid"], exit_code=os.waitstatus_to_exitcode(code))


def _error(
    owner: pool.Pool,
    view: dict[str, Any],
    values: dict[int, Any],
    failures: dict[int, RankFailure],
    deaths: dict[int, RankDeath],
    order: list[tuple[bool, float, int]],
    group: Group,
    options: CallOptions,
    stopped: bool,
) -> BaseException | None:
    if view["cause"] == "deadline":
        assert options.timeout is not None
        return build_timeout(options.timeout, view["stacks"], failures, values)
    if view["cause"] == "stop" or (stopped and not order):
        killed = sorted(deaths)
        text = "stopped"
        if killed:
            text = f"stopped; rank {format_ranks(killed)} had to be killed"
        return CallInterrupted(text)
    if not order:
        return None
    first = order[0][2]
    if first in deaths and (reason := owner.why_dead()) and owner.core.broken:
        return pool.PoolError(f"{reason}. The next call starts new ranks")
    if first in deaths and not deaths[first].pid:
        return pool.PoolError(
            f"rank {first} could not be started: {owner.why_dead() or 'out of processes'}"
        )
    return build_error(failures, deaths, values, first, group.world)


def _finish_tracking(handle: Any, ended: Ended) -> None:
    if handle is None:
        return
    tags: dict[str, str] = {}
    outcome = "FINISHED"
    if isinstance(ended.error, (KeyboardInterrupt, DistributedTimeoutError)):
        outcome = "KILLED"
    elif ended.error is not None:
        outcome = "FAILED"
        tags["serverless_gpu.failed_rank"] = str(getattr(ended.error, "rank", ""))
        tags["serverless_gpu.error"] = str(ended.error)[:500]
    # Who can look into the store from here finds all of it there; else nobody has to wait.
    handle.end(outcome, tags, timeout=tracking.END_LIMIT_S if "mlflow" in sys.modules else 0.0)


def _final_words(ended: Ended) -> tuple[str, str, str]:
    """The mark, the word before the seconds, and what failed."""
    error = ended.error
    if error is None:
        return "✓", "done in", ""
    if isinstance(error, KeyboardInterrupt):
        return "■", "stopped after", ""
    if isinstance(error, DistributedTimeoutError):
        return "✗", "timeout after", ""
    rank = getattr(error, "rank", -1)
    if rank in ended.failures:
        return "✗", "failed after", f"rank {rank}: {ended.failures[rank].kind}"
    return "✗", "failed after", f"rank {rank} died" if rank in ended.deaths else ""
