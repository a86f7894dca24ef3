"""System metrics of the machine, under MLflow's names so that its page for them shows them.

One reader for the machine, not one per rank; a GPU's metrics name the GPU and its rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

INTERVAL_S = 10.0  # as in MLflow
INTERVAL_VARIABLE = "MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL"
ENABLE_VARIABLE = "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING"

_MIB = 1 << 20


def interval(environ: Mapping[str, str]) -> float | None:
    """Seconds between two samples; None if the user wants none."""
    if environ.get(ENABLE_VARIABLE, "").lower() in ("false", "0"):
        return None
    try:
        return max(1.0, float(environ.get(INTERVAL_VARIABLE) or INTERVAL_S))
    except ValueError:
        return INTERVAL_S


class Sampler:
    """Threads: one."""

    def __init__(self) -> None:
        self._cpu = _cpu_times()

    def restart(self) -> None:
        """The next sample is of the time from now on."""
        self._cpu = _cpu_times()

    def sample(self) -> dict[str, float]:
        """Name -> value, of the time since the last sample or restart(). What cannot be read is
        left out."""
        found = {**self._cpu_load(), **_memory(), **dict(_gpus())}
        return {f"system/{name}": value for name, value in found.items()}

    def _cpu_load(self) -> dict[str, float]:
        before, self._cpu = self._cpu, _cpu_times()
        busy, total = (new - old for new, old in zip(self._cpu, before, strict=True))
        return {"cpu_utilization_percentage": 100.0 * busy / total} if total > 0 else {}


def _cpu_times() -> tuple[float, float]:
    """(busy, all) in ticks, of all cores."""
    try:
        with open("/proc/stat") as stat:
            ticks = [float(number) for number in stat.readline().split()[1:9]]
    except OSError:
        return 0.0, 0.0
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)  # without idle and waiting


def _memory() -> dict[str, float]:
    try:
        with open("/proc/meminfo") as lines:
            parts = (line.partition(":") for line in lines)
            sizes = {name: int(rest.split()[0]) for name, _, rest in parts}
        used, total = sizes["MemTotal"] - sizes["MemAvailable"], sizes["MemTotal"]
    except (OSError, KeyError, ValueError, IndexError):
        return {}
    return {
        "system_memory_usage_megabytes": used / 1024,
        "system_memory_usage_percentage": 100.0 * used / total,
    }


def _gpus() -> Iterator[tuple[str, float]]:
    from serverless_gpu import accelerator

    driver = accelerator.machine().driver
    if driver is None:
        return
    try:
        devices = accelerator.detect().devices
    except (ValueError, accelerator.GpuError):
        return
    for rank, device in enumerate(devices):
        yield from _gpu(f"gpu_{device.index}_rank_{rank}", driver.read(device.index))


def _gpu(name: str, reading: Any) -> Iterator[tuple[str, float]]:
    if reading.busy_percent is not None:
        yield f"{name}_utilization_percentage", float(reading.busy_percent)
    if reading.used_bytes is not None:
        yield f"{name}_memory_usage_megabytes", reading.used_bytes / _MIB
        if reading.total_bytes:
            share = 100.0 * reading.used_bytes / reading.total_bytes
            yield f"{name}_memory_usage_percentage", share
    if reading.watts is not None:
        yield f"{name}_power_usage_watts", float(reading.watts)
    if reading.celsius is not None:
        yield f"{name}_temperature_celsius", float(reading.celsius)
