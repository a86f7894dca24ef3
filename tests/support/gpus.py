"""What tests on real GPUs share: how many there are, and their memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pytest

from serverless_gpu import accelerator, gpu_claims

#: Of this machine; 0 also where the driver does not work, which other tests are about.
GPUS = accelerator.detect().count if accelerator.machine().state == "ready" else 0
#: For `pytestmark`.
needs_gpu = [pytest.mark.skipif(GPUS == 0, reason="no GPU here"), pytest.mark.timeout(150)]
several = pytest.mark.skipif(GPUS < 2, reason="fewer than two GPUs here")

#: What all ranks get from summing their number, counted from 1.
EXPECTED = [GPUS * (GPUS + 1) / 2] * GPUS
MIB = 1 << 20
#: The fixture `measured` of tests/gpu/conftest.py.
Measured = Callable[[str, float, str], None]
#: `reduce_all` there.
Reduce = Callable[[], list[float]]
#: What the driver may count differently for the same contents.
SLACK = 64 * MIB
#: Seconds for the driver to free the memory of processes that have ended.
FREED_S = 20.0


def memory_used() -> list[int]:
    """Bytes in use, by GPU."""
    return [look.used or 0 for look in gpu_claims.look(accelerator.detect().devices)]


def await_memory(before: Sequence[int], slack: int = SLACK) -> float:
    """Waits until no more is in use than `before`, plus `slack`; the seconds that it took.

    Raises TimeoutError with both after FREED_S.
    """
    started = time.monotonic()
    while True:
        now = memory_used()
        if all(n <= b + slack for n, b in zip(now, before, strict=True)):
            return time.monotonic() - started
        if time.monotonic() - started > FREED_S:
            mib = [[n // MIB for n in one] for one in (now, before)]
            raise TimeoutError(f"MiB in use: {mib[0]}, before: {mib[1]}")
        time.sleep(0.02)  # the driver tells nobody when memory is freed
