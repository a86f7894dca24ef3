"""What may be asked of a session, and what is said where it does not fit."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from . import _core
from .errors import parse_ranks

#: What to do about a number of ranks that is not the session's, by where it was said: for fewer and
#: for more than there are; and for another session.
_WAYS = {
    "cell": (
        "use --ranks 0-{last} for some of them",
        "leave --gpus out to use them",
        "--fresh --gpus {asked} for a new session",
    ),
    "run": (
        'use ranks="0-{last}" for some of them',
        "leave gpus out to use them",
        "fresh=True, gpus={asked} for a new session",
    ),
    "function": (
        "leave gpus out to use all of them",
        "leave gpus out to use them",
        "make a new session first, in a cell: %%distributed --fresh --gpus {asked}",
    ),
}


class SessionError(ValueError):
    """A request that does not fit the session as it is. Nothing was changed."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


def other_size(ranks: int, asked: int, said_in: str) -> SessionError:
    """What to raise for a number of ranks that is not the session's; `said_in`: a key of _WAYS."""
    fewer, more, new = _WAYS[said_in]
    way = f"{fewer if asked < ranks else more}, or {new}".format(last=asked - 1, asked=asked)
    return SessionError(f"the session has {_ranks(ranks)}, not {asked}: {way}")


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"


def numbers_of(ranks: Iterable[int] | str | None) -> list[int] | None:
    """Ranks as `--ranks` writes them, or their numbers. SessionError for anything else."""
    if ranks is None:
        return None
    if isinstance(ranks, str):
        try:
            flags = _core.parse_cell_line(f"--ranks={shlex.quote(ranks)}")
        except ValueError as error:
            said = str(error).removeprefix("%%distributed: ").replace("--ranks", "ranks")
            raise SessionError(said) from None
        return parse_ranks(flags["ranks"])
    numbers = list(ranks) if isinstance(ranks, Iterable) else [ranks]
    if not all(isinstance(rank, int) for rank in numbers):
        raise SessionError(f'ranks takes numbers, or a text such as "0,3-5", got {ranks!r}')
    return numbers


def check_ranks(ranks: Iterable[int] | None, world: int) -> None:
    """Raises SessionError for a rank that a session of `world` ranks does not have."""
    for rank in ranks or ():
        if not 0 <= rank < world:
            there = f"the session has ranks 0-{world - 1}" if world > 1 else "the only rank is 0"
            raise SessionError(f"there is no rank {rank}; {there}")
