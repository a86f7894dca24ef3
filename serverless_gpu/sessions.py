"""The session: ranks that `%%distributed` cells share, each with a namespace that persists."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

from . import (
    _core,
    accelerator,
    call,
    gpu_claims,
    gpu_warm,
    outcome,
    places,
    pool,
    serialize,
    stops,
    variables,
)
from .session_requests import check_ranks, numbers_of, other_size

_sessions = itertools.count(1)
_epochs = itertools.count(1)
#: Seconds until the pool must know of a rank that has ended; it takes milliseconds.
_NEWS_S = 5.0
#: Seconds for the exit handlers of ranks before all processes are ended.
_LEAVE_S = 1.0


_WAITED = "stopped while it waited for another thread's call in the session, which goes on"


class Session:
    """The ranks that cells share, or none yet. `session()` gives the notebook's one.

    Threads: any; one call at a time.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._owner: pool.Pool | None = None
        self._children: list[int] = []
        self._device = ""
        self._devices: tuple[accelerator.Device, ...] = ()
        self._number = 0  # of this session among the notebook's
        self._epoch = ""
        self._claim = gpu_claims.Claim()
        self._note = ""  # for the next status line
        self._variables: dict[int, variables.Variables] = {}  # by child, once it has told them

    @property
    def gpus(self) -> int:
        """Ranks of the session; 0 if there is none."""
        return len(self._children) if self._alive() else 0

    def run(
        self,
        code: str,
        *,
        gpus: int | None = None,
        gpu_type: str | None = None,
        ranks: Iterable[int] | str | None = None,
        push: Mapping[str, Any] | None = None,
        pull: Iterable[str] = (),
        fresh: bool = False,
        options: call.CallOptions | None = None,
        number: int = places.NO_CELL,
        head: str = "",
        wait: float | None = None,
    ) -> dict[str, list[Any]]:
        """Runs `code` as a cell on the ranks; makes the session if there is none.

        `ranks` are numbers, or a text such as "0,3-5". `push` sets variables in the ranks first;
        `number` is the cell's in tracebacks, if it is one of the notebook's, and `head`
        the lines above the code in it, which are not run; `wait`: seconds to wait for GPUs that
        another notebook has, if the session is made. Returns for each name in `pull` the list of
        its values, in rank order. Raises what `DistributedFunction.distributed` raises, and
        SessionError if `gpus` or `ranks` do not fit the session.
        """
        with stops.in_one_line("stopped before it had begun"), self._lock:
            count, here = accelerator.check(gpus, gpu_type)
            chosen = numbers_of(ranks)
            names = list(pull)
            pushed = dict(push or {})
            request = (code, head, number, pushed, names)
            # Before the session changes: what cannot be sent costs nobody a variable.
            with serialize.dump(request, what="cell", variables=pushed) as payload:
                options = options or call.CallOptions(title="cell")
                if fresh or not self._children:  # the session to be is known already
                    options.check_output(count)
                    check_ranks(chosen, count)
                if fresh:
                    self.stop()
                said_in = "run" if number == places.NO_CELL else "cell"
                self._ensure(count if gpus is not None else None, count, here, wait, said_in)
                members = self._members(chosen)
                values = self._run("cell", payload, options, members)
            return {name: [values[rank][name] for rank, _ in members] for name in names}

    def run_function(
        self,
        payload: serialize.Payload,
        options: call.CallOptions,
        gpus: int | None,
        here: accelerator.Accelerator,
        wait: float | None = None,
    ) -> list[Any]:
        """Runs a dumped function call in the session's ranks."""
        with self._lock:
            self._ensure(gpus, gpus or here.default_ranks, here, wait, "function")
            members = self._members(None)
            values = self._run("function", payload, options, members)
            return [values[rank] for rank, _ in members]

    def push(self, ranks: Iterable[int] | str | None = None, **variables: Any) -> None:
        """Sets variables in the ranks."""
        self.run("", ranks=ranks, push=variables, options=call.CallOptions(mlflow="off"))

    def pull(self, name: str, ranks: Iterable[int] | str | None = None) -> list[Any]:
        """The variable's values, one per rank, in rank order."""
        off = call.CallOptions(mlflow="off")
        return self.run("", ranks=ranks, pull=[name], options=off)[name]

    def restart(self) -> None:
        """New ranks in place of the session's; their variables are gone. Waits for a call of
        another thread in the session."""
        with stops.in_one_line(_WAITED), self._lock:
            count = self.gpus
            self.stop()
            if count:
                self._ensure(None, count, accelerator.detect())

    def stop(self) -> None:
        """Ends the session's ranks. The next cell makes new ones."""
        with self._lock:
            if self._alive() and self._owner is not None:
                self._owner.core.retire(self._children)
            self._give_back()
            self._owner, self._children, self._variables = None, [], {}

    def leave(self) -> None:
        """As `stop`, and waits until the ranks have ended, so that what their code has left for the
        end of its process (`atexit`) is done. Threads: any; does nothing while a call runs."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            pids = self.pids()
            self.stop()
            deadline = time.monotonic() + _LEAVE_S
            while len(_core.ended_among(pids)) < len(pids) and time.monotonic() < deadline:
                time.sleep(0.005)
        finally:
            self._lock.release()

    def lost(self, owner: pool.Pool) -> None:
        """The pool has ended by itself: other notebooks can have the GPUs. While a call runs that
        is for its end to do. Threads: any; does not wait."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._owner is owner:
                self._give_back()
        finally:
            self._lock.release()

    def pids(self) -> list[int]:
        """Of the session's ranks that are there."""
        return [rank["pid"] for rank in self.status()["ranks"] if rank["alive"]]

    def status(self) -> dict[str, Any]:
        """What there is: `ranks` (a dict per rank with `rank`, `pid`, `alive`, and `starting`: not
        forked yet), `device`."""
        owner = self._owner if self._alive() else None
        pids = owner.core.pids()["children"] if owner is not None else {}
        dead = owner.core.dead_children() if owner is not None else self._children
        ranks = [
            {
                "rank": rank,
                "pid": pids.get(child),
                "alive": child in pids,
                "starting": child not in pids and child not in dead,
            }
            for rank, child in enumerate(self._children)
        ]
        return {"ranks": ranks, "device": self._device}

    def peer(self, rank: int) -> tuple[pool.Pool, call.Group] | None:
        """The pool and one rank, for a question beside the cells; None if there is none now."""
        owner, children = self._owner, self._children  # another thread may end the session
        if owner is None or not self._alive() or rank >= len(children):
            return None
        child = children[rank]
        if child in owner.core.dead_children():
            return None
        group = call.Group([(rank, child)], len(children), True, self._epoch, self._device)
        return owner, group

    def _alive(self) -> bool:
        owner = self._owner
        return owner is not None and owner is pool.running() and not owner.core.broken

    def _give_back(self) -> None:
        gpu_claims.leave(self._children, self._claim)
        self._claim = gpu_claims.Claim()

    def _ensure(
        self,
        asked: int | None,
        count: int,
        here: accelerator.Accelerator,
        wait: float | None = None,
        said_in: str = "cell",
    ) -> None:
        """`said_in`: where `asked` comes from, see other_size."""
        if self._children and not self._alive():
            print("The session's ranks ended with their guard; these are new, without variables.")
            if asked is None:
                count = len(self._children)
            self._give_back()
            self._children, self._variables = [], {}
        if self._children:
            if asked is not None and asked != len(self._children):
                raise other_size(len(self._children), asked, said_in)
            self._await_news_of_ended()
            self._replace_dead()
            return
        owner = pool.get()
        claim = gpu_claims.take(here.devices[:count], wait, owner)
        with stops.held():  # GPUs without ranks on them would be kept, and counted twice later
            self._claim, self._note, self._owner = claim, claim.note, owner
            gpu_warm.check(owner)
            self._children = owner.core.take(count)
            self._device, self._devices = here.label, here.devices[:count]
            self._number = next(_sessions)
            self._new_epoch()

    def _await_news_of_ended(self) -> None:
        """A rank that has ended a moment ago may not be known as dead yet; a call would fail on it
        that could have had a fresh one. Waits for the news, _NEWS_S seconds at most."""
        assert self._owner is not None
        pids = self._owner.core.pids()["children"]
        ended_pids = set(_core.ended_among([pids[c] for c in self._children if c in pids]))
        ended = {child for child in self._children if pids.get(child) in ended_pids}
        deadline = time.monotonic() + _NEWS_S
        while not ended <= set(self._owner.core.dead_children()) and time.monotonic() < deadline:
            time.sleep(0.005)

    def _replace_dead(self, died: Iterable[int] = ()) -> None:
        """New ranks for dead ones. It is said if anything is lost, and of those in `died`."""
        assert self._owner is not None
        gone = self._owner.core.dead_children()
        ranks = [rank for rank, child in enumerate(self._children) if child in gone]
        if not ranks:
            return
        old = {rank: self._variables.pop(self._children[rank], None) for rank in ranks}
        # Of those that died in a call its error tells.
        idle = {rank: gone[self._children[rank]] for rank in ranks if rank not in set(died)}
        with stops.held():
            self._owner.core.retire([self._children[rank] for rank in ranks])
            for rank, child in zip(ranks, self._owner.core.take(len(ranks)), strict=True):
                self._children[rank] = child
            self._new_epoch()
        said = [rank for rank, had in old.items() if had is not None or rank in set(died)]
        if said:
            ends = {rank: end for rank, end in idle.items() if rank in said}
            gone_with = variables.gone_with(said, filter(None, old.values()))
            print(gone_with + outcome.how_they_ended(ends))

    def _new_epoch(self) -> None:
        assert self._owner is not None
        self._epoch = f"{self._owner.token}-s{self._number}.{next(_epochs)}"

    def _members(self, ranks: Iterable[int] | None) -> list[tuple[int, int]]:
        wanted = range(len(self._children)) if ranks is None else sorted(set(ranks))
        check_ranks(wanted, len(self._children))
        return [(rank, self._children[rank]) for rank in wanted]

    def _run(
        self,
        mode: str,
        payload: serialize.Payload,
        options: call.CallOptions,
        members: list[tuple[int, int]],
    ) -> dict[int, Any]:
        assert self._owner is not None
        options.check_output(len(self._children))
        note, self._note = self._note, ""
        group = call.Group(
            members,
            len(self._children),
            True,
            self._epoch,
            self._device,
            note,
            tuple(self._devices[rank] for rank, _ in members if rank < len(self._devices)),
        )
        ended = call.run(self._owner, group, mode, payload, options)
        self._variables.update({self._children[r]: had for r, had in ended.variables.items()})
        if ended.unsound:
            self._new_epoch()
        if self._owner.core.broken:
            self._give_back()
        elif ended.deaths:
            self._replace_dead(ended.deaths)
        if ended.error is not None:
            raise ended.error
        return ended.values


_session = Session()


def session() -> Session:
    """The notebook's session: `run`, `push`, `pull`, `restart`, `stop`, `status`."""
    return _session
