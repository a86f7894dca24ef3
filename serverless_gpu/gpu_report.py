"""What the GPUs of a call are doing, for its status line."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from . import _core, accelerator, gpu_events
from .accelerator import Device
from .errors import format_ranks
from .gpu_claims import gb
from .report import Report

#: Seconds for which a reading is good: the driver takes milliseconds for one of eight GPUs.
FRESH_S = 1.0


#: When, of which GPUs, what.
_last: tuple[float, tuple[str, ...], Report] | None = None


def gpu_report(
    devices: Sequence[Device], clock: Callable[[], float] = time.monotonic
) -> Report | None:
    """How busy they are now; the same report again within FRESH_S. None without GPUs.

    Cheap enough to be asked at each update of a status line. Threads: one at a time.
    """
    global _last
    driver = accelerator.machine().driver if devices else None
    if driver is None:
        return None
    now, uuids = clock(), tuple(device.uuid for device in devices)
    if _last is not None and _last[1] == uuids and now - _last[0] < FRESH_S:
        return _last[2]
    readings = [(device, driver.read(device.index)) for device in devices]
    report = Report(_summary(readings), tuple(_detail(d, r) for d, r in readings))
    _last = (now, uuids, report)
    return report


Readings = Sequence[tuple[Device, _core.GpuReading]]


def _summary(readings: Readings) -> str:
    """`GPU 0-7: 93-98 % busy, 61.2-64.0 GB of 80.0 GB, 55-71 °C, 5.2 kW`."""
    fine = [reading for _, reading in readings if not reading.problem]
    lost = [device.index for device, reading in readings if reading.problem]
    parts = [
        _range([r.busy_percent for r in fine], "% busy"),
        _memory(fine),
        _range([r.celsius for r in fine], "°C"),
        _power([r.watts for r in fine if r.watts is not None]),
        f"GPU {format_ranks(lost)} does not answer" if lost else "",
        *(
            f"GPU {device.index} reports {told}"
            for device, _ in readings
            if (told := _told(device))
        ),
    ]
    name = f"GPU {format_ranks([device.index for device, _ in readings])}"
    return f"{name}: " + ", ".join(part for part in parts if part)


def _told(device: Device) -> str:
    return gpu_events.describe(gpu_events.recent(device.index))


def _range(values: Sequence[int | None], unit: str) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    return f"{low} {unit}" if low == high else f"{low}-{high} {unit}"


def _memory(readings: Sequence[_core.GpuReading]) -> str:
    used = [r.used_bytes for r in readings if r.used_bytes is not None]
    total = [r.total_bytes for r in readings if r.total_bytes is not None]
    if not used or not total:
        return ""
    low, high = gb(min(used)), gb(max(used))
    return f"{low if low == high else f'{low} to {high}'} of {gb(max(total))}"


def _power(watts: Sequence[float]) -> str:
    if not watts:
        return ""
    total = sum(watts)
    return f"{total / 1000:.1f} kW" if total >= 1000 else f"{total:.0f} W"


def _detail(device: Device, reading: _core.GpuReading) -> str:
    name = f"GPU {device.index}" + (f" ({device.type})" if device.type else "")
    if reading.problem:
        return f"{name}: does not answer ({reading.problem})"
    limit = f" of {reading.watts_limit:.0f} W" if reading.watts_limit else ""
    power = f"{reading.watts:.0f} W{limit}" if reading.watts is not None else ""
    parts = [
        _range([reading.busy_percent], "% busy"),
        _memory([reading]),
        _range([reading.celsius], "°C"),
        power,
    ]
    return f"{name}: " + ", ".join(part for part in parts if part)
