"""How IPython comes to show errors of ranks as they are meant to be shown.

`ename` and `evalue` of what front ends are told are those of the exception a rank raised. Our own
kernel asks an error for them. ipykernel takes the error's type and text, so it is given an
exception that has the right ones.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from .types import RankError


def show_syntax_errors(shell: Any) -> None:
    """For any shell: a SyntaxError of a rank is shown as other errors of ranks. IPython does not
    ask such errors for their traceback."""
    show: Callable[..., None] = shell.showsyntaxerror

    def show_syntax_error(*args: Any, **kwargs: Any) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, RankError):
            shell._showtraceback(type(error), error, error._render_traceback_())
        else:
            show(*args, **kwargs)

    shell.showsyntaxerror = show_syntax_error


def install(shell: Any) -> None:
    """For the shell of an ipykernel: the message to all front ends, and the reply to one."""
    show: Callable[[Any, Any, Any], None] = shell._showtraceback

    def show_traceback(etype: Any, evalue: Any, stb: Any) -> None:
        told = _told(evalue)
        show(type(told) if told is not evalue else etype, told, stb)

    shell._showtraceback = show_traceback
    shell.events.register("post_run_cell", _name_in_reply)


def _name_in_reply(result: Any) -> None:
    """The result of a cell that has run is what ipykernel makes its reply of."""
    if isinstance(result.error_in_exec, RankError):
        result.error_in_exec = _told(result.error_in_exec)


def _told(error: Any) -> Any:
    """An exception with the name and text that are to be told; `error` itself if it has them."""
    if not isinstance(error, RankError):
        return error
    name, text = error.reply_error()
    if (name, text) == (type(error).__name__, str(error)):
        return error
    told = type(name, (Exception,), {})(text)
    told.__cause__ = error  # for who looks at the result of a cell
    return told
