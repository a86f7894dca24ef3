"""The tracker: the only process that opens the tracking store.

Two threads: inbox.py takes packets off the sockets, the main thread writes them in batches and
answers questions. It outlives no notebook: at most LEAVE_S after the end of the notebook's process
(seen through a pidfd, since children of the notebook may hold its sockets open) it has marked the
open runs KILLED and is gone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
import warnings
from typing import Any

from serverless_gpu.tracking import fresh, held, link, surroundings, system
from serverless_gpu.tracking.attachments import Attachments
from serverless_gpu.tracking.batches import BatchWriter
from serverless_gpu.tracking.inbox import Inbox, Peer, listen
from serverless_gpu.tracking.leftovers import Leftovers
from serverless_gpu.tracking.packets import (
    Answer,
    Ask,
    Attach,
    Began,
    Begin,
    End,
    Ended,
    Log,
    Note,
)
from serverless_gpu.tracking.questions import Asker, Questions, UnknownCall
from serverless_gpu.tracking.runs import Call, Runs, open_store
from serverless_gpu.tracking.trouble import one_line, portable
from serverless_gpu.tracking.ui import Uis

BATCH_S = 0.1  # how long metrics are gathered before they are written
WRITE_AFTER_END_S = 1.0  # from the notebook's end until its runs are marked, written or not


def main(config: dict[str, Any]) -> None:
    """Runs the tracker until the notebook's process has ended or has said bye.

    ``config``: "socket" path to listen on (in a folder private to the user), "notebook_pid",
    "cwd" and "env" of the notebook.

    Threads: in the main thread of a process of its own. Errors: OSError if it cannot listen.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.update(config["env"])
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    listener = listen(config["socket"])
    try:
        notebook = os.pidfd_open(config["notebook_pid"])
    except ProcessLookupError:
        return
    # "Creating initial database tables" and the like would come out of nowhere for the user.
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    warnings.simplefilter("ignore")
    with contextlib.suppress(OSError):
        # Same share of the CPU, but waking up takes it from nobody: begin() and log_metric() return
        # before the tracker starts to work on what they have sent.
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    sys.setswitchinterval(0.0005)  # the reader must not wait long for a writer in pure Python
    writer: list[_Writer] = []

    def leave_at_once() -> None:
        with contextlib.suppress(Exception):
            writer[0].save_rest()
        os._exit(1)

    inbox = Inbox(listener, notebook, on_late=leave_at_once)
    reader = threading.Thread(target=inbox.read, name="tracker-inbox", daemon=True)
    reader.start()
    with contextlib.suppress(Exception):
        fresh.template()  # once per version of MLflow; the first call then finds it
    try:
        writer.append(_Writer(inbox))
        writer[0].run()
    finally:
        inbox.finished()
        reader.join(1.0)


