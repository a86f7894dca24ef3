"""What tests that have a pool leave behind: nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from serverless_gpu import _core, pool


@pytest.fixture(scope="session", autouse=True)
def nothing_left() -> Iterator[None]:
    """No process that a test started outlives the tests."""
    before = {pid for pid, _, _ in _core.descendants(os.getpid())}
    yield
    pool.stop()
    left = [one for one in _core.descendants(os.getpid()) if one[0] not in before]
    assert not left, f"still running: {left}"
