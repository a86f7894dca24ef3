"""CUDA contexts made ahead in spares, from the moment a cell speaks of `distributed`."""

from __future__ import annotations

import math
import os
import sys
from contextlib import suppress
from typing import Any

from . import accelerator, gpu_claims, pool

#: Seconds after which contexts that nobody used are given back; SERVERLESS_GPU_IDLE_S differs.
IDLE_S = 900.0

_warmed_for: str | None = None  # CUDA_VISIBLE_DEVICES of the spares that are warm
_told = ""  # what is wrong with the limit; said once


def on_cell(info: Any) -> None:
    """IPython's `pre_run_cell`: a cell that speaks of `distributed` is likely to need the GPUs."""
    if "distributed" in str(getattr(info, "raw_cell", "")):
        begin()


def begin() -> None:
    """Has spares make their contexts, in the background, until nobody has asked for a while.

    Does nothing without a pool or a GPU, and while another notebook has one of the GPUs: memory
    there is not ours to take.
    """
    global _warmed_for, _told
    try:
        owner, idle = pool.running(), idle_limit()
    except ValueError as error:
        if str(error) != _told:
            _told = str(error)
            print(f"{error}; no CUDA context is made ahead", file=sys.stderr)
        return
    if owner is None or idle <= 0:
        return
    with suppress(accelerator.GpuError, ValueError, OSError):  # a call says what is wrong
        here = accelerator.detect()
        # A GPU that takes one process at a time would be closed to the ranks themselves.
        if not here.is_gpu or any(d.problem or d.prohibited or d.exclusive for d in here.devices):
            return
        if gpu_claims.held_by_others(here.devices):
            return
        _warmed_for = os.environ.get("CUDA_VISIBLE_DEVICES")
        owner.core.warm(here.count, _warmed_for, idle)


def check(owner: pool.Pool) -> None:
    """Before ranks are taken: CUDA in a warm spare sees the GPUs that were visible when it began,
    so those of another choice are replaced."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") != _warmed_for and owner.core.warm_spares():
        owner.core.cool()


def idle_limit() -> float:
    """Seconds; 0 for no contexts ahead. Raises ValueError for what is no number."""
    text = os.environ.get("SERVERLESS_GPU_IDLE_S", "").strip()
    with suppress(ValueError):
        seconds = float(text) if text else IDLE_S
        if not math.isnan(seconds):
            return seconds
    raise ValueError(f"SERVERLESS_GPU_IDLE_S takes seconds, got {text!r}")


def describe(owner: pool.Pool) -> str:
    """How many spares are warm and what each costs; "" if none is."""
    warm = owner.core.warm_spares()
    if not warm:
        return ""
    pids = owner.core.pids()["children"]
    mine = {pids[child] for child in warm if child in pids}
    with suppress(accelerator.GpuError, ValueError):
        found = [
            one.bytes
            for look in gpu_claims.look(accelerator.detect().devices)
            for one in look.occupants
            if one.pid in mine and one.bytes
        ]
        if found:
            return f"{len(warm)} with a CUDA context, {gpu_claims.gb(max(found))} on its GPU each"
    return f"{len(warm)} with a CUDA context, some 0.5 GB on its GPU each"
