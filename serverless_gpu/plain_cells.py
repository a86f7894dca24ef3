"""Cells that are Python as they are, and cell magics, recognised at a glance."""

from __future__ import annotations

import re
from typing import Any

#: What a transformation may begin at: an escape character or a prompt that begins a line, a
#: question mark, a magic or a command that is assigned. In most such places it means nothing; then
#: the cell only takes the long way.
_SUSPICIOUS = re.compile(r"^[ \t\f]*(?:[%!/,;]|>>>|\.\.\.|In ?\[)|\?|=[ \t]*[%!]", re.MULTILINE)


def transformed(shell: Any, cell: str) -> str | None:
    """What `shell.transform_cell(cell)` would return, if the cell holds no syntax of IPython's or
    is a cell magic; else None.

    None if in doubt. IPython tokenizes a cell several times to find out, which takes it, for a
    long one, four times as long as Python takes to parse it. What comes to one line is shown to
    its automagic and autocall.
    """
    manager = shell.input_transformer_manager
    if not cell or cell[0].isspace() or shell.input_transformers_post or _extended(manager):
        return None
    if cell.startswith("%%"):
        call = _call_of_magic(manager, cell)
        if call is None:
            return None
        cell = call
    elif _SUSPICIOUS.search(cell):
        return None
    if len(cell.splitlines()) > 1:
        return cell if cell.endswith("\n") else cell + "\n"
    with shell.builtin_trap:
        return str(shell.prefilter_manager.prefilter_lines(cell)) + "\n"


def _call_of_magic(manager: Any, cell: str) -> str | None:
    """The line that IPython makes of a cell magic; it is Python, with the cell's text in quotes."""
    lines = (cell if cell.endswith("\n") else cell + "\n").splitlines(keepends=True)
    for transform in [*manager.cleanup_transforms, *manager.line_transforms]:
        lines = transform(lines)
    one = len(lines) == 1 and lines[0].startswith("get_ipython().run_cell_magic(")
    return lines[0] if one else None


def _extended(manager: Any) -> bool:
    """Whether somebody has put transformations of their own into the manager, or taken one out."""
    known = getattr(manager, "_serverless_gpu_known", None)
    now = [
        *manager.cleanup_transforms,
        *manager.line_transforms,
        *manager.token_transformers,
    ]
    if known is None:
        from IPython.core.inputtransformer2 import TransformerManager

        fresh = TransformerManager()  # type: ignore[no-untyped-call]
        manager._serverless_gpu_known = known = [
            *map(_name, fresh.cleanup_transforms),
            *map(_name, fresh.line_transforms),
            *map(_name, fresh.token_transformers),
        ]
    return list(map(_name, now)) != known


def _name(transformation: Any) -> str:
    kind = transformation if hasattr(transformation, "__qualname__") else type(transformation)
    return f"{kind.__module__}.{kind.__qualname__}"
