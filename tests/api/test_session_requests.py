"""What may be asked of a session, and that a wrong request costs nobody a variable."""

from __future__ import annotations

from typing import Any

import pytest

from serverless_gpu import call, distributed
from serverless_gpu.session_requests import SessionError
from serverless_gpu.sessions import Session

RANK = "import os; rank = int(os.environ['RANK'])"


@pytest.mark.parametrize(
    ("asked", "number", "way"),
    [
        (1, 7, r"use --ranks 0-0 .*--fresh --gpus 1 for a new session"),
        (4, 7, r"leave --gpus out.*--fresh --gpus 4"),
        (1, 0, r'use ranks="0-0" .*fresh=True, gpus=1 for a new session'),
        (4, 0, r"leave gpus out.*fresh=True, gpus=4"),
    ],
)
def test_another_size_is_refused_and_nothing_is_lost(
    session: Session, asked: int, number: int, way: str
) -> None:
    session.run(RANK, gpus=2)
    with pytest.raises(SessionError, match=f"the session has 2 ranks, not {asked}: {way}"):
        session.run("pass", gpus=asked, number=number)
    function = distributed(gpus=asked, session=True)(int)
    with pytest.raises(SessionError, match=f"not {asked}: leave gpus out.*--gpus {asked}"):
        function.distributed()
    session.run("pass", gpus=2)
    assert session.pull("rank") == [0, 1]


def test_ranks_are_numbers_or_a_text(session: Session) -> None:
    session.run(RANK, gpus=4)
    assert session.pull("rank", ranks="0,2-3") == [0, 2, 3]
    assert session.pull("rank", ranks=iter([3, 1])) == [1, 3]
    for ranks in ("3-1", "all", [1.5], object()):
        with pytest.raises(SessionError, match=r"^ranks takes"):
            session.run(RANK, ranks=ranks)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"ranks": [2]}, "no rank 2; the session has ranks 0-1"),
        ({"options": call.CallOptions(output="ranks", output_ranks="2")}, "no rank 2; the ranks"),
    ],
)
def test_ranks_that_a_new_session_would_not_have_are_refused_before_the_old_one_ends(
    session: Session, asked: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        session.run("pass", gpus=2, **asked)
    assert session.gpus == 0
    session.run(RANK, gpus=3)
    with pytest.raises(ValueError, match=said):
        session.run("pass", gpus=2, fresh=True, **asked)
    assert session.pull("rank") == [0, 1, 2]
