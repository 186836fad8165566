"""A source and an engine over it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.consumers.query.engine import QueryEngine
from headrace.consumers.query.settings import QuerySettings
from tests.memory_directory import tmp_path as tmp_path
from tests.unit.query.memory_source import READINGS, MemorySource, readings

DAY_NS = 86_400_000_000_000
START_NS = 1_700_006_400_000_000_000
"""Midnight of a day in November 2023."""


@pytest.fixture
def source(tmp_path: Path) -> MemorySource:
    """`iot.readings`: three days of ten rows each, the last day not sealed yet."""
    source = MemorySource(tmp_path / "segments")
    source.directory.mkdir()
    days = [readings(START_NS + day * DAY_NS, 10) for day in range(3)]
    source.add(READINGS, segments=days[:2], live=days[2:])
    return source


@pytest.fixture
def engine(source: MemorySource) -> Iterator[QueryEngine]:
    """An engine over `source`, whose clock is at noon of the third day."""
    engine = QueryEngine(
        source,
        [source.directory],
        QuerySettings(memory_limit_mb=200, timeout_ms=20_000, queries_max=4),
        clock_ns=lambda: START_NS + 2 * DAY_NS + DAY_NS // 2,
    )
    try:
        yield engine
    finally:
        engine.close()
