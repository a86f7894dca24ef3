"""The error of a call: of the rank's own type, with its traceback, the others folded."""

from __future__ import annotations

import builtins
import errno
import pickle
import signal
import traceback
from typing import Any

import pytest

from serverless_gpu import serialize
from serverless_gpu._core import CHANNEL_LOST
from serverless_gpu.errors import (
    AcceleratorMismatchError,
    DistributedTimeoutError,
    NestedCallError,
    RankDeath,
    RankDiedError,
    RankError,
    RankException,
    RankFailure,
    ResultError,
    UnpicklableError,
    build_error,
    build_timeout,
    capture_failure,
    format_ranks,
)
from serverless_gpu.errors.pressure import Limits


def failure(error: BaseException) -> RankFailure:
    """What a rank reports that raised this error, after its journey."""
    try:
        raise error
    except BaseException as raised:
        captured = capture_failure(raised)
    payload = serialize.dump(captured)
    return serialize.load(payload.frames, payload.detach())  # type: ignore[no-any-return]


def error_of(error: BaseException) -> RankError:
    """The notebook's error if rank 3 of 8 raised this one."""
    return build_error({3: failure(error)}, {}, {}, 3, 8)


class Plain(Exception):
    pass


class Demanding(Exception):
    """Its constructor wants other arguments than it passes on."""

    def __init__(self, code: int, *, detail: str) -> None:
        super().__init__(f"code {code}")
        self.code = code
        self.detail = detail


class Slots(ValueError):
    __slots__ = ("extra",)

    def __init__(self, extra: str) -> None:
        self.extra = extra


class Stays(RuntimeError):
    """Cannot be pickled."""

    def __reduce__(self) -> Any:
        raise TypeError("not me")


class Final(Exception):
    def __init_subclass__(cls) -> None:
        raise TypeError("no subclasses")


# Of Python 3.11; in 3.10 there is nothing to test.
_GROUP = getattr(builtins, "ExceptionGroup", None)
GROUPS = [_GROUP("many", [ValueError(1)])] if _GROUP else []


def test_the_error_is_also_of_the_type_the_rank_raised() -> None:
    error = error_of(ValueError("bad batch"))
    assert isinstance(error, RankError) and isinstance(error, ValueError)
    assert isinstance(error, RuntimeError)
    assert not isinstance(error, KeyError)
    assert str(error).splitlines()[0] == "rank 3: ValueError: bad batch"


@pytest.mark.parametrize(
    ("raised", "attributes"),
    [
        (ValueError("a", 2), {"args": ("a", 2)}),
        (KeyError("missing"), {"args": ("missing",)}),
        (FileNotFoundError(errno.ENOENT, "gone", "/data"), {"errno": 2, "filename": "/data"}),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), {"object": b"\xff", "start": 0}),
        (Plain("x"), {"args": ("x",)}),
        (Demanding(7, detail="d"), {"code": 7, "detail": "d", "args": ("code 7",)}),
        (Slots("more"), {"extra": "more"}),
        (StopIteration(5), {"value": 5}),
        (ImportError("no", name="torchvision"), {"name": "torchvision"}),
        (SyntaxError("bad", ("cell", 3, 1, "x =", 3, 2)), {"lineno": 3, "filename": "cell"}),
        (TimeoutError("late"), {"args": ("late",)}),
        (NestedCallError("no"), {}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_handlers_of_the_original_type_find_its_attributes(
    raised: Exception, attributes: dict[str, Any]
) -> None:
    error = error_of(raised)
    assert isinstance(error, type(raised))
    assert {name: getattr(error, name) for name in attributes} == attributes
    assert str(error).startswith(f"rank 3: {failure(raised).kind}")
    assert type(error.__cause__) is type(raised)
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, type(raised)) and str(again) == str(error)


@pytest.mark.parametrize(
    "raised",
    [
        KeyboardInterrupt(),
        GeneratorExit(),
        Final("x"),
        *GROUPS,
    ],
    ids=lambda value: type(value).__name__,
)
def test_types_that_cannot_be_mixed_in_give_a_plain_rank_error(raised: BaseException) -> None:
    error = error_of(raised)
    assert type(error) is RankError
    assert type(error.__cause__) is type(raised)


def test_an_exception_that_cannot_travel_still_gives_its_type_and_text() -> None:
    error = error_of(Stays("text"))
    assert isinstance(error, Stays)
    assert isinstance(error.__cause__, RankException)
    assert str(error.__cause__).endswith("Stays: text")


def test_a_type_that_cannot_travel_leaves_its_name_and_text() -> None:
    lost = RankFailure("lib.OnlyThere", "text", cause=b"no pickle")
    error = build_error({0: lost}, {}, {}, 0)
    assert type(error) is RankError
    assert str(error) == "rank 0: lib.OnlyThere: text"
    assert str(error.__cause__) == "lib.OnlyThere: text"


def test_a_large_exception_travels_without_its_load() -> None:
    captured = failure(ValueError("big", bytes(5_000_000)))
    assert captured.cause is not None and len(captured.cause) < 1000
    assert isinstance(build_error({0: captured}, {}, {}, 0), ValueError)


def test_the_cause_has_a_traceback_that_shows_where_the_rank_was() -> None:
    cause = error_of(ValueError("bad batch")).__cause__
    assert cause is not None
    text = "".join(traceback.format_exception(cause))
    assert "raise error\n" in text
    assert f'File "{__file__}"' in text
    assert text.rstrip().endswith("ValueError: bad batch")


