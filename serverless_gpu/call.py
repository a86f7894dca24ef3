"""One call on ranks, from the notebook's side: begin, watch, collect, and say how it went."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from . import (
    _core,
    accelerator,
    captured,
    environ,
    gpu_report,
    hosts,
    logs,
    outcome,
    output,
    pool,
    quiet,
    serialize,
    status,
    stops,
    waiting,
)
from .errors import DistributedTimeoutError, FolderGoneError, OptionError, parse_ranks
from .outcome import Ended
from .tracking import client as tracking

#: Seconds others get to end by themselves after a failure, and user code to clean up after a Stop.
GRACE = 5.0
#: Arguments of this size make the status line say what was sent.
LARGE_ARGUMENT = 64 << 20
DEFAULT_TIMEOUT = 3 * 60 * 60.0

#: One call at a time: a second thread's call waits for the first.
one_call = threading.Lock()


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
    source: Callable[[], str] | None = None  # gives its text, for the run
    arguments: Callable[[], str] | None = None  # gives a short description of them, for the run

    def check_output(self, world: int) -> None:
        """Raises OptionError if the output of a rank is asked for that is not there."""
        chosen = parse_ranks(self.output_ranks) if self.output_ranks else [0]
        if max(chosen) >= world:
            raise OptionError(
                f"output={self.output_ranks}: there is no rank {max(chosen)}; "
                + (f"the ranks are 0-{world - 1}" if world > 1 else "the only rank is 0")
            )


@dataclass(frozen=True)
class Group:
    """The ranks that a call runs on."""

    members: list[tuple[int, int]]  # (rank, child), in rank order
    world: int
    session: bool
    epoch: str
    device: str
    note: str = ""  # for the status line
    devices: tuple[accelerator.Device, ...] = ()  # GPUs of the ranks, in rank order
    imports: _core.Imports = _core.Imports.all  # of the fork server, that they wait for


def run(
    owner: pool.Pool, group: Group, mode: str, payload: serialize.Payload, options: CallOptions
) -> Ended:
    """Runs a dumped request on every member. Blocks until all have ended; never raises for what
    ranks do. Stop ends the ranks, bounded, and is the call's error then. FileNotFoundError if the
    notebook's folder is gone; KeyboardInterrupt if Stop came while another thread's call ran.

    Takes `payload` over.
    """
    with payload, _turn():
        _check_folder()
        with stops.Stops(owner) as presses:
            ended = _run(owner, group, mode, payload, options, presses)
        if presses.pressed and ended.error is None:
            # It came when all ranks had ended; lost, it would have to be pressed again.
            ended = dataclasses.replace(ended, error=stops.CallInterrupted("stopped"))
        return ended


@contextlib.contextmanager
def _turn() -> Iterator[None]:
    """Waits until no other thread's call runs. A Stop meanwhile ends the wait, not that call."""
    began = False
    try:
        with one_call:  # acquire() and release() leave a gap in which a Stop would keep it for ever
            began = True
            yield
    except KeyboardInterrupt:
        if began:
            raise
        said = "stopped while it waited for another thread's call, which goes on"
        raise stops.CallInterrupted(said) from None


