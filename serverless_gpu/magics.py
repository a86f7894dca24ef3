"""The magics: what `%%distributed` and `%distributed` do. Their text is parsed in C++."""

from __future__ import annotations

import ast
import re
import sys
import warnings
from typing import Any

from IPython.core.error import UsageError

from . import _core, accelerator, call, gpu_warm, logs, pool
from .errors import CellSyntaxError, OptionError, RankError, parse_ranks
from .sessions import session


def _parsed(parse: Any, line: str) -> Any:
    try:
        return parse(line)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _check_gpus(gpus: int | None, gpu_type: str | None) -> None:
    try:
        accelerator.check(gpus, gpu_type)
    except ValueError as error:
        said = str(error).replace("gpus=", "--gpus ", 1).replace("gpu_type=", "--gpu-type ", 1)
        raise UsageError(f"%%distributed: {said}") from None


def _ranks(text: str | None) -> list[int] | None:
    return None if text is None else parse_ranks(text)


class Magics:
    """The two magics of one IPython shell."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        shell.register_magic_function(self.cell, "cell", "distributed")
        shell.register_magic_function(self.line, "line", "distributed")
        # What IPython takes a %%distributed for that is not at the top of its cell.
        shell.register_magic_function(self.not_on_top, "line", "%distributed")
        magics = shell.magics_manager.magics
        magics["cell"]["distributed"].__func__.__doc__ = _core.cell_help()
        magics["line"]["distributed"].__func__.__doc__ = _core.line_help()

    def cell(self, line: str, cell: str) -> None:
        flags = _parsed(_core.parse_cell_line, line)
        _check_gpus(flags["gpus"], flags["gpu_type"])
        self._check_syntax(cell)
        namespace = self._shell.user_ns
        missing = [name for name in flags["push"] if name not in namespace]
        if missing:
            raise UsageError(
                f"%%distributed: --push {','.join(missing)}: not defined in the notebook"
            )
        options = call.CallOptions(
            timeout=flags.get("timeout", call.DEFAULT_TIMEOUT),
            mlflow=flags["mlflow"],
            name=flags["name"],
            output=flags["output"],
            output_ranks=flags["output_ranks"],
            title="cell",
            source=lambda: cell,
        )
        try:
            pulled = session().run(
                cell,
                gpus=flags["gpus"],
                gpu_type=flags["gpu_type"],
                ranks=flags["ranks"],
                push={name: namespace[name] for name in flags["push"]},
                pull=flags["pull"],
                fresh=flags["fresh"],
                options=options,
                number=self._cell_number(),
                head=self._head(cell),
                wait=flags["wait"],
            )
        except OptionError as error:
            if isinstance(error, RankError):
                raise
            said = str(error).replace("output=", "--output ", 1)
            raise UsageError(f"%%distributed: {said}") from None
        namespace.update(pulled)

    def _check_syntax(self, cell: str) -> None:
        """One SyntaxError here, before anything is sent, instead of one per rank."""
        source = "\n" * self._head(cell).count("\n") + self._shell.transform_cell(cell)
        name = f"Cell In[{self._cell_number()}]"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # ranks say them
                # To its end: the parser lets a `return` outside of a function pass.
                compile(source, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        except SyntaxError as error:
            if error.text is None and error.lineno:  # the parser's has it, the compiler's has not
                error.text = (source.splitlines()[error.lineno - 1 :] or [""])[0]
            raise CellSyntaxError(error) from None

    def _head(self, cell: str) -> str:
        """The lines of the notebook's cell above the code: the magic, what is before it, and empty
        lines, which IPython takes away."""
        raw = self._shell.history_manager.input_hist_raw[-1].rstrip()
        body = _EMPTY_LINES.sub("", cell).rstrip()
        if not raw.endswith(body):
            raw = "%%distributed\n" + cell.rstrip()
        return str(raw[: len(raw) - len(body)])

    def _cell_number(self) -> int:
        """That of the running cell. IPython has counted on by now, or has not, by its version: so
        it is read off the code that called."""
        numbers = getattr(self._shell.compile, "_filename_map", {})
        frame = sys._getframe()
        while frame is not None and frame.f_code.co_filename not in numbers:
            frame = frame.f_back  # type: ignore[assignment]
        return int(numbers[frame.f_code.co_filename]) if frame else self._shell.execution_count

    def not_on_top(self, _: str) -> None:
        raise UsageError("%%distributed begins its cell: move it to the first line")

    def line(self, line: str) -> None:
        verb, ranks = _parsed(_core.parse_line, line)
        getattr(self, f"_{verb}")(ranks)

    def _status(self, _: str | None) -> None:
        owner = pool.running()
        print(f"Machine: {accelerator.describe()}.")
        if owner is None:
            print("No rank processes yet: the first call or cell starts them.")
            return
        pids = owner.core.pids()
        state = "warm" if owner.fork_server_up() else "starting"
        trouble = owner.why_dead()
        print(f"Fork server: {trouble or state} (pid {pids['fork_server']}).")
        ranks = session().status()["ranks"]
        if not ranks:
            print("Session: none; the first %%distributed cell makes it.")
        for rank in ranks:
            gone = "starting" if rank["starting"] else "ended"
            print(f"Rank {rank['rank']}: " + (f"pid {rank['pid']}" if rank["alive"] else gone))
        warm = gpu_warm.describe(owner)
        if warm:
            print(f"Spares: {warm}; %distributed stop gives it back.")
        others = len(pids["children"]) - sum(rank["alive"] for rank in ranks)
        print(f"Other processes (spares, rendezvous, tracker): {others}. Folder: {owner.folder}")

    def _restart(self, _: str | None) -> None:
        count = session().gpus
        session().restart()
        print(
            f"New session of {count} ranks; variables of the old one are gone."
            if count
            else "There is no session to restart; the next %%distributed cell makes one."
        )

    def _stop(self, _: str | None) -> None:
        pool.stop()  # first: a thread's call in the session ends with it, and then lets us in
        session().stop()
        print("All rank processes have ended; the next call or cell starts new ones.")

    def _logs(self, ranks: str | None) -> None:
        owner = pool.running()
        text = logs.of_last_call(owner, _ranks(ranks)) if owner is not None else ""
        sys.stdout.write(text or "No rank has written anything yet.\n")

    def _doctor(self, _: str | None) -> None:
        from . import doctor

        print(doctor.report(doctor.examine()))


_EMPTY_LINES = re.compile(r"\A(?:[ \t]*\n)+")
