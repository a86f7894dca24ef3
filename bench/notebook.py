"""Rows: what a person at a notebook waits for before and around the work."""

from __future__ import annotations

from collections.abc import Iterator

from kernels import IPYKERNEL, OURS, Kernel, program
from table import Figure, Line, figure
from workplace import NO_PEER, Workplace, alternate, torchrun

_CELL_GOAL_S = 2e-3
_START_RATIO, _PLAIN_RATIO = 0.6, 0.5
_COLD_GOAL_S, _WARM_GOAL_S = 3.0, 0.3
#: What the ranks of all_reduce.py print: 1 + 2 + ... + 8.
_SUM = "sum 36"


def cells(place: Workplace) -> Iterator[Line]:
    """A distributed cell that does nothing, minus a plain cell: pairs, one after the other."""
    ours, peer = place.ours(), place.peer()
    rounds = place.times(10)

    def added(kernel: Kernel, magic: str) -> list[float]:
        pairs = [(kernel.run("pass"), kernel.run(f"{magic}\npass")) for _ in range(10)]
        return [distributed.seconds - plain.seconds for plain, distributed in pairs]

    tracked, untracked, *rival = alternate(
        rounds,
        lambda: added(ours, "%%distributed"),
        lambda: added(ours, "%%distributed --mlflow off"),
        *([lambda: added(peer, "%%px")] if peer else []),
    )
    rivals: dict[str, Figure | str] = {"ipyparallel %%px": rival[0] if rival else NO_PEER}
    for work, mine in (
        ("%%distributed cell minus plain cell", tracked),
        ("the same, MLflow off", untracked),
    ):
        first = all(mine.median < other.median for other in rival)
        yield Line(work, mine, rivals, "<= 2 ms, first", mine.median <= _CELL_GOAL_S and first)


def starts(place: Workplace) -> Iterator[Line]:
    """Kernel start to the answer to kernel_info, and a plain cell's round trip, in turns."""
    lean = {"SERVERLESS_GPU_WARM": "0"}
    plain: dict[str, list[float]] = {}

    def start(label: str, name: str, env: dict[str, str]) -> list[float]:
        with Kernel(name, env) as kernel:
            kernel.rest()
            kernel.run("pass")
            times = [kernel.run("pass").seconds for _ in range(50)]
            plain.setdefault(label, []).extend(times)
            return [kernel.start_s]

    ours, alone, theirs = alternate(
        place.times(10),
        lambda: start("ours", OURS, {}),
        lambda: start("alone", OURS, lean),
        lambda: start("theirs", IPYKERNEL, {}),
    )
    goal = f"<= {_START_RATIO}x ipykernel"
    for work, mine in (
        ("kernel start, ranks warming up behind it", ours),
        ("kernel start, no ranks (WARM=0)", alone),
    ):
        ratio = mine.median / theirs.median
        rivals: dict[str, Figure | str] = {"ipykernel": theirs, "ratio": f"{ratio:.2f}x"}
        yield Line(work, mine, rivals, goal, ratio <= _START_RATIO)
    mine, other = figure(plain["ours"]), figure(plain["theirs"])
    ratio = mine.median / other.median
    rivals = {"ipykernel": other, "ratio": f"{ratio:.2f}x"}
    goal = f"<= {_PLAIN_RATIO}x ipykernel"
    yield Line("plain cell round trip", mine, rivals, goal, ratio <= _PLAIN_RATIO)


def cold(place: Workplace) -> Iterator[Line]:
    """From nothing, or from a warm fork server, to the first all-reduce of 8 ranks on screen."""
    rounds = place.times(5)

    def seen(text: str) -> bool:
        return _SUM in text

    def from_nothing() -> list[float]:
        with Kernel(OURS) as kernel:
            ran = kernel.run(program("all_reduce.py"), seen=seen)
            return [ran.texts[-1][0] - kernel.started]

    def warm(env: dict[str, str]) -> list[float]:
        with Kernel(OURS, env) as kernel:
            kernel.run("from serverless_gpu import pool; assert pool.get().ready.wait(120)")
            kernel.rest()
            return [kernel.run(program("all_reduce.py"), seen=seen).seconds]

    def launcher() -> list[float]:
        return [torchrun("all_reduce_torchrun.py", seen=seen)[0]]

    nothing, up, untracked, theirs = alternate(
        rounds,
        from_nothing,
        lambda: warm({}),
        lambda: warm({"SERVERLESS_GPU_MLFLOW": "off"}),
        launcher,
    )
    rivals: dict[str, Figure | str] = {"torchrun": theirs}
    yield Line(
        "first all-reduce on screen, from the kernel's start",
        nothing,
        rivals,
        "<= 3 s",
        nothing.median <= _COLD_GOAL_S,
    )
    for work, mine in (
        ("first all-reduce on screen, fork server up", up),
        ("the same, MLflow off", untracked),
    ):
        yield Line(work, mine, rivals, "<= 0.3 s", mine.median <= _WARM_GOAL_S)
