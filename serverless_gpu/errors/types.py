"""The exceptions users meet. All of them survive pickling."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

from .failure import RankDeath, RankFailure


class Shown:
    """An exception that notebooks show short: where the user's own code is, and what happened."""

    def _render_traceback_(self) -> list[str]:
        """Lines for IPython, which prints them instead of its own traceback."""
        from . import render

        return render.lines_of(self)  # type: ignore[arg-type]

    def reply_error(self) -> tuple[str, str]:
        """Name and text for ``ename`` and ``evalue`` of a kernel's reply."""
        return type(self).__name__, str(self)


class RankError(Shown, RuntimeError):
    """A call failed on a rank.

    Where it can be, the object is also an instance of the type that the rank raised, so
    ``except ValueError`` catches it; the rank's exception is its ``__cause__``.

    rank: the rank that failed first.
    failures: by rank, what was raised there. deaths: by rank, how its process ended.
    results: by rank, the values of the ranks that finished.
    """

    rank: int
    failures: dict[int, RankFailure]
    deaths: dict[int, RankDeath]
    results: dict[int, Any]

    def __init__(
        self,
        message: str = "",
        *,
        rank: int = -1,
        failures: Mapping[int, RankFailure] | None = None,
        deaths: Mapping[int, RankDeath] | None = None,
        results: Mapping[int, Any] | None = None,
    ) -> None:
        # Not super().__init__: next in line may be the rank's own type, with other arguments.
        RuntimeError.__init__(self, message)
        self._message = message
        self._recipe: tuple[Any, ...] | None = None  # function and arguments that make it again
        self.rank = rank
        self.failures = dict(failures or {})
        self.deaths = dict(deaths or {})
        self.results = dict(results or {})

    def __str__(self) -> str:
        return self._message

    def reply_error(self) -> tuple[str, str]:
        """Those of the exception that the rank raised: who reads a reply looks for them."""
        failure = self.failures.get(self.rank)
        if failure is None or isinstance(self, (RankDiedError, DistributedTimeoutError)):
            return super().reply_error()
        return failure.kind.rpartition(".")[2], failure.message

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._message!r})"

    def __reduce__(self) -> Any:
        if self._recipe is not None:
            return self._recipe
        state = {k: v for k, v in self.__dict__.items() if k != "_message"}
        return type(self), (self._message,), state

    def __setstate__(self, state: dict[str, Any] | None) -> None:
        self.__dict__.update(state or {})


class RankDiedError(RankError):
    """The process of a rank ended during a call: by a signal, ``os._exit`` or ``sys.exit``.

    pid, signal (its name, or None) and exit_code (or None) are those of the first.
    """

    @property
    def _death(self) -> RankDeath | None:
        return self.deaths.get(self.rank)

    @property
    def pid(self) -> int | None:
        """The process id it had; None if the rank still lives (``sys.exit``)."""
        return self._death.pid if self._death else None

    @property
    def signal(self) -> str | None:
        return self._death.signal_name if self._death else None

    @property
    def exit_code(self) -> int | None:
        if self._death:
            return self._death.exit_code
        failure = self.failures.get(self.rank)
        _, error = failure.load_cause() if failure else (None, None)
        code = getattr(error, "code", None)
        return code if isinstance(code, int) else int(code is not None)


class DistributedTimeoutError(RankError, TimeoutError):
    """The deadline of a call passed.

    seconds: the limit. stacks: by rank, the Python stack it was in, innermost line last.
    """

    seconds: float = 0.0
    stacks: dict[int, str] = {}  # noqa: RUF012 - set on the instance; here for a plain instance


class ArgumentsError(Shown, TypeError):
    """The arguments of a call, or of the decorator, are of the wrong number or type. Nothing was
    started."""


class OptionError(Shown, ValueError):
    """An option of a call, or an environment variable, has a value that means nothing. Nothing was
    started."""


class FolderGoneError(Shown, FileNotFoundError):
    """The notebook's folder has been deleted. Nothing was started."""


class QuestionStopped(Shown, KeyboardInterrupt):
    """The user pressed Stop while a cell waited for an answer to its question."""


class CellSyntaxError(Exception):
    """The text of a cell is no Python. Nothing was sent.

    Not a SyntaxError, though shown as one: with those IPython shows the frames of who found it.
    """

    def __init__(self, found: SyntaxError) -> None:
        super().__init__(found)
        self.found = found

    def __str__(self) -> str:
        return str(self.found)

    def _render_traceback_(self) -> list[str]:
        from . import render

        return render.syntax_error(self.found)


class AcceleratorMismatchError(Shown, RuntimeError):
    """The GPUs asked for are not those of this machine. Nothing was started."""


class NestedCallError(Shown, RuntimeError):
    """A distributed call inside a rank: ranks would start ranks. Call the plain function there."""


class UnpicklableError(Shown, pickle.PicklingError):
    """Something cannot be sent to the ranks. Nothing was started.

    The text has two lines: the variable that drags it in and where it is used; what to do.
    """


class NotThereError(Shown, NameError):
    """A variable that a cell is to pull is not there in a rank."""


class ResultError(Shown, pickle.PickleError):
    """The result of a rank cannot be brought to the notebook. rank: which."""

    def __init__(self, rank: int, reason: str) -> None:
        super().__init__(rank, reason)
        self.rank = rank
        self.reason = reason

    def __str__(self) -> str:
        return f"the result cannot be returned: {self.reason}"


# What a cell is shown to end with is what the user knows by this name.
ArgumentsError.__name__ = ArgumentsError.__qualname__ = "TypeError"
QuestionStopped.__name__ = QuestionStopped.__qualname__ = "KeyboardInterrupt"
NotThereError.__name__ = NotThereError.__qualname__ = "NameError"
FolderGoneError.__name__ = FolderGoneError.__qualname__ = "FileNotFoundError"
OptionError.__name__ = OptionError.__qualname__ = "ValueError"
CellSyntaxError.__name__ = CellSyntaxError.__qualname__ = "SyntaxError"
