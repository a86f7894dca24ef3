"""What runs inside ranks, and in the fork server they come from."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .process import RankProcess

#: This process's rank, if it is one. Set by `process.main`; a forked child of user code has it too.
current: RankProcess | None = None


def in_rank() -> bool:
    """True in a rank, and in the processes that user code starts from one (DataLoader workers)."""
    return current is not None or "SERVERLESS_GPU_RANK" in os.environ
