"""What is said of logs that lack something."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from serverless_gpu import logs

Loss = tuple[int, int, int]


def owner(folder: Path, losses: dict[int, dict[int, Loss]]) -> Any:
    core = SimpleNamespace(
        log_losses=lambda: losses, log_path=lambda call, rank: f"{folder}/logs/call-{call}/{rank}"
    )
    return SimpleNamespace(core=core)


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        (
            {3: (1234, errno.ENOSPC, 0)},
            "The log of rank 3 in F/logs/call-7 lacks 1,234 bytes that could not be written "
            "(No space left on device; see df -h)\n",
        ),
        (
            {rank: (0, 0, 1_000_000) for rank in (0, 1, 2, 5)},
            "The logs of ranks 0-2,5 in F/logs/call-7 lack 4,000,000 bytes between begin and end, "
            "for want of room\n",
        ),
        (
            {0: (10, errno.EDQUOT, 0), 1: (5, errno.ENOSPC, 20)},
            "The logs of ranks 0-1 in F/logs/call-7 lack 15 bytes that could not be written (Disk "
            "quota exceeded, No space left on device; see df -h) and 20 bytes between begin and "
            "end, for want of room\n",
        ),
        ({}, ""),
    ],
)
def test_one_line_names_ranks_place_amount_and_cause(losses: dict[int, Loss], said: str) -> None:
    assert logs.lacking(owner(Path("F"), {7: losses, 8: {0: (1, 1, 1)}}), 7) == said


def test_logs_that_could_not_even_be_made_are_told_of(tmp_path: Path) -> None:
    nothing = owner(tmp_path, {2: {0: (9, errno.ENOSPC, 0)}})
    assert "lacks 9 bytes" in logs.of_last_call(nothing, None)
    assert logs.of_last_call(owner(tmp_path, {}), None) == ""
