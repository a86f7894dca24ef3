"""What the ranks' questions mean.

A method is looked up as ``_on_<name>`` here, else it is the real store's. Names with "!" are our
own:

    !run    the call's run, made now if need be
    !attr   whether a name is a method of the store, and its value if not
    !away   where files are kept if the store is away
    !keep   files are to be uploaded when it is back
    !flush  all that was sent before is written (the tracker sees to that for every question)

What a single rank must not decide is decided here: which run ``create_run`` enters, when a run
ends, whose value of a parameter holds.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from serverless_gpu.tracking.batches import BatchWriter
from serverless_gpu.tracking.runs import (
    END_NAME,
    RUNNING,
    Call,
    Runs,
    SharedRun,
    verdict,
)
from serverless_gpu.tracking.store import pack_inputs
from serverless_gpu.tracking.trouble import unreachable

#: What is kept of what these questions are for, where it is not plain.
_INSTEAD = {
    "create_logged_model": "files are kept: save_model(FOLDER), then mlflow.log_artifacts(FOLDER)"
}

_PARENT, _NAME, _NOTE = "mlflow.parentRunId", "mlflow.runName", "mlflow.note.content"


class UnknownCall(LookupError):
    """A rank is ahead of the notebook's Begin: ask again once that is here."""


@dataclass(frozen=True)
class Asker:
    """A rank of a call, and the tracking URI as it sees it."""

    call: str
    rank: int
    uri: str


