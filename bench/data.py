"""Rows: what moves between the notebook and its ranks."""

from __future__ import annotations

import re
import statistics
import subprocess
from collections.abc import Iterator

from kernels import Kernel, program
from processes import peak_memory, pss
from table import Figure, Line, figure
from workplace import NO_PEER, RANKS, Workplace, alternate, build

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
_SHOWN = "SERVERLESS_GPU_OUTPUT_MB"
_NOT_SHOWN = re.compile(r"^… ([\d,]+) lines not shown", re.MULTILINE)
_LINE = re.compile(r"rank (\d+) line (\d+)$", re.MULTILINE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def lines(place: Workplace) -> Iterator[Line]:
    """8 x 100,000 distinct lines to the client, and how many of them never came; what is shown of
    them by default; and the work of merging alone."""
    ours, peer = place.ours(), place.peer()
    ours.run(f"import os; os.environ['{_SHOWN}'] = '64'")
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
    ours.run(f"del os.environ['{_SHOWN}']")
    yield from _shown_by_default(place, ours)
    yield from _merging(place)


def _shown_by_default(place: Workplace, ours: Kernel) -> Iterator[Line]:
    """A cell shows two megabytes; what it does not show it must have counted."""
    lost, shown = 0, 0

    def flood() -> list[float]:
        nonlocal lost, shown
        ran = ours.run(f"%%distributed\n{_PRINTING}", timeout_s=300)
        text = "".join(text for _, text in ran.texts)
        counted = sum(int(n.replace(",", "")) for n in _NOT_SHOWN.findall(text))
        lost = max(lost, RANKS * _LINES - _arrived(text) - counted)
        shown = max(shown, len(text))
        return [ran.seconds]

    [mine] = alternate(place.times(5), flood)
    note = f"{lost} neither shown nor counted; {shown / 1e6:.1f} MB shown"
    met = mine.median <= _LINES_GOAL_S and lost == 0
    work = "the same, as much shown as by default"
    yield Line(work, figure(mine.values, note=note), {}, "<= 1 s, 0 lost", met)


def _merging(place: Workplace) -> Iterator[Line]:
    """The merger alone, built with all optimisations."""
    program = build("mux_lines")
    rounds: dict[str, list[float]] = {}
    for _ in range(place.times(5)):
        text = subprocess.run([program], check=True, capture_output=True, text=True).stdout
        for kind, nanoseconds in (row.split() for row in text.splitlines()):
            rounds.setdefault(kind, []).append(float(nanoseconds) * 1e-9)
    for kind, values in rounds.items():
        yield Line(f"merging a line of one of 8 ranks, {kind} lines: CPU", figure(values))


def delay(place: Workplace) -> Iterator[Line]:
    """From a rank's print to the client's message, line by line."""
    ours, peer = place.ours(), place.peer()
    count = place.times(100)

    def delays(kernel: Kernel, magic: str, pause: str) -> list[float]:
        kernel.run(f"{magic}\nimport time")
        ran = kernel.run(
            f"{magic}\nfor _ in range({count}):\n"
            f"    print('at', repr(time.perf_counter()), flush=True)\n    time.sleep({pause})"
        )
        # One clock for all processes of the machine.
        found = [(when, _COLOUR.sub("", text)) for when, text in ran.texts]
        return [when - float(at) for when, text in found for at in _AT.findall(text)]

    for name, flags, goal in (("one rank", " --ranks 0", 0.05), ("8 ranks", "", 0.15)):
        mine = delays(ours, f"%%distributed{flags}", "0.05")
        rival: Figure | str = NO_PEER
        if peer:
            targets = " --targets 0" if flags else ""
            seen = delays(peer, f"%%px{targets}", "0.05")
            rival = _with_p99(seen) if seen else "no line came as a stream"
        yield Line(
            f"print to the client's message, {name}",
            _with_p99(mine),
            {"ipyparallel": rival},
            f"<= {goal * 1e3:g} ms",
            statistics.median(mine) <= goal,
        )


_AT = re.compile(r"at ([\d.]+)$", re.MULTILINE)


def _with_p99(values: list[float]) -> Figure:
    worst = sorted(values)[min(len(values) - 1, int(len(values) * 0.99))]
    return figure(values, note=f"p99 {worst * 1e3:.0f} ms")


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