def _run(
    owner: pool.Pool,
    group: Group,
    mode: str,
    payload: serialize.Payload,
    options: CallOptions,
    presses: stops.Stops,
) -> Ended:
    host = captured.around(hosts.find())
    parent = host.capture()
    track = tracking.mode(options.mlflow, os.environ)
    handle = None
    call_name = f"{owner.token}-{time.monotonic_ns()}"
    if track != "off":
        surroundings = tracking.capture_context(options.name)
        described = options.arguments() if options.arguments is not None else ""
        tags = tracking.call_tags(options.title, len(group.members), group.device, described)
        handle = owner.tracker().begin(call_name, surroundings, tags=tags, mode=track)
        if options.source is not None:
            handle.log_text(options.source(), "source.py")
    warm = owner.fork_server_up()
    line = status.Status(host, parent, len(group.members), group.device, warm, handle)
    line.imports = lambda: owner.import_seconds(group.imports)
    out = owner.output
    notes = [group.note, out.late_note(lambda: logs.folder_of_all(owner))]
    if payload.nbytes > LARGE_ARGUMENT and payload.largest is not None:
        name, size = payload.largest
        notes.append(
            f"sent {payload.nbytes / 1e9:.1f} GB ({name}: {size / 1e9:.1f} GB); "
            "loading it inside the function is cheaper"
        )
    line.note = " · ".join(filter(None, notes))
    if not warm:
        line.show(ready=False)
    if group.note and not host.rich:  # a script shows no status line
        host.stream(parent, "stderr", f"{group.note}\n".encode())
    frames = [context(owner, group, options, handle), *payload.frames]
    sink = output.Sink(host, parent, group.world, line.open, line.show_again, len(group.members))

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
            bytes_per_second=host.bytes_per_second,
            shown_bytes=host.shown_bytes,
        )

    ticket = out.begin(sink, start)
    presses.began(ticket.id)
    _watch(owner, group, ticket, line, sink)
    over = time.monotonic()
    out.finish(ticket.id)
    if lacking := logs.lacking(owner, ticket.id):
        host.stream(parent, "stderr", lacking.encode())
    ended = outcome.collect(owner, ticket, group.world, options.timeout, presses)
    if handle is not None:
        handle.log_folder(str(logs.folder(owner, ticket.id)), "logs")
    _finish_tracking(handle, ended)
    line.finish(*outcome.final_words(ended), began=ended.began, startup=ended.startup)
    if track == "always":
        out.links.add(line, over)
    return ended


def _check_folder() -> None:
    """Raises FileNotFoundError, in words, if ranks could not work where the notebook does."""
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise FolderGoneError(
            error.errno,
            "the notebook's folder has been deleted, so ranks cannot work in it; change to one "
            "that exists with %cd",
        ) from None


def context(owner: pool.Pool, group: Group, options: CallOptions, handle: Any) -> bytes:
    """What ranks make their surroundings of, see rank/environment.py."""
    folder = os.getcwd()
    env = {**environ.now(), **accelerator.rank_environment(), **options.env}
    path = [entry or folder for entry in sys.path]
    processes = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    whole = {
        # A pickle of its own: ranks open it only if it is not that of the last call.
        "surroundings": pickle.dumps((env, folder, path, processes), 5),
        "threads": accelerator.threads_per_rank(group.world),
        "store_file": owner.store_file(),
        "epoch": group.epoch,
        "session": group.session,
        "tracking": None if handle is None else handle.rank_config(),
    }
    return pickle.dumps(whole, 5)


def _watch(
    owner: pool.Pool, group: Group, ticket: Any, line: status.Status, sink: output.Sink
) -> None:
    """Waits for the end of the call and updates its line."""
    if ticket.wait(status.UNSEEN):
        return
    line.open()
    watch = quiet.QuietWatch(owner.core, group.members)
    peers = waiting.FailedPeerWatch(owner.core, group.members, ticket.id)
    while not ticket.wait(status.INTERVAL):
        owner.keep_store()  # one that has died is replaced: ranks may be waiting for it
        view = ticket.view()
        peers.look(view)
        line.show(
            view,
            ready=owner.forked(group.members),
            quiet=watch.look(view, sink.last_output),
            gpus=gpu_report.gpu_report(group.devices),
        )


def _finish_tracking(handle: Any, ended: Ended) -> None:
    if handle is None:
        return
    tags: dict[str, str] = {}
    verdict: tracking.Status = "FINISHED"
    if isinstance(ended.error, (KeyboardInterrupt, DistributedTimeoutError)):
        verdict = "KILLED"
        if isinstance(ended.error, DistributedTimeoutError):
            tags["serverless_gpu.error"] = str(ended.error)[:500]
    elif ended.error is not None:
        verdict = "FAILED"
        tags["serverless_gpu.failed_rank"] = str(getattr(ended.error, "rank", ""))
        tags["serverless_gpu.error"] = str(ended.error)[:500]
    # Who can look into the store from here finds all of it there; else nobody has to wait.
    limit = tracking.REMOTE_LIMIT_S if handle.remote else tracking.END_LIMIT_S
    handle.end(verdict, tags, timeout=limit if "mlflow" in sys.modules else 0.0)
