"""Segments as files: readable by other tools, with a footer, and pruned by row groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.consumers.store import Store, StoreDamaged, digest_of_file
from headrace.consumers.store.digest import content_digest
from headrace.consumers.store.segment import Runs
from headrace.consumers.store.segment_reader import read_rows
from headrace.consumers.store.store_errors import SegmentUnread
from headrace.schemas.tables import FieldType, TableSchema, TimeResolution
from tests.unit.store.builders import CPU, HOUR_NS, Row, contents, expected, row_batch, seal, write
from tests.unit.store.conftest import SETTINGS

ROWS: list[Row] = [
    ({"host": "a", "rack": "r1"}, 1_000, {"busy": 7, "load": 0.5, "note": "ok", "up": True}),
    ({"host": "a", "rack": "r1"}, 3_000, {"busy": None, "load": float("nan"), "note": "", "up": False}),
    ({"host": "b"}, 2_000, {"busy": -1, "load": None, "note": None, "up": None}),
]


READ_BY_ALL = {"PLAIN", "RLE", "RLE_DICTIONARY", "DELTA_BINARY_PACKED", "DELTA_BYTE_ARRAY"}
"""Encodings of values and levels that Spark, DuckDB, polars, pandas and pyarrow decode."""


def column_chunks(path: Path) -> dict[str, Any]:
    """The columns of a file's first row group."""
    group = pq.read_metadata(path).row_group(0)
    return {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}


def only_file(store: Store) -> Path:
    """The one segment of a store."""
    (entry,) = store.segments()
    return store.segments_directory / entry.name


def rows_of(data: bytes) -> str:
    """The rows of a Parquet file as text, in which NaN equals itself."""
    table = pq.read_table(pa.BufferReader(data))
    return repr([table.schema.names, table.to_pylist()])


def test_the_footer_describes_the_file(store: Store) -> None:
    """The footer carries format, group, table, era, versions, schema version and content digest, and the entry agrees with the file."""
    write(store, 1, ROWS[:2])
    seal(store, 5)
    (entry,) = store.segments()
    metadata = pq.read_metadata(only_file(store))
    assert {
        "headrace.format": "1",
        "headrace.group": "n1",
        "headrace.database": "plant",
        "headrace.table": "cpu",
        "headrace.slice": "0",
        "headrace.bucket": str(entry.bucket),
        "headrace.era": "1",
        "headrace.versions": "1-5",
        "headrace.schema_version": "1",
        "headrace.content_digest": entry.content_digest,
    } == {key.decode(): value.decode() for key, value in metadata.metadata.items()}
    assert (2, 1_000, 3_000, 1, 5) == (
        entry.rows, entry.min_time_ns, entry.max_time_ns, entry.first_version, entry.last_version
    )  # fmt: skip
    assert only_file(store).stat().st_size == entry.size_bytes
    assert entry.name == f"plant/cpu/0-{entry.bucket}/000001-000000000000001-000000000000005.parquet"


def test_other_tools_read_segments(store: Store) -> None:
    """DuckDB and pandas see tags as text, time as a timestamp without zone, fields with their types and nulls."""
    write(store, 1, ROWS[:2])
    seal(store, 2)
    path = str(only_file(store))
    described = {row[0]: row[1] for row in duckdb.execute(f"DESCRIBE SELECT * FROM read_parquet('{path}')").fetchall()}
    assert {
        "host": "VARCHAR", "rack": "VARCHAR", "time": "TIMESTAMP",
        "busy": "BIGINT", "load": "DOUBLE", "note": "VARCHAR", "up": "BOOLEAN",
    } == described  # fmt: skip
    frame = pd.read_parquet(path)
    assert ["a", "a"] == frame["host"].tolist()
    assert [pd.Timestamp(1_000), pd.Timestamp(3_000)] == frame["time"].tolist()


