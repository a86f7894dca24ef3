"""Rows: what moves between the notebook and its ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kernels import Kernel, program
from processes import peak_memory, pss
from table import Figure, Line, figure
from workplace import NO_PEER, RANKS, Workplace, alternate

_LINES = 100_000
_LINES_GOAL_S = 1.0
_ARGUMENT, _ARGUMENT_GOAL_S = 1_000_000_000, 0.44
_RESULT, _RESULT_GOAL_S = 64_000_000, 0.28
_PEER_NEEDS = 18_000_000_000  # bytes free for ipyparallel to push the argument

_PRINTING = f"""
for i in range({_LINES}):
    print(f"rank {{rank}} line {{i}}")
"""
_RANK = "import os; rank = int(os.environ['RANK'])"  # ipyparallel's engines have it already
_MAKE = f"import numpy; block = numpy.full({_RESULT // 8}, float(rank))"
_LINE = re.compile(r"rank (\d+) line (\d+)$", re.MULTILINE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def lines(place: Workplace) -> Iterator[Line]:
    """8 x 100,000 distinct lines to the client, and how many of them never came."""
    ours, peer = place.ours(), place.peer()
    ours.run(f"%%distributed\n{_RANK}")
    peak = peak_memory(ours.pid)
    lost: dict[str, int] = {}

    def flood(name: str, kernel: Kernel, magic: str) -> list[float]:
        ran = kernel.run(f"{magic}\n{_PRINTING}", timeout_s=300)
        text = "".join([*(text for _, text in ran.texts), *ran.displays.values()])
        lost[name] = max(lost.get(name, 0), RANKS * _LINES - _arrived(text))
        return [ran.seconds]

    mine, *rival = alternate(
        place.times(5),
        lambda: flood("ours", ours, "%%distributed"),
        *([lambda: flood("ipyparallel", peer, "%%px")] if peer else []),
    )
    grown = peak_memory(ours.pid) - peak
    note = f"{lost['ours']} lost; kernel's peak memory +{grown / 1e6:.0f} MB"
    theirs: Figure | str = NO_PEER
    if rival:
        theirs = figure(rival[0].values, note=f"{lost['ipyparallel']} lost")
    met = mine.median <= _LINES_GOAL_S and lost["ours"] == 0
    yield Line(
        "8 x 100,000 lines to the client",
        figure(mine.values, note=note),
        {"ipyparallel": theirs},
        "<= 1 s, 0 lost",
        met,
    )


def _arrived(text: str) -> int:
    """Lines of the flood that are there and in their rank's order."""
    following = [0] * RANKS
    count = 0
    for rank, number in _LINE.findall(_COLOUR.sub("", text)):
        if int(number) >= following[int(rank)]:
            following[int(rank)] = int(number) + 1
            count += 1
    return count


def argument(place: Workplace) -> Iterator[Line]:
    """A 1 GB array as an argument to 8 ranks: seconds, and memory while all ranks hold it."""
    ours = place.ours()
    ours.run(program("ours_data.py"))
    ours.run(f"import numpy; big = numpy.ones({_ARGUMENT // 8}); send(big)")
    mine = figure(ours.value("send(big)") for _ in range(place.times(5)))
    ours.rest()
    before = pss([ours.pid, *ours.below()])
    ours.run("session().push(big=big)")
    ours.run("%%distributed\nfloat(big.sum())")  # all pages of it are then in each rank
    ours.rest()
    held = pss([ours.pid, *ours.below()]) - before
    rivals: dict[str, Figure | str] = {"ipyparallel": "only with --full"}
    if place.full:
        rivals = {"ipyparallel": _pushed(place)}
    place.close()  # gives the memory back
    yield Line(
        "1 GB array to 8 ranks",
        mine,
        rivals,
        "<= 0.44 s (Ray)",
        mine.median <= _ARGUMENT_GOAL_S,
    )
    memory = figure([held], "B")
    yield Line("its memory, held by all 8", memory, {}, "<= 1.1 GB", held <= 1.1 * _ARGUMENT)


def _pushed(place: Workplace) -> Figure | str:
    peer = place.peer()
    if peer is None:
        return NO_PEER
    free = _available()
    if free < _PEER_NEEDS:
        return f"not tried: {free / 1e9:.0f} GB free, needs {_PEER_NEEDS / 1e9:.0f}"
    peer.run(program("peer_data.py"))
    peer.run(f"import numpy; big = numpy.ones({_ARGUMENT // 8})")
    before = pss([peer.pid, *peer.below()])
    seconds = peer.value("send(big)", timeout_s=300)
    grown = pss([peer.pid, *peer.below()]) - before
    return figure([seconds], note=f"+{grown / 1e9:.1f} GB")


def _available() -> int:
    with open("/proc/meminfo") as file:
        line = next(line for line in file if line.startswith("MemAvailable:"))
    return int(line.split()[1]) * 1024


def results(place: Workplace) -> Iterator[Line]:
    """64 MB, made before, back from each of 8 ranks."""
    ours, peer = place.ours(), place.peer()
    ours.run(program("ours_data.py"))
    ours.run(f"%%distributed\n{_RANK}\n{_MAKE}")
    if peer:
        peer.run(program("peer_data.py"))
        peer.run(f"%%px\n{_MAKE}")
    mine, *rival = alternate(
        place.times(5),
        lambda: [ours.value("fetch()")],
        *([lambda: [peer.value("fetch()")]] if peer else []),
    )
    yield Line(
        "64 MB back from each of 8",
        mine,
        {"ipyparallel": rival[0] if rival else NO_PEER},
        "<= 0.28 s (Ray)",
        mine.median <= _RESULT_GOAL_S,
    )
