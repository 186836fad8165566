"""Live metrics of this machine as rows of one table: real readings without a fleet.

Rates are per second since the sample before; the first sample of a `MachineSampler` covers the time since it
was made.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import psutil

MACHINE_TABLE = "machine"
MACHINE_TAGS = ("host", "kind", "device")
# Devices in memory or in files of other disks, whose bytes count there.
_MEMORY_DISKS = ("loop", "ram", "zram")

Row: TypeAlias = dict[str, str | int | float]


class MachineSampler:
    """Turns the counters of the operating system into rows: one each for a core, the memory, a disk, an
    interface.

    A row has the tags `host`, `kind` (cpu, memory, disk, network) and `device`, `time` (ns UTC, one for all
    rows of a sample) and float fields. What the operating system does not report (disks in a container) is
    left out. Not thread-safe.
    """

    def __init__(self, host: str | None = None) -> None:
        self._host = host or platform.node() or "localhost"
        self._before = _counters()
        self._before_s = time.monotonic()

    def sample(self) -> list[Row]:
        """The metrics of now."""
        # Whole microseconds: a table keeps no finer digits unless it was made so.
        time_ns = time.time_ns() // 1_000 * 1_000
        counters, now_s = _counters(), time.monotonic()
        elapsed_s = max(now_s - self._before_s, 1e-3)
        # Devices come and go: a rate needs the counters of both samples.
        found = {
            key: _rates(self._before[key], values, elapsed_s) for key, values in counters.items() if key in self._before
        }
        self._before, self._before_s = counters, now_s
        found["memory", "ram"] = _memory()
        return [self._row(kind, device, time_ns, fields) for (kind, device), fields in found.items()]

    def _row(self, kind: str, device: str, time_ns: int, fields: Mapping[str, float]) -> Row:
        return {"host": self._host, "kind": kind, "device": device, "time": time_ns, **fields}


_Counters: TypeAlias = dict[tuple[str, str], dict[str, float]]

_default_sampler: MachineSampler | None = None


def sample() -> list[Row]:
    """The metrics of this machine, from one sampler for the process; rates are rough in the first call."""
    global _default_sampler
    if _default_sampler is None:
        _default_sampler = MachineSampler()
    return _default_sampler.sample()


def to_lines(rows: Sequence[Mapping[str, Any]]) -> list[bytes]:
    """Each row as one JSON object without a line end."""
    return [json.dumps(row, separators=(",", ":")).encode() for row in rows]


def _counters() -> _Counters:
    counters: _Counters = {}
    for core, times in enumerate(psutil.cpu_times(percpu=True)):
        # Seconds of CPU time; `_rates` makes 100 times their growth a percentage.
        counters["cpu", f"cpu{core}"] = {
            "user_percent": 100 * times.user,
            "system_percent": 100 * times.system,
            "idle_percent": 100 * times.idle,
        }
    for disk, io in (psutil.disk_io_counters(perdisk=True) or {}).items():
        if disk.startswith(_MEMORY_DISKS):
            continue
        counters["disk", disk] = {
            "read_bytes_per_second": float(io.read_bytes),
            "written_bytes_per_second": float(io.write_bytes),
        }
    for interface, traffic in psutil.net_io_counters(pernic=True).items():
        counters["network", interface] = {
            "received_bytes_per_second": float(traffic.bytes_recv),
            "sent_bytes_per_second": float(traffic.bytes_sent),
        }
    return counters


def _rates(before: Mapping[str, float], after: Mapping[str, float], elapsed_s: float) -> dict[str, float]:
    """Growth per second; 0 for a counter that was reset."""
    return {name: round(max(0.0, value - before[name]) / elapsed_s, 3) for name, value in after.items()}


def _memory() -> dict[str, float]:
    memory = psutil.virtual_memory()
    return {
        "used_bytes": float(memory.used),
        "available_bytes": float(memory.available),
        "used_percent": float(memory.percent),
    }
