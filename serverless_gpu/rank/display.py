"""Rich output of a rank: messages that take their place between what it prints."""

from __future__ import annotations

import base64
import itertools
import json
import os
from typing import Any

from .. import rank
from . import streams

#: What does not fit a packet goes through a memfd.
_IN_BAND = 100_000


def send(message_type: str, content: dict[str, Any]) -> None:
    """Sends a Jupyter message (`display_data`, `update_display_data`, `execute_result`,
    `clear_output`) with its content to the cell of the running call."""
    process = rank.current
    if process is None or os.getpid() != process.pid:
        return  # a child of user code has no channel of its own
    data = json.dumps(content, default=str).encode()
    fd = -1
    if len(data) > _IN_BAND:
        fd = os.memfd_create("display")
        with open(fd, "wb", closefd=False) as f:
            f.write(data)
    streams.flush()
    process.agent.display(process.call, process.agent.mark_display(), message_type, data, fd)
    if fd >= 0:
        os.close(fd)


def encode_bundle(data: dict[str, Any]) -> dict[str, Any]:
    """Binary values of a MIME bundle as base64 text, as Jupyter's messages want them."""
    return {
        kind: base64.b64encode(value).decode("ascii") if isinstance(value, bytes) else value
        for kind, value in data.items()
    }


def publish(
    data: dict[str, Any],
    metadata: dict[str, Any] | None = None,
    *,
    transient: dict[str, Any] | None = None,
    update: bool = False,
    **_: Any,
) -> None:
    send(
        "update_display_data" if update else "display_data",
        {
            "data": encode_bundle(without_widget(data)),
            "metadata": metadata or {},
            "transient": transient or {},
        },
    )


_WIDGET = "application/vnd.jupyter.widget-view+json"


def without_widget(data: dict[str, Any]) -> dict[str, Any]:
    """The bundle without its widget view, which would stay dead: a rank has no front end that
    answers it."""
    if _WIDGET not in data:
        return data
    rest = {kind: value for kind, value in data.items() if kind != _WIDGET}
    text = str(rest.get("text/plain", "widget")).splitlines()[0]
    return {"text/plain": f"{text}  (widgets work in the notebook's own cells, not in ranks)"}


def clear_output(wait: bool = False) -> None:
    send("clear_output", {"wait": wait})


def _figure_png(figure: Any) -> bytes | str | None:
    from IPython.core.pylabtools import print_figure

    return print_figure(figure, "png")  # type: ignore[no-any-return, no-untyped-call]


_ids = itertools.count(1)
_first_call = 0


def new_display_id() -> str:
    """As IPython's, but equal on ranks that do the same, so that equal displays are equal."""
    global _first_call
    process = rank.current
    if process is None or os.getpid() != process.pid:
        return os.urandom(16).hex()
    _first_call = _first_call or process.call
    return f"{_first_call}-{next(_ids)}"


def share_ids() -> None:
    """From now on IPython's own handles have such names."""
    import IPython.core.display_functions as functions

    functions._new_id = new_display_id


_formatter: Any = None


def formatter() -> Any:
    """IPython's formatter of objects, with figures as PNG, without a shell."""
    global _formatter
    if _formatter is None:
        from IPython.core.formatters import DisplayFormatter

        _formatter = DisplayFormatter()
        png = _formatter.formatters["image/png"]
        png.for_type_by_name("matplotlib.figure", "Figure", _figure_png)
    return _formatter


def display(
    *objects: Any,
    include: Any = None,
    exclude: Any = None,
    metadata: dict[str, Any] | None = None,
    transient: dict[str, Any] | None = None,
    display_id: Any = None,
    raw: bool = False,
    clear: bool = False,
    **kwargs: Any,
) -> Any:
    """`IPython.display.display` for ranks of function calls, which have no IPython shell."""
    from IPython.core.display_functions import DisplayHandle

    transient = dict(transient or {})
    if display_id is True:
        display_id = DisplayHandle().display_id  # type: ignore[no-untyped-call]
    if display_id is not None:
        transient["display_id"] = str(display_id)
    update = bool(kwargs.pop("update", False))
    if clear:
        clear_output(wait=True)
    for value in objects:
        if raw:
            publish(value, metadata, transient=transient, update=update)
            continue
        bundle, found = formatter().format(value, include=include, exclude=exclude)
        if bundle:
            publish(bundle, {**found, **(metadata or {})}, transient=transient, update=update)
    if display_id is None:
        return None
    return DisplayHandle(str(display_id))  # type: ignore[no-untyped-call]


def publish_display_data(
    data: dict[str, Any], metadata: dict[str, Any] | None = None, **kwargs: Any
) -> None:
    publish(
        data,
        metadata,
        transient=kwargs.get("transient"),
        update=bool(kwargs.get("update", False)),
    )


def install_without_shell() -> None:
    """Lets `IPython.display` and pyplot's inline backend of a function rank reach the cell."""
    _set_public({each.__name__: each for each in (display, publish_display_data, clear_output)})
    os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")


def rehearse() -> None:
    """What a function rank does here, in one that is a spare (environment.prepare)."""
    import IPython.display as public

    names = ("display", "publish_display_data", "clear_output")
    _set_public({name: getattr(public, name) for name in names})


def _set_public(functions: dict[str, Any]) -> None:
    import IPython.core.display_functions as inner
    import IPython.display as public

    for module in (inner, public):
        for name, function in functions.items():
            setattr(module, name, function)
