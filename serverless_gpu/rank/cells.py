"""Runs a `%%distributed` cell in a rank of the session: an IPython namespace that persists."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import tokenize
import types
import warnings
from collections.abc import Iterator
from typing import Any

from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.error import UsageError
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell
from traitlets import Type
from traitlets.config import Config

from .. import plain_cells, serialize, variables
from ..errors import NotThereError, told
from . import bars, display


class RankDisplayPublisher(DisplayPublisher):
    """Sends `display(...)` to the notebook."""

    def publish(
        self,
        data: dict[str, Any],
        metadata: dict[str, Any] | None = None,
        source: str = "",
        *,
        transient: dict[str, Any] | None = None,
        update: bool = False,
        **_: Any,
    ) -> None:
        display.publish(data, metadata, transient=transient, update=update)

    def clear_output(self, wait: bool = False) -> None:
        display.clear_output(wait)


class RankDisplayHook(DisplayHook):
    """Sends the value of a cell's last expression to the notebook."""

    #: The text of the cell that runs: there is no history to find it in.
    cell = ""

    def quiet(self) -> bool:
        try:
            return bool(self.semicolon_at_end_of_expression(self.cell))  # type: ignore[no-untyped-call]
        except (SyntaxError, tokenize.TokenError):  # magics are no Python
            return False

    def start_displayhook(self) -> None:
        self._bundle: dict[str, Any] = {}
        self._metadata: dict[str, Any] = {}

    def write_output_prompt(self) -> None:
        pass

    def write_format_data(
        self, format_dict: dict[str, Any], md_dict: dict[str, Any] | None = None
    ) -> None:
        self._bundle, self._metadata = format_dict, md_dict or {}

    def finish_displayhook(self) -> None:
        if self._bundle:
            content = {"data": display.encode_bundle(self._bundle), "metadata": self._metadata}
            display.send("execute_result", content)


class RankShell(InteractiveShell):
    """IPython without a terminal: errors are raised to the caller, not printed."""

    displayhook_class = Type(RankDisplayHook)
    display_pub_class = Type(RankDisplayPublisher)

    #: Lines of the notebook's cell above the code, so that lines are numbered as in the notebook.
    head = ""

    def transform_cell(self, raw_cell: str) -> str:
        plain = plain_cells.transformed(self, raw_cell)
        if plain is None:
            plain = str(super().transform_cell(raw_cell))  # type: ignore[no-untyped-call]
        return self.head + plain

    def enable_gui(self, gui: Any = None) -> None:
        pass

    def ask_exit(self) -> None:
        raise RuntimeError("a rank cannot exit or quit; %distributed stop ends the session")

    @contextlib.contextmanager
    def _tee(self, channel: str) -> Iterator[None]:
        """IPython would keep all that a cell prints for a history that ranks have not, in memory,
        and make a line four times as slow."""
        yield

    def _showtraceback(self, etype: Any, evalue: Any, stb: Any) -> None:
        pass  # the error goes to the notebook with the cell's answer

    def showtraceback(self, exc_tuple: Any = None, *_: Any, **__: Any) -> None:
        """A given one is of a `__repr__` or the like that failed: the cell goes on without it."""
        if exc_tuple is not None:
            sys.stderr.write("\n".join(told(exc_tuple[1])) + "\n")

    def showsyntaxerror(self, *_: Any, **__: Any) -> None:
        pass


_prepared: Any = None
_shell: Any = None
_told: variables.Variables | None = None


def prepare() -> None:
    """Makes a shell in the fork server, so that no rank has to: 50 ms each. It is hidden again, for
    frameworks in function ranks must not take them for notebooks."""
    global _prepared
    main_module = types.ModuleType("__main__")
    main_module.__dict__["__builtins__"] = __builtins__
    display.share_ids()
    bars.install()
    _prepared = _make(main_module)
    for kind in (RankShell, InteractiveShell):
        kind._instance = None