class Questions:
    """Used by the tracker's main thread only."""

    def __init__(self, runs: Runs, batches: BatchWriter) -> None:
        self._runs = runs
        self._batches = batches

    def answer(self, who: Asker, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Errors: UnknownCall, or what the store raises."""
        call = self._runs.calls.get(who.call)
        if call is None:
            raise UnknownCall(who.call)
        who = Asker(who.call, who.rank, self._runs.seen_from(call, who.uri))
        own = getattr(self, "_on_" + method.lstrip("!"), None)
        if own is not None:
            return own(who, *args, **kwargs)
        run_id = kwargs.get("run_id") or (args[0] if args else None)
        return self._of_store(self._runs.home(run_id, who.uri), method, args, kwargs)

    def _of_store(self, uri: str, method: str, args: Any, kwargs: Any) -> Any:
        """What cannot be kept and done later. Nobody waits twice for a store that is away."""
        if self._batches.away(uri):
            raise self._unanswered(uri, method)
        try:
            return getattr(self._runs.store(uri), method)(*args, **kwargs)
        except Exception as error:
            if unreachable(error):
                self._batches.probe(uri)
            if not self._batches.away(uri):
                raise
            raise self._unanswered(uri, method) from error

    def _unanswered(self, uri: str, method: str) -> Exception:
        from mlflow.exceptions import MlflowException
        from mlflow.protos.databricks_pb2 import TEMPORARILY_UNAVAILABLE

        text = f"{self._batches.reason(uri)}; {method} has to wait until it is back"
        kept = _INSTEAD.get(method, "what is logged is kept")
        return MlflowException(f"{text}, while {kept}", TEMPORARILY_UNAVAILABLE)

    def _on_away(self, who: Asker, probe: bool) -> str | None:
        if probe:
            self._batches.probe(who.uri)
        away = self._batches.away(who.uri)
        return str(self._batches.spool(who.uri).files_folder()) if away else None

    def _on_keep(self, who: Asker, run_id: str, copies: list[tuple[str, str]]) -> None:
        for folder, copy in copies:
            self._batches.keep(who.uri, artifact=[run_id, folder, copy])

    def _on_run(self, who: Asker) -> Any:
        return self._runs.get_run(self._runs.run_of(self._runs.calls[who.call]))

    def _on_get_run(self, who: Asker, run_id: str) -> Any:
        run = self._runs.shared.get(run_id)
        return self._runs.get_run(run) if run else self._runs.store(who.uri).get_run(run_id)

    def _on_get_experiment_by_name(self, who: Asker, name: str) -> Any:
        """Every ``start_run`` asks for the experiment's id. The call's own is known by the name
        that the rank knows, whatever its store calls it, also while that is away."""
        call = self._runs.calls[who.call]
        run = call.run
        own = name == call.begin.experiment and call.begin.experiment_id is None
        if not own or not self._at_home(call, who) or run is None or run.made is None:
            return self._runs.store(who.uri).get_experiment_by_name(name)
        return self._experiment(call, run.made.info.experiment_id, name)

    def _on_get_experiment(self, who: Asker, experiment_id: str) -> Any:
        call = self._runs.calls[who.call]
        run = call.run
        if not self._at_home(call, who) or run is None or run.made is None:
            return self._runs.store(who.uri).get_experiment(experiment_id)
        own = run.made.info.experiment_id
        asked = own if experiment_id == call.begin.experiment_id else experiment_id
        if asked != own:
            return self._runs.store(who.uri).get_experiment(asked)
        return self._experiment(call, asked, "")

    def _at_home(self, call: Call, who: Asker) -> bool:
        """Whether the question is about the call's own store."""
        return who.uri == self._runs.seen_from(call, call.uri)

    def _experiment(self, call: Call, experiment_id: str, name: str) -> Any:
        from mlflow.entities import Experiment

        assert call.run is not None
        if not call.stands_in and not self._batches.away(call.run.uri):
            return self._runs.store(call.run.uri).get_experiment(experiment_id)
        return Experiment(experiment_id, name, "", "active")

    def _on_flush(self, who: Asker) -> None:
        """All before it has been written by now."""

    def _on_attr(self, who: Asker, name: str) -> tuple[bool, Any]:
        value = getattr(self._runs.store(who.uri), name)
        return (True, None) if callable(value) else (False, value)

    def _on_create_run(
        self,
        who: Asker,
        experiment_id: str,
        user_id: str,
        start_time: int,
        tags: list[Any],
        run_name: str | None,
    ) -> Any:
        call = self._runs.calls[who.call]
        by_key = {tag.key: tag.value for tag in tags}
        name, parent = run_name or by_key.get(_NAME), by_key.get(_PARENT)
        if parent is None and self._at_home(call, who):
            run = self._runs.run_of(call)
            self._runs.rename(call, run, name)
            kept = [tag for tag in tags if tag.key == _NOTE or not tag.key.startswith("mlflow.")]
            if kept:
                rows = [(tag.key, tag.value) for tag in kept]
                self._batches.write([(run.uri, run.run_id, [], rows)])
        else:
            uri = self._runs.home(parent, who.uri)
            if call.run is not None and call.stands_in and uri == call.run.uri:
                experiment_id = call.run.made.info.experiment_id
            make = (experiment_id, user_id, start_time, tags, run_name)
            run = self._child(call, who, uri, parent, name, make)
        run.inside.add(who.rank)
        return self._runs.get_run(run)

    def _child(
        self,
        call: Call,
        who: Asker,
        uri: str,
        parent: str | None,
        name: str | None,
        make: tuple[Any, ...],
    ) -> SharedRun:
        """The i-th nested run of a name is one run for all ranks; on another server there is one
        run for the whole call."""
        group = (uri, parent, name if parent else None)
        turn = call.turn[(who.rank, group)] if parent else 0
        call.turn[(who.rank, group)] += 1
        run = call.children.get((group, turn))
        if run is None:
            made = self._runs.store(uri).create_run(*make)
            run = SharedRun(made.info.run_id, uri, made=made)
            call.children[(group, turn)] = self._runs.shared[run.run_id] = run
        elif run.inside and run.inside <= set(run.ends):  # the others have left it already
            self._runs.store(uri).update_run_info(run.run_id, RUNNING, None, None)
        return run

    def _on_update_run_info(
        self,
        who: Asker,
        run_id: str,
        run_status: int | None = None,
        end_time: int | None = None,
        run_name: str | None = None,
    ) -> Any:
        run, call = self._runs.shared.get(run_id), self._runs.calls[who.call]
        if run is None:
            store = self._runs.store(who.uri)
            if run_id not in self._runs.protected:
                return store.update_run_info(run_id, run_status, end_time, run_name)
            if run_name:  # the notebook's own run goes on running
                store.update_run_info(run_id, None, None, run_name)
            return store.get_run(run_id).info
        self._runs.rename(call, run, run_name)
        if run_status in END_NAME:
            # A rank that enters again and leaves well does not undo its failure.
            earlier = run.ends.get(who.rank, "FINISHED")
            run.ends[who.rank] = verdict(END_NAME[run_status], [earlier])
        is_child = run in call.children.values()
        if is_child and run.ends and run.inside <= set(run.ends):
            status = verdict("FINISHED", run.ends.values())
            self._batches.end(run.uri, run_id, status, {}, int(time.time() * 1000))
        return self._runs.get_run(run).info

    def _on_create_experiment(self, who: Asker, name: str, *args: Any, **kwargs: Any) -> Any:
        """'Get it, else create it' by all ranks at once creates one."""
        made = self._runs.calls[who.call].experiments
        if (who.uri, name) not in made:
            store = self._runs.store(who.uri)
            made[(who.uri, name)] = store.create_experiment(name, *args, **kwargs)
        return made[(who.uri, name)]

    def _on_log_inputs(
        self, who: Asker, run_id: str, datasets: list[Any] | None = None, **models: Any
    ) -> None:
        uri = self._runs.home(run_id, who.uri)
        try:
            self._of_store(uri, "log_inputs", (run_id, datasets), models)
        except Exception:
            if not self._batches.away(uri):
                raise
            self._batches.keep(uri, inputs=[run_id, *pack_inputs(datasets, **models)])

    def _on_log_param(self, who: Asker, run_id: str, param: Any) -> None:
        self._on_log_batch(who, run_id, [], [param], [])

    def _on_log_batch(
        self, who: Asker, run_id: str, metrics: list[Any], params: list[Any], tags: list[Any]
    ) -> None:
        """Params only: the first rank's value holds, others' become "rankN/key"."""
        from mlflow.entities import Param

        call = self._runs.calls[who.call]
        owners, earlier = call.params, self._runs.earlier_params(call, run_id)
        accepted = []
        for param in params:
            owner, value = owners.get((run_id, param.key), (who.rank, None))
            own = f"rank{who.rank}/{param.key}"
            if own in earlier:  # by a call that this one resumes
                accepted.append(Param(own, param.value))
            elif owner == who.rank:
                accepted.append(param)
            elif value != param.value:
                accepted.append(Param(own, param.value))
        if accepted:
            self._batches.write_params(self._runs.home(run_id, who.uri), run_id, accepted)
        for param in params:
            if f"rank{who.rank}/{param.key}" not in earlier:
                owners.setdefault((run_id, param.key), (who.rank, param.value))
