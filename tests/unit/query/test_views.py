"""Bounds of time in the SQL of a view: what they leave out, and what they never do."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.consumers.query.views import TimeBounds, view_query
from headrace.schemas.tables import FieldType, TableSchema, TimeResolution
from tests.memory_directory import tmp_path as tmp_path

TIMES_US = (-3, -1, 0, 1, 2, 4, 7)
bounds = st.none() | st.integers(-4_001, 8_001) | st.sampled_from([-(2**63), 2**63 - 1])


def schema(resolution: TimeResolution | None) -> TableSchema:
    """A table of one field."""
    return TableSchema("iot", "r", 1, (), (("v", FieldType.INT64),), recorded_resolution=resolution)


def shown(table: TableSchema, path: Path, within: TimeBounds) -> tuple[str, list[int]]:
    """The type of the times that a view of one file shows, and those times in ns."""
    with duckdb.connect() as connection:
        found = connection.sql(view_query(table, None, [path], [], bounds=within)).to_arrow_table()
    return str(found.schema.field("time").type), found.column("time").cast(pa.int64()).to_pylist()


@pytest.fixture
def micros(tmp_path: Path) -> Path:
    """A file with times in microseconds."""
    rows = pa.table({"time": pa.array(TIMES_US, pa.timestamp("us")), "v": pa.array(TIMES_US, pa.int64())})
    pq.write_table(rows, tmp_path / "micros.parquet", store_schema=False)
    return tmp_path / "micros.parquet"


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(start_ns=bounds, end_ns=bounds)
def test_files_show_just_the_rows_within_bounds(micros: Path, start_ns: int | None, end_ns: int | None) -> None:
    """Also bounds between two microseconds, of times before 1970, and at the ends of what an int64 holds."""
    kind, times_ns = shown(schema(TimeResolution.US), micros, (start_ns, end_ns))
    assert "timestamp[ns]" == kind
    assert times_ns == [
        us * 1_000
        for us in TIMES_US
        if (start_ns is None or us * 1_000 >= start_ns) and (end_ns is None or us * 1_000 < end_ns)
    ]


@pytest.mark.parametrize("resolution", [None, TimeResolution.NS])
def test_nanoseconds_are_not_cut_off(tmp_path: Path, resolution: TimeResolution | None) -> None:
    """A table whose files may have nanoseconds shows all of them, whatever the bounds are."""
    path = tmp_path / "nanos.parquet"
    pq.write_table(pa.table({"time": pa.array([999, 1_000, 1_001], pa.timestamp("ns")), "v": [1, 2, 3]}), path)
    assert ("timestamp[ns]", [999, 1_000, 1_001]) == shown(schema(resolution), path, (1_000, 1_001))