def _make(user_module: types.ModuleType) -> RankShell:
    config = Config()
    config.HistoryManager.enabled = False  # no file, and no thread that writes it
    config.HistoryManager.hist_file = ":memory:"
    before = sys.stdout, sys.stderr, sys.excepthook
    made = RankShell.instance(config=config, user_module=user_module)
    sys.stdout, sys.stderr, sys.excepthook = before
    for prompt in ("ps1", "ps2", "ps3"):
        # Frameworks that find one take the process for a prompt that somebody types at.
        sys.__dict__.pop(prompt, None)
    atexit.unregister(made.atexit_operations)  # until somebody uses the shell
    made.Completer.use_jedi = False
    for kind, name in (("line", "%distributed"), ("cell", "%%distributed")):
        refuse: Any = functools.partial(_refuse, name)
        made.register_magic_function(refuse, kind, "distributed")
    # What IPython says to sys.exit() in a cell; here it ends the cell, see run().
    warnings.filterwarnings("ignore", message="To exit: use")
    return made


def _refuse(name: str, *_: str) -> None:
    raise UsageError(f"{name} works in the notebook, and this cell runs in its ranks already")


def shell() -> Any:
    """This rank's shell; its namespace is `__main__`, so that pickled classes are found in it."""
    global _shell
    if _shell is None:
        os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
        _shell = _prepared or _make(sys.modules["__main__"])
        atexit.register(_shell.atexit_operations)
        for kind in (RankShell, InteractiveShell):
            kind._instance = _shell
        sys.modules["__main__"] = _shell.user_module
    return _shell


def variables_frame() -> list[bytes]:
    """The frame of an answer that tells the user's variables; none if they are those of the last
    answer, or if there is no shell."""
    global _told
    if _shell is None:
        return []
    found = variables.of_namespace(_shell.user_ns, _shell.user_ns_hidden)
    if found == _told:
        return []
    _told = found
    return [variables.to_frame(found)]


def run(context: dict[str, Any], frames: list[bytes], fd: int) -> Any:
    """Runs the cell. Returns the pulled variables, name to value.

    The request is (source, lines above it in the notebook's cell, cell number, pushed variables,
    names to pull). Raises what the cell raised; `sys.exit()` and `sys.exit(0)` only end it.
    NameError for a pulled name that does not exist.
    """
    source, head, number, push, pull = serialize.load(frames, fd)
    ip = shell()
    ip.head = "".join(f"# {line}".rstrip() + "\n" for line in head.splitlines())
    ip.user_ns.update(push)
    ip.execution_count = number
    ip.displayhook.cell = source
    result: ExecutionResult = ip.run_cell(source, store_history=False)
    error = result.error_before_exec or result.error_in_exec
    result = None  # type: ignore[assignment]  # holds the error, and so its frames
    if error is not None and not (isinstance(error, SystemExit) and error.code in (None, 0)):
        raise error
    missing = [name for name in pull if name not in ip.user_ns]
    if missing:
        raise NotThereError(f"--pull {','.join(missing)}: not defined in this rank")
    return {name: ip.user_ns[name] for name in pull}


def complete(_: dict[str, Any], frames: list[bytes], fd: int) -> list[tuple[int, int, str, str]]:
    """Completions (start, end, text, type) of (code, cursor) in this rank's namespace."""
    from IPython.core.completer import provisionalcompleter, rectify_completions

    code, cursor = serialize.load(frames, fd)
    with provisionalcompleter():
        found = rectify_completions(code, shell().Completer.completions(code, cursor))
        return [(each.start, each.end, each.text, each.type or "") for each in found]


def inspect(_: dict[str, Any], frames: list[bytes], fd: int) -> dict[str, Any]:
    """The help of (name, detail level) as a MIME bundle; empty if there is no such name."""
    name, detail = serialize.load(frames, fd)
    try:
        bundle = shell().object_inspect_mime(name, detail_level=detail)
    except KeyError:
        return {}
    return dict(bundle)