def test_the_other_ranks_are_folded_into_one_line() -> None:
    failures: dict[int, RankFailure] = {3: failure(ValueError("bad"))}
    failures |= {rank: failure(ConnectionError(f"lost {rank}")) for rank in (0, 1)}
    deaths = {
        5: RankDeath(99, signal=signal.SIGABRT),
        6: RankDeath(98, signal=CHANNEL_LOST),
    }
    error = build_error(failures, deaths, {7: "x"}, 3, 8)
    assert str(error).splitlines() == [
        "rank 3: ValueError: bad",
        "ranks 0-1 raised ConnectionError after that, rank 5 killed by SIGABRT after that,"
        " rank 6 ended after that, ranks 2,4 were stopped",
        "rank 7 had finished: see .results",
    ]
    assert (error.rank, error.results, set(error.failures)) == (3, {7: "x"}, {0, 1, 3})


def test_ranks_that_raised_alike_are_said_to_have() -> None:
    failures = {rank: failure(ValueError("bad")) for rank in range(4)}
    assert str(build_error(failures, {}, {}, 0, 4)).splitlines()[1] == "ranks 1-3 raised the same"


def test_stopped_ranks_are_named() -> None:
    error = build_error({3: failure(ValueError("bad"))}, {}, {}, 3, 8)
    assert str(error).splitlines()[1] == "ranks 0-2,4-7 were stopped"


@pytest.mark.parametrize(
    ("death", "text"),
    [
        (RankDeath(12, signal=signal.SIGSEGV), "rank 1 (pid 12) was killed by SIGSEGV"),
        (
            RankDeath(
                12, signal=9, out_of_memory=True, memory_limit=2 << 30, memory_peak=300 << 20
            ),
            "was killed by SIGKILL: the system was out of memory "
            "(cgroup limit 2.0 GiB; the rank held up to 300 MiB)",
        ),
        (RankDeath(12, signal=9, machine_out_of_memory=True), "The machine ran out of memory"),
        (
            RankDeath(12, signal=signal.SIGBUS, limits=Limits(shm=64 << 20)),
            "/dev/shm holds 64 MiB. In a container, start it with --shm-size=8g",
        ),
        (
            RankDeath(12, signal=signal.SIGABRT, limits=Limits(memory=4 << 30)),
            "A process may have 4.0 GiB of address space (ulimit -v, ulimit -d)",
        ),
        (RankDeath(12, signal=9), "memory ran out"),
        (RankDeath(12, signal=CHANNEL_LOST), "its code closed descriptors that the rank needs"),
        (RankDeath(12, exit_code=3), "rank 1 (pid 12) ended with exit code 3"),
        (
            RankDeath(12, exit_code=0, program="/bin/true"),
            "rank 1 (pid 12) was replaced by another program: /bin/true\nos.exec* does that",
        ),
    ],
    ids=[
        "crash",
        "known OOM",
        "likely OOM",
        "no shm",
        "ulimit -v",
        "SIGKILL",
        "no channel",
        "exit",
        "exec",
    ],
)
def test_a_death_says_how(death: RankDeath, text: str) -> None:
    error = build_error({}, {1: death}, {}, 1, 2)
    assert isinstance(error, RankDiedError)
    assert text in str(error)
    assert error.pid == 12
    assert (error.signal is None) == (error.exit_code is not None)


def test_nobody_is_told_to_save_memory_when_it_was_not_memory() -> None:
    death = RankDeath(12, signal=9, out_of_memory=False, memory_peak=300 << 20)
    error = build_error({}, {1: death}, {}, 1)
    assert "Not for want of memory (it held up to 300 MiB)" in str(error)
    assert "smaller batch" not in str(error)


@pytest.mark.parametrize(("code", "number"), [(3, 3), (None, 0), ("bye", 1)])
def test_sys_exit_in_a_rank_is_a_death_and_no_exit_of_the_notebook(code: Any, number: int) -> None:
    error = error_of(SystemExit(code))
    assert type(error) is RankDiedError
    assert str(error).startswith("rank 3 called sys.exit(")
    assert error.exit_code == number
    assert error.pid is None


def test_a_timeout_shows_every_stack_and_is_a_timeout_error() -> None:
    error = build_timeout(2.5, {0: "File a", 1: "File b"}, {}, {}, "rank 0 waits for rank 1")
    assert isinstance(error, TimeoutError) and isinstance(error, DistributedTimeoutError)
    assert str(error).splitlines()[:2] == [
        "the call did not end within 2.5 s",
        "rank 0 waits for rank 1",
    ]
    assert "[1] File b" in str(error)
    assert (error.seconds, error.stacks[1]) == (2.5, "File b")


@pytest.mark.parametrize(
    "error",
    [
        build_error({}, {1: RankDeath(12, exit_code=3)}, {0: [1]}, 1, 2),
        build_timeout(1, {0: "File a"}, {}, {1: 2}),
        AcceleratorMismatchError("no H100 here"),
        NestedCallError("inside a rank"),
        UnpicklableError("a\nb"),
        ResultError(2, "no such module"),
        RankError("made by hand", rank=1, results={0: 5}),
    ],
    ids=lambda error: type(error).__name__,
)
def test_every_error_survives_pickling(error: Exception) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    for name in ("rank", "results", "stacks", "exit_code", "reason"):
        assert getattr(again, name, None) == getattr(error, name, None)


def test_a_result_error_is_a_pickle_error() -> None:
    error = ResultError(2, "No module named 'x'")
    assert isinstance(error, pickle.PickleError)
    assert str(error) == "the result cannot be returned: No module named 'x'"


def test_sets_of_ranks_have_one_text_form() -> None:
    assert format_ranks([7, 3, 0, 1, 1]) == "0-1,3,7"
    assert format_ranks([]) == ""
