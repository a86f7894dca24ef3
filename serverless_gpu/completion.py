"""Completion inside `%%distributed` cells: flags in the first line, rank 0's names below it."""

from __future__ import annotations

import re
from typing import Any

from IPython.core.completer import (
    CompletionContext,
    SimpleCompletion,
    SimpleMatcherResult,
    context_matcher,
)

from . import _core, peek

CELL, LINE = "%%distributed", "%distributed"


def body_start(cell: str) -> int | None:
    """Where the code of a `%%distributed` cell begins, in characters; None if it is another cell,
    or has the magic's line only."""
    parts = _core.split_cell(cell)
    return len(cell) - len(parts[1]) if parts is not None and parts[1] else None


def help_at(code: str, cursor: int) -> str:
    """The help of our magics, if the cursor is in the line of one; that of the flag under the
    cursor stands above it. "" elsewhere."""
    begin = code.rfind("\n", 0, cursor) + 1
    line = code[begin:].partition("\n")[0]
    for magic, text in ((CELL, _core.cell_help()), (LINE, _core.line_help())):
        if line.lstrip().startswith(magic) and (magic == LINE or begin == 0):
            flag = _flag_at(line, cursor - begin)
            return f"{_entry(text, flag)}{text}"
    return ""


def _flag_at(line: str, cursor: int) -> str:
    for word in re.finditer(r"--[\w-]+", line):
        if word.start() <= cursor <= word.end():
            return word[0]
    return ""


def _entry(text: str, flag: str) -> str:
    """What the help says of a flag, and an empty line; "" if nothing."""
    found = re.search(rf"^  {re.escape(flag)} .*\n(?:    .*\n)*", text, re.MULTILINE)
    return f"{found[0]}\n" if flag and found else ""


def install(shell: Any) -> None:
    """Makes an IPython shell ask here too."""
    matcher = Matcher(shell)
    # A bound method takes no attributes, and IPython tells matchers by theirs.
    shell.Completer.custom_matchers.append(
        context_matcher(identifier="serverless_gpu")(lambda context: matcher.match(context))
    )


class Matcher:
    """Threads: the main one."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell

    def match(self, context: CompletionContext) -> SimpleMatcherResult:
        """What fits at the cursor; of a `%%distributed` cell nothing else is offered."""
        text = context.full_text
        lines = text.split("\n")
        at = sum(len(line) + 1 for line in lines[: context.cursor_line]) + context.cursor_position
        start = body_start(text)
        if start is not None and at >= start:
            return self._names(text[start:], at - start)
        typed = text[:at].rpartition("\n")[2]
        if typed.startswith(CELL + " "):
            return self._flags(typed[len(CELL) :])
        if typed.lstrip().startswith(LINE + " "):
            return _offered(_core.complete_line(typed.lstrip()[len(LINE) :]), _last_word(typed))
        return SimpleMatcherResult(completions=[])

    def _names(self, code: str, cursor: int) -> SimpleMatcherResult:
        found = peek.completions(code, cursor)
        fragment = code[found[0][0] : cursor] if found else ""
        return SimpleMatcherResult(
            completions=[SimpleCompletion(text=text, type=kind) for _, _, text, kind in found],
            matched_fragment=fragment,
            suppress=bool(found),
        )

    def _flags(self, line: str) -> SimpleMatcherResult:
        word = _last_word(line)
        if _core.wants_variables(line):
            before, comma, typed = word.rpartition(",")
            if not comma:
                before, comma, typed = word.rpartition("=")
            names = [n for n in self._shell.user_ns if n.startswith(typed) and n[:1] != "_"]
            return _offered([before + comma + name for name in sorted(names)], word)
        return _offered(_core.complete_cell_line(line), word)


def _last_word(line: str) -> str:
    return "" if line[-1:].isspace() else line.rpartition(" ")[2]


def _offered(texts: list[str], fragment: str) -> SimpleMatcherResult:
    return SimpleMatcherResult(
        completions=[SimpleCompletion(text=text, type="param") for text in texts],
        matched_fragment=fragment,
        suppress=True,
    )