class _Writer:
    """The main thread: the only user of the stores."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._uis = Uis()
        self._batches = BatchWriter(open_store, inbox.leaving)
        self._runs = Runs(self._uis.port, self._batches)
        self._questions = Questions(self._runs, self._batches)
        self._attachments = Attachments(self._batches)
        self._leftovers = Leftovers()
        self._sampler = system.Sampler()
        self._taken: list[tuple[Peer, Any]] = []  # off the inbox, not handled yet
        self._parked: list[tuple[Peer, Ask, float]] = []  # until the Begin of their call is here
        self._attached: dict[str, list[Attach]] = {}  # until the run of their call is there
        self._notebook: Peer | None = None

    def run(self) -> None:
        give_up: float | None = None
        while (items := self._inbox.take(BATCH_S, idle=self._idle())) is not None:
            self._taken = items[::-1]
            logs: list[Log] = []
            while self._taken:
                peer, message = self._taken.pop()
                if type(message) is tuple:
                    logs.append(self._at_home(message))
                    continue
                self._batches.write(logs)
                logs = []
                self._handle(peer, message)
            self._batches.write(logs)
            if not self._inbox.leaving.is_set():
                self._retry(at_once=False)
                self._take_up()
                self._sample()
            self._tell_news()
            self._refuse_late()
            if self._inbox.leaving.is_set():
                give_up = give_up or time.monotonic() + WRITE_AFTER_END_S
                if time.monotonic() > give_up:
                    break
        self._runs.kill_open()
        self._uis.close()

    def _idle(self) -> bool:
        """Whether there is nothing to do until something comes."""
        busy = self._parked or self._batches.unsettled() or self._leftovers.under_way()
        return not busy and not any(call.open for call in self._runs.calls.values())

    def save_rest(self) -> None:
        """In the reader's thread, when run() is stuck in a store after the notebook's end: what is
        in memory goes into files, and so does the end of open runs."""
        taken = [*self._taken[::-1], *(self._inbox.take(0) or [])]
        logs = [self._at_home(message) for _, message in taken if type(message) is tuple]
        self._batches.save_rest(logs)
        for call in self._runs.calls.values():
            for run in call.runs() if call.open else []:
                self._batches.keep(run.uri, end=[run.run_id, "KILLED", int(time.time() * 1000)])

    def _at_home(self, log: Log) -> Log:
        uri, run_id, rows, tags = log
        return self._runs.home(run_id, uri), run_id, rows, tags

    def _handle(self, peer: Peer, message: Any) -> None:
        if isinstance(message, Ask):
            self._answer(peer, message, time.monotonic() + link.RUN_LIMIT_S)
        elif isinstance(message, Note):
            assert peer.hello is not None
            self._runs.note(peer.hello.call, message.status)
        elif isinstance(message, Begin):
            self._notebook = peer
            self._runs.begin(message)
            self._tell_news()
            self._answer_parked()
        elif isinstance(message, Attach):
            self._attached.setdefault(message.call, []).append(message)
            self._write_attached()
        elif isinstance(message, End):
            self._notebook = peer
            self._end(message)

    # ---- questions

    def _answer(self, peer: Peer, ask: Ask, deadline: float) -> None:
        assert peer.hello is not None
        who = Asker(peer.hello.call, peer.hello.rank, ask.uri)
        error: BaseException | None = None
        value = None
        try:
            value = self._questions.answer(who, ask.method, ask.args, ask.kwargs)
        except UnknownCall:
            self._parked.append((peer, ask, deadline))
            return
        except Exception as raised:
            error = portable(raised)
        self._tell_news()
        try:
            peer.send(Answer(ask.number, error, value))
        except OSError:
            return  # the rank has ended, or was interrupted and has asked anew elsewhere
        except Exception as unpicklable:
            text = f"{ask.method}: the answer cannot leave the tracker: {one_line(unpicklable)}"
            with contextlib.suppress(OSError):
                peer.send(Answer(ask.number, RuntimeError(text), None))

    def _answer_parked(self) -> None:
        parked, self._parked = self._parked, []
        for peer, ask, deadline in parked:
            self._answer(peer, ask, deadline)

    def _refuse_late(self) -> None:
        now = time.monotonic()
        late = [entry for entry in self._parked if entry[2] < now]
        self._parked = [entry for entry in self._parked if entry[2] >= now]
        for peer, ask, _deadline in late:
            error = TimeoutError("MLflow: the notebook has not told the tracker about this call")
            with contextlib.suppress(OSError):
                peer.send(Answer(ask.number, error, None))

    # ---- the notebook

    def _tell_news(self) -> None:
        for call_id, call in self._runs.calls.items():
            if not call.open and call.told[1:] in ((), (None,)):
                continue
            if call.open:
                self._runs.take_notice(call)
            news = (call.info, self._runs.trouble(call))
            if news != call.told and (call.told or news != (None, None)):
                call.told = news
                self._tell(Began(call_id, *news, self._runs.names(call)))
                self._describe(call)
                self._write_attached()

    def _end(self, end: End) -> None:
        self._write_attached()
        for item in self._attached.pop(end.call, []):
            held.release(item)
        call = self._runs.calls.get(end.call)
        try:
            self._runs.end(end)
            error = None
        except Exception as raised:
            error = f"MLflow: the run could not be ended: {one_line(raised)}"
        self._retry(at_once=True)
        trouble = None
        if call is not None:
            self._runs.take_notice(call)
            trouble = self._runs.trouble(call)
        if call is not None and call.told != (call.info, trouble):
            call.told = (call.info, trouble)
            self._tell(Began(end.call, *call.told))
        lost = self._batches.take_error([run.run_id for run in call.runs()] if call else [])
        self._tell(Ended(end.call, error or lost or trouble))

    def _retry(self, *, at_once: bool) -> None:
        for uri, done in self._batches.retry(time.monotonic(), at_once=at_once).items():
            if done.copied:
                self._runs.moved(done.copied)
            if done.refused and not at_once:  # at a call's end it is told of that call
                text = f"MLflow: the store refused {len(done.refused)} of what was kept for it"
                self._runs.notices[uri] = f"{text}: {done.refused[0]}"

    def _take_up(self) -> None:
        done = self._leftovers.write()
        if done is not None:
            uri, text = done
            self._runs.notices[uri] = text

    def _write_attached(self) -> None:
        for call_id in list(self._attached):
            call = self._runs.calls.get(call_id)
            if call is None or call.run is None:
                continue
            for item in self._attached.pop(call_id):
                text = self._attachments.add(call.run, item)
                if text is not None:
                    self._tell(Began(call_id, call.info, text))

    def _describe(self, call: Call) -> None:
        """Where the call runs, once its run is there."""
        run = call.run
        if run is None or call.described:
            return
        call.described = True
        if not call.stands_in:
            self._leftovers.look(call.uri)
        item = Attach(call.begin.call, surroundings.FILE, surroundings.environment(), None)
        self._attached.setdefault(call.begin.call, []).append(item)

    def _sample(self) -> None:
        """System metrics, once for the machine, into the runs of calls whose turn it is: first
        after a whole interval, so that quick calls have none."""
        pause, now = system.interval(os.environ), time.monotonic()
        running = [call for call in self._runs.calls.values() if call.open and call.run]
        due = [call for call in running if pause and now > (call.sampled_at or now) + pause]
        for call in running:
            if call.sampled_at is None:
                call.sampled_at = now
                self._sampler.restart()
        if not due:
            return
        values, stamp = self._sampler.sample(), int(time.time() * 1000)
        for call in due:
            assert call.run is not None
            rows = [(name, value, stamp, call.samples) for name, value in values.items()]
            call.samples, call.sampled_at = call.samples + 1, now
            self._batches.write([(call.run.uri, call.run.run_id, rows, [])])

    def _tell(self, message: Began | Ended) -> None:
        if self._notebook is not None:
            try:
                self._notebook.send(message)
            except OSError:
                self._notebook = None  # it has ended: the inbox sees that as well