@pytest.mark.parametrize("resolution", list(TimeResolution))
def test_time_has_one_type_in_all_files_of_a_table(store: Store, resolution: TimeResolution) -> None:
    """Seals and a merge follow the table's record, whatever the values are: polars
    scans the files as one table.
    """
    schema = replace(CPU, recorded_resolution=resolution)
    odd_ns = 1 if resolution is TimeResolution.NS else 1_000
    rows = [({"host": "a"}, number * 1_000, {"busy": number}) for number in range(4)]
    rows += [({"host": "a"}, 20_000 + odd_ns, {"busy": 9})]
    for version, part in ((1, rows[:2]), (3, rows[2:4]), (5, rows[4:])):
        write(store, version, part, schema)
        seal(store, version + 1)
    for files in (3, 2):
        found = sorted(store.segments_directory.rglob("*.parquet"))
        assert files == len(found)
        assert {pa.timestamp(resolution)} == {pq.read_schema(file).field("time").type for file in found}
        assert [time for _, time, _ in rows] == times_of_polars(found)
        store.compact(7, tuple(sorted(entry.name for entry in store.segments()))[:2]).run()


def times_of_polars(files: Sequence[Path]) -> list[int]:
    """The times of a table's files in ns, read as a user of polars does."""
    frame = pl.scan_parquet(list(files)).select(pl.col("time").cast(pl.Datetime("ns")).to_physical()).collect()
    return sorted(frame["time"].to_list())


@pytest.mark.parametrize(("offset_ns", "unit"), [(0, "us"), (1, "ns")])
def test_time_is_micros_when_that_is_exact(store: Store, offset_ns: int, unit: str) -> None:
    """In a table without a recorded resolution: whole microseconds are stored as such, since Spark reads nothing
    finer.

    One odd nanosecond makes the file NANOS, and no time is rounded.
    """
    rows = [({"host": "a"}, 5_000, {"busy": 1}), ({"host": "a"}, 7_000 + offset_ns, {"busy": 2})]
    write(store, 1, rows)
    seal(store, 2)
    column = pq.ParquetFile(only_file(store)).schema_arrow.field("time")
    assert pa.timestamp(unit) == column.type
    assert expected(rows) == contents(store)


def test_columns_are_encoded_for_their_kind(store: Store) -> None:
    """Time and integers are delta-encoded, tags have dictionaries, all under zstd, and nothing is in an encoding that a
    reader refuses.
    """
    write(store, 1, ROWS[:2])
    seal(store, 2)
    columns = column_chunks(only_file(store))
    assert "DELTA_BINARY_PACKED" in columns["time"].encodings
    assert "DELTA_BINARY_PACKED" in columns["busy"].encodings
    assert "RLE_DICTIONARY" in columns["host"].encodings
    assert {"ZSTD"} == {column.compression for column in columns.values()}
    assert {each for column in columns.values() for each in column.encodings} <= READ_BY_ALL


def test_a_merge_writes_old_files_in_encodings_of_today(store: Store) -> None:
    """A file of an earlier build has byte-split doubles, which Spark refuses; a merge reads it and writes none."""
    rows = [({"host": "a"}, at * 1_000, {"load": at / 7}) for at in range(20)]
    for version in (1, 3):
        write(store, version, rows[version::2])
        seal(store, version + 1)
        (entry,) = [each for each in store.segments() if each.first_version == version]
        path = store.segments_directory / entry.name
        old, footer = pq.read_table(path, partitioning=None), pq.read_metadata(path).metadata
        with pq.ParquetWriter(
            path,
            old.schema,
            use_dictionary=["host", "rack"],
            column_encoding={"load": "BYTE_STREAM_SPLIT"},
            store_schema=False,
        ) as writer:
            writer.write_table(old, row_group_size=4)
            writer.add_key_value_metadata(footer)
        assert "BYTE_STREAM_SPLIT" in column_chunks(path)["load"].encodings
        assert entry.content_digest == digest_of_file(path)
    assert expected(rows[1::2]) == contents(store)
    store.compact(5, [entry.name for entry in store.segments()]).run()
    assert expected(rows[1::2]) == contents(store)
    assert {each for column in column_chunks(only_file(store)).values() for each in column.encodings} <= READ_BY_ALL


