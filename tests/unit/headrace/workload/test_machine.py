"""Live metrics of the machine: rows that any table takes."""

from __future__ import annotations

import json
from types import SimpleNamespace

import psutil
import pytest

from headrace.workload import machine
from headrace.workload.machine import MACHINE_TAGS, MachineSampler, to_lines


def test_rows_have_tags_time_and_float_fields() -> None:
    """Every row names host, kind and device as text, has an integer time, and floats besides."""
    rows = MachineSampler("here").sample()
    assert {"cpu", "memory"} <= {row["kind"] for row in rows}
    for row in rows:
        assert "here" == row["host"]
        assert all(isinstance(row[tag], str) and row[tag] for tag in MACHINE_TAGS)
        assert isinstance(row["time"], int)
        fields = [value for name, value in row.items() if name not in (*MACHINE_TAGS, "time")]
        assert fields
        assert all(isinstance(value, float) and value >= 0 for value in fields)


def test_a_sample_has_each_series_once() -> None:
    """The rows of a sample share one time, so no two may be of one series."""
    rows = machine.sample()
    assert 1 == len({row["time"] for row in rows})
    assert len(rows) == len({tuple(row[tag] for tag in MACHINE_TAGS) for row in rows})


def test_lines_are_json_objects() -> None:
    """A row becomes one JSON object in one line, floats with a decimal point."""
    rows = MachineSampler("here").sample()
    lines = to_lines(rows)
    assert rows == [json.loads(line) for line in lines]
    assert not any(b"\n" in line for line in lines)


@pytest.mark.parametrize(("after", "expected"), [(3_000, 500.0), (1_000, 0.0), (0, 0.0)])
def test_rates_are_growth_per_second(monkeypatch: pytest.MonkeyPatch, after: int, expected: float) -> None:
    """A counter's growth over the time between two samples is its rate; a counter that was reset has rate 0.

    The time is whole microseconds, which every table keeps.
    """
    traffic = SimpleNamespace(bytes_recv=1_000, bytes_sent=0)
    monkeypatch.setattr(psutil, "net_io_counters", lambda **_: {"eth0": traffic})
    clock = [10.0]
    monkeypatch.setattr(machine, "time", SimpleNamespace(monotonic=lambda: clock[0], time_ns=lambda: 7_999))
    sampler = MachineSampler("here")
    traffic.bytes_recv = after
    clock[0] = 14.0
    row = next(row for row in sampler.sample() if row["device"] == "eth0")
    assert (expected, 0.0, 7_000) == (row["received_bytes_per_second"], row["sent_bytes_per_second"], row["time"])


def test_a_device_that_appears_is_reported_from_the_next_sample_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device without an earlier count has no rate yet; one that is gone is not reported."""
    traffic = SimpleNamespace(bytes_recv=1, bytes_sent=1)
    present: dict[str, SimpleNamespace] = {"old": traffic}
    monkeypatch.setattr(psutil, "net_io_counters", lambda **_: dict(present))
    sampler = MachineSampler("here")
    present.clear()
    present["new"] = traffic
    seen = [{row["device"] for row in sampler.sample()} & {"old", "new"} for _ in range(2)]
    assert [set(), {"new"}] == seen


def test_no_disk_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the operating system has no disk counters, the other rows are still produced."""
    monkeypatch.setattr(psutil, "disk_io_counters", lambda **_: None)
    kinds = {row["kind"] for row in MachineSampler("here").sample()}
    assert "disk" not in kinds
    assert "memory" in kinds
