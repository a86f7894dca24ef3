"""What to do instead of sending an object of a kind that cannot be sent."""

from __future__ import annotations

import io
import types
from typing import Any

GENERAL = "Create what cannot be sent inside the function, or keep it out of what is sent."
MADE_OF = "Return what it is made of instead: numbers, text, arrays, a state_dict."

# Names of types, by the end of their full name: no module is imported to know its types.
_ADVICE: dict[str, str] = {
    "generator": "Pass a list, or call the generator inside {user}.",
    "async_generator": "Pass a list, or call the generator inside {user}.",
    "coroutine": "Await it first, or call it inside {user}.",
    "socket": "Connect inside {user}.",
    "Connection": "Connect inside {user}.",
    "connection": "Connect inside {user}.",
    "Cursor": "Connect inside {user}, and send the rows as a list.",
    "Thread": "Start it inside {user}.",
    "Process": "Start it inside {user}.",
    "Popen": "Start it inside {user}.",
    "ThreadPoolExecutor": "Make it inside {user}.",
    "frame": "Send its text (traceback.format_exc()) instead.",
    "traceback": "Send its text (traceback.format_exc()) instead.",
}
_KNOWN_MODULES = ("_thread", "threading", "socket", "_socket", "sqlite3", "_sqlite3", "subprocess")


def type_name(obj: Any) -> str:
    """``a _thread.lock``, ``an open file '/tmp/log'``, ``the module helpers``."""
    if isinstance(obj, types.ModuleType):
        return f"the module {obj.__name__}"
    if isinstance(obj, io.IOBase) and not isinstance(obj, (io.BytesIO, io.StringIO)):
        return f"the open file {getattr(obj, 'name', '?')!r}"
    if isinstance(obj, type):
        return f"the class {obj.__qualname__}"
    kind = type(obj)
    name = kind.__qualname__
    if kind.__module__ not in ("builtins", "__main__"):
        name = f"{kind.__module__}.{name}"
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def is_known(obj: Any) -> bool:
    """Whether its type says all: pickle's own words would add nothing."""
    kind = type(obj)
    return (
        isinstance(obj, io.IOBase) or kind.__name__ in _ADVICE or kind.__module__ in _KNOWN_MODULES
    )


def advice(obj: Any, user: str, what: str) -> str:
    """One sentence: what to do about an object that ``user`` (a function's name) drags in.

    what: what is sent; of a "result", nothing can be made elsewhere.
    """
    if what == "result":
        return MADE_OF
    if isinstance(obj, io.IOBase):
        return f"Open it inside {user}, and send its path."
    if isinstance(obj, types.ModuleType):
        return f"Import it inside {user}."
    known = _ADVICE.get(type(obj).__name__)
    if known is not None:
        return known.format(user=user)
    return f"Create it inside {user}, or keep it out of what is sent."