def test_times_before_1970_and_at_the_ends_of_the_range(store: Store) -> None:
    """Slices are counted by floor, so the last nanosecond before 1970 is in slice -1, and the extremes of int64 are kept."""
    rows = [({"host": "a"}, at, {"busy": at % 97}) for at in (-(2**63) + 1, -HOUR_NS, -1, 0, 2**63 - 1)]
    write(store, 1, rows)
    seal(store, 2)
    assert expected(rows) == contents(store)
    assert {-1, 0} < {entry.slice_number for entry in store.segments()}


def test_a_table_without_tags(store: Store) -> None:
    """A table may have no tag at all: one series, and the digest still follows from the file."""
    schema = TableSchema("plant", "bare", 1, (), (("v", FieldType.INT64),))
    rows: list[Row] = [({}, at, {"v": at}) for at in range(6)]
    write(store, 1, rows, schema)
    seal(store, 2)
    assert expected(rows) == contents(store, schema)
    assert store.segments()[0].content_digest == digest_of_file(only_file(store))


def test_pruning_reads_only_row_groups_that_matter(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a segment only the row groups with a wanted series and time are read, and of these only the wanted rows come back."""
    rows = [({"host": host}, at * 1_000, {"busy": at}) for host in "ab" for at in range(8)]
    monkeypatch.setattr("headrace.consumers.store.row_order.bucket_of", lambda *_: 0)
    write(store, 1, rows)
    seal(store, 2)
    (entry,) = store.segments()
    read: list[Any] = []
    original = pq.ParquetFile.read_row_groups

    def noted(file: pq.ParquetFile, groups: Any, **options: Any) -> pa.Table:
        read.append(groups)
        return original(file, groups, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", noted)
    runs = store._components.runs.get(entry.name)
    found = read_rows(only_file(store), entry, runs, ["busy"], 2_000, 6_000, np.array([False, True]))
    assert [[2, 3]] == read
    assert [2, 3, 4, 5] == found.column("busy").to_pylist()
    found = read_rows(only_file(store), entry, runs, ["busy"], 6_000, 7_000, None)
    assert [[1, 3]] == read[1:]
    assert [6, 6] == found.column("busy").to_pylist()


def test_a_flipped_byte_is_found_or_reported(store: Store) -> None:
    """A damaged file never gives the digest of the catalogue: reading fails with a typed error or the digest differs."""
    write(store, 1, ROWS)
    seal(store, 2)
    for entry in store.segments():
        path = store.segments_directory / entry.name
        good = path.read_bytes()
        for position in range(4, len(good) - 8, 41):
            path.write_bytes(good[:position] + bytes([good[position] ^ 0x10]) + good[position + 1 :])
            try:
                digest = digest_of_file(path)
            except StoreDamaged:
                continue
            same_rows = rows_of(path.read_bytes()) == rows_of(good)
            assert (digest == entry.content_digest) == same_rows
        path.write_bytes(good)


def test_a_file_with_other_rows_than_the_catalogue_is_no_answer(store: Store) -> None:
    """A file of a segment that has another number of rows: those of a series would be taken for another's."""
    write(store, 1, ROWS)
    seal(store, 2)
    entry = store.segments()[0]
    path, at = store.segments_directory / entry.name, np.zeros(entry.rows, np.int64)
    runs = Runs.of_times(pa.array(["cpu,host=a"]), np.array([entry.rows], np.int64), at)
    with pytest.raises((StoreDamaged, SegmentUnread), match=f"{entry.rows} rows, the catalogue has {entry.rows + 1}"):
        read_rows(path, replace(entry, rows=entry.rows + 1), runs, ["busy"])


def test_the_digest_is_fixed() -> None:
    """The content digest is part of the format: these rows have had this digest since format 1."""
    rows = {
        "busy": pa.array([1, None, 3]),
        "load": pa.array([0.5, float("inf"), None]),
        "note": pa.array(["x", None, ""], pa.large_string()),
        "up": pa.array([True, False, None]),
    }
    keys, lengths = pa.array(["cpu,host=a", "cpu,host=b"]), np.array([2, 1])
    times = np.array([1, 2, 3])
    assert "971e071fecbc97f3b2440f1f67d3bada" == content_digest(keys, lengths, times, rows)
    sliced = {name: pa.concat_arrays([values, values]).slice(3) for name, values in rows.items()}
    assert "971e071fecbc97f3b2440f1f67d3bada" == content_digest(keys, lengths, times, sliced)


def test_different_rows_have_different_digests() -> None:
    """Null and zero, empty and missing text, other series, other lengths, other names: all other digests."""
    keys, lengths, times = pa.array(["t,a=1"]), np.array([1]), np.array([5])
    variants = [
        (keys, lengths, times, {"v": pa.array([0])}),
        (keys, lengths, times, {"v": pa.array([None], pa.int64())}),
        (keys, lengths, times, {"v": pa.array([0.0])}),
        (keys, lengths, times, {"v": pa.array([False])}),
        (keys, lengths, times, {"v": pa.array([""])}),
        (keys, lengths, times, {"v": pa.array([None], pa.string())}),
        (keys, lengths, times, {"w": pa.array([0])}),
        (keys, lengths, times, {}),
        (pa.array(["t,a=2"]), lengths, times, {"v": pa.array([0])}),
        (keys, lengths, np.array([6]), {"v": pa.array([0])}),
    ]
    assert len(variants) == len({content_digest(*variant) for variant in variants})


def test_row_batches_survive_any_split(store: Store, tmp_path: Path) -> None:
    """The same rows in one message, in many, and with other dictionaries give the same content digests."""
    rows = [({"host": f"h{i % 7}"}, (i * 37 % 50) * 1_000, {"busy": i, "load": i / 3}) for i in range(60)]
    write(store, 1, rows)
    seal(store, 60)
    other = Store.open(tmp_path / "other", "n1", SETTINGS)
    for index, row in enumerate(rows):
        write(other, index + 1, [row])
    seal(other, 60)
    assert store.digests() == other.digests()
    assert len(store.digests()) > 1
    other.close()


def test_missing_fields_are_columns_of_nulls(store: Store) -> None:
    """A field of the schema that no row has is in the file as nulls, so that a file's columns follow from its schema version."""
    write(store, 1, [({"host": "a"}, 1_000, {"busy": 1})])
    seal(store, 2)
    assert ["host", "rack", "time", "busy", "load", "note", "up"] == pq.ParquetFile(only_file(store)).schema_arrow.names
    assert row_batch(CPU, [({"host": "a"}, 1, {})]).schema.names == ["__series", "time"]


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    wanted=st.integers(0, 2**12 - 1),
    block_rows=st.integers(1, 12),
)
def test_rows_near_series_are_those_of_their_blocks(lengths: list[int], wanted: int, block_rows: int) -> None:
    """Of every block that holds a row of a wanted series, all rows; the last block may be shorter."""
    mask = np.array([bool(wanted >> place & 1) for place in range(len(lengths))])
    series = np.repeat(np.arange(len(lengths)), lengths)
    blocks = {row // block_rows for row in range(len(series)) if mask[series[row]]}
    rows = sum(len(series[block * block_rows : (block + 1) * block_rows]) for block in blocks)
    keys = pa.array([str(place) for place in range(len(lengths))])
    runs = Runs.of_times(keys, np.array(lengths), np.zeros(len(series), np.int64))
    # Counted as if the last block were whole, where it is not the only one.
    assert rows <= runs.rows_near(mask, block_rows) <= min(len(blocks) * block_rows, len(series))
