"""A segment: one Parquet file of sealed rows of one table, slice and bucket, and its entry in the index.

The file. Rows sorted by (series key, time), each once. Columns: the tags of the table in order of name (string, null where a series does not
carry the tag, dictionary pages), `time` (TIMESTAMP without zone, values UTC; MICROS when every value is a whole microsecond, else NANOS;
DELTA_BINARY_PACKED), the fields in order of name (INT64 DELTA_BINARY_PACKED, DOUBLE BYTE_STREAM_SPLIT, BOOLEAN, string). zstd, row groups of
`row_group_rows`. Statistics stand on `time` and on the tag with the most values, where they prune and cost little. Key-value metadata of the
footer (all text):

    headrace.format           1
    headrace.group            data group that sealed the file
    headrace.database, .table, .slice, .bucket
    headrace.era              era of every row
    headrace.versions         first-last version of the rows, both included
    headrace.schema_version   version of the table's schema that the columns follow
    headrace.content_digest   see consumers.store.digest

The runs. The index holds for each segment its series: an Arrow IPC stream (zstd) of one batch `key` (utf8, a series key), `rows` (int64, how
many rows of the file are its own), `first`, `last` (int64, ns, its first and last time), in file order. With it a reader knows the series of
every row without decoding a tag column, prunes row groups by tags exactly, and mostly sees that two files share no row without reading either.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from consumers.store.digest import content_digest
from consumers.store.errors import StoreDamaged
from consumers.store.kernel import Int64s
from consumers.store.names import SegmentName
from consumers.store.series import Mask, tag_column
from consumers.store.settings import StoreSettings
from schemas.payload import SERIES_COLUMN
from schemas.series import series_keys
from schemas.tables import TIME_COLUMN, FieldType, TableSchema

SEGMENT_FORMAT = 1
METADATA_PREFIX = "headrace."
_ENCODINGS = {FieldType.INT64: "DELTA_BINARY_PACKED", FieldType.FLOAT64: "BYTE_STREAM_SPLIT"}
_MICROSECOND_NS = 1_000


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """What the catalogue says of one segment. Times are ns, both ends included; digests are xxh3-128 in hex.

    `content_digest` is over the rows and equal on every replica, `file_digest` over the bytes and guards transfer and disk only. Deletes of a
    version up to `cleaned_version` have been applied to the file for good.
    """

    name: str
    database: str
    table: str
    slice_number: int
    bucket: int
    era: int
    first_version: int
    last_version: int
    generation: int
    rows: int
    min_time_ns: int
    max_time_ns: int
    size_bytes: int
    content_digest: str
    file_digest: str
    schema_version: int
    cleaned_version: int

    def to_json(self) -> bytes:
        """The value of the entry in the index."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes) -> SegmentEntry:
        """The inverse of `to_json`."""
        return cls(**json.loads(data))

    def overlaps(self, start_ns: int | None, end_ns: int | None) -> bool:
        """True if a row of the segment can have a time in [start_ns, end_ns)."""
        return (start_ns is None or self.max_time_ns >= start_ns) and (end_ns is None or self.min_time_ns < end_ns)


@dataclass(frozen=True, slots=True)
class Runs:
    """The series of a segment in file order, how many rows each has, and its first and last time."""

    keys: pa.StringArray
    lengths: Int64s
    first_ns: Int64s
    last_ns: Int64s

    @classmethod
    def of_times(cls, keys: pa.StringArray, lengths: Int64s, times: Int64s) -> Runs:
        """The runs of rows sorted by (series, time)."""
        ends = np.cumsum(lengths)
        return cls(keys, lengths, times[ends - lengths], times[ends - 1])

    def to_bytes(self) -> bytes:
        """The value of the runs in the index."""
        batch = pa.record_batch({"key": self.keys, "rows": self.lengths, "first": self.first_ns, "last": self.last_ns})
        options = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
            writer.write_batch(batch)
        return bytes(sink.getvalue().to_pybytes())

    @classmethod
    def from_bytes(cls, data: bytes) -> Runs:
        """The inverse of `to_bytes`."""
        with pa.ipc.open_stream(data) as reader:
            batch = reader.read_next_batch()
        return cls(batch.column(0), *(batch.column(index).to_numpy() for index in (1, 2, 3)))


@dataclass(frozen=True, slots=True)
class SegmentRows:
    """The rows of one segment before they are a file: runs of series, their times in ns, the fields in order of name."""

    runs: Runs
    times: Int64s
    fields: Mapping[str, pa.Array]


@dataclass(frozen=True, slots=True)
class EncodedSegment:
    """A segment as bytes, with what the index will say of it."""

    entry: SegmentEntry
    runs: Runs
    data: pa.Buffer


def encode_segment(
    group: str, name: SegmentName, schema: TableSchema, rows: SegmentRows, cleaned_version: int, settings: StoreSettings
) -> EncodedSegment:
    """The Parquet file of `rows` and its entry."""
    digest = content_digest(rows.runs.keys, rows.runs.lengths, rows.times, rows.fields)
    table, selective = _file_table(schema, rows)
    data = _write_parquet(table, schema, selective, _metadata(group, name, schema, digest), settings)
    entry = SegmentEntry(
        name=name.relative,
        database=name.database,
        table=name.table,
        slice_number=name.slice_number,
        bucket=name.bucket,
        era=name.era,
        first_version=name.first_version,
        last_version=name.last_version,
        generation=name.generation,
        rows=len(rows.times),
        min_time_ns=int(rows.times.min()),
        max_time_ns=int(rows.times.max()),
        size_bytes=data.size,
        content_digest=digest,
        file_digest=xxhash.xxh3_128_hexdigest(data),
        schema_version=schema.version,
        cleaned_version=cleaned_version,
    )
    return EncodedSegment(entry, rows.runs, data)


def read_rows(
    path: Path,
    entry: SegmentEntry,
    runs: Runs,
    fields: Iterable[str],
    start_ns: int | None = None,
    end_ns: int | None = None,
    wanted: Mask | None = None,
) -> pa.RecordBatch:
    """Rows of a segment as a row batch: only `fields` the file has, only row groups that can hold a time in [start_ns, end_ns) of a series that
    `wanted` (one flag a run) marks, and of those only such rows. Raises StoreDamaged when the file cannot be read."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            return _read_open(file, entry, runs, fields, start_ns, end_ns, wanted)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise StoreDamaged(
            f"segment {path} cannot be read: {error}", action="recover this replica from another one or from the log"
        ) from error


def digest_of_file(path: Path) -> str:
    """The content digest computed from nothing but the file; raises StoreDamaged when it is no readable segment."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            table = file.read(use_threads=False)
            metadata = {key.decode(): value.decode() for key, value in (file.metadata.metadata or {}).items()}
        split = table.schema.names.index(TIME_COLUMN)
        tags = {name: table.column(name).combine_chunks() for name in table.schema.names[:split]}
        times = _nanoseconds(table.column(TIME_COLUMN))
        runs = runs_of_tags(metadata[METADATA_PREFIX + "table"], tags, times)
        fields = {name: table.column(name).combine_chunks() for name in table.schema.names[split + 1 :]}
        return content_digest(runs.keys, runs.lengths, times, fields)
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreDamaged(f"segment {path} cannot be read: {error!r}") from error


def schema_of_file(path: Path, entry: SegmentEntry) -> TableSchema:
    """The table schema that a segment was written with; raises StoreDamaged when its footer cannot be read."""
    try:
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        raise StoreDamaged(f"segment {path} cannot be read: {error}") from error
    split = schema.names.index(TIME_COLUMN)
    fields = {name: FieldType.of_arrow(schema.field(name).type) for name in schema.names[split + 1 :]}
    known = tuple((name, kind) for name, kind in fields.items() if kind is not None)
    assert len(known) == len(fields), path
    return TableSchema(entry.database, entry.table, entry.schema_version, tuple(schema.names[:split]), known)


def runs_of_tags(table: str, tags: Mapping[str, pa.Array], times: Int64s) -> Runs:
    """The runs of rows sorted by series, found again in their tag columns."""
    rows = len(times)
    if not tags:
        return Runs.of_times(series_keys(table, {"": pa.array([""])}), np.array([rows], np.int64), times)
    changed = np.zeros(rows, np.bool_)
    changed[:1] = True
    for values in tags.values():
        codes = values.dictionary_encode().indices.fill_null(-1).to_numpy(zero_copy_only=False)
        changed[1:] |= codes[1:] != codes[:-1]
    starts = np.flatnonzero(changed)
    heads = {name: values.take(pa.array(starts)) for name, values in tags.items()}
    return Runs.of_times(series_keys(table, heads), np.diff(np.append(starts, rows)), times)


def _metadata(group: str, name: SegmentName, schema: TableSchema, digest: str) -> dict[str, str]:
    values = {
        "format": SEGMENT_FORMAT,
        "group": group,
        "database": name.database,
        "table": name.table,
        "slice": name.slice_number,
        "bucket": name.bucket,
        "era": name.era,
        "versions": f"{name.first_version}-{name.last_version}",
        "schema_version": schema.version,
        "content_digest": digest,
    }
    return {METADATA_PREFIX + key: str(value) for key, value in values.items()}


def _file_table(schema: TableSchema, rows: SegmentRows) -> tuple[pa.Table, str | None]:
    """The table as the file has it, and the tag that tells its rows apart best."""
    codes = np.repeat(np.arange(len(rows.runs.lengths), dtype=np.int32), rows.runs.lengths)
    columns: list[pa.Array] = [tag_column(rows.runs.keys, tag, codes) for tag in schema.tags]
    names: list[pa.Field] = [pa.field(tag, column.type) for tag, column in zip(schema.tags, columns, strict=True)]
    distinct = {tag: len(column.dictionary) for tag, column in zip(schema.tags, columns, strict=True)}
    whole = bool((rows.times % _MICROSECOND_NS == 0).all())
    time_type = pa.timestamp("us") if whole else pa.timestamp("ns")
    columns.append(pa.array(rows.times // _MICROSECOND_NS if whole else rows.times).view(time_type))
    names.append(pa.field(TIME_COLUMN, time_type, nullable=False))
    columns.extend(rows.fields.values())
    names.extend(pa.field(name, values.type) for name, values in rows.fields.items())
    table = pa.Table.from_arrays(columns, schema=pa.schema(names))
    return table, max(distinct, key=lambda tag: distinct[tag]) if distinct else None


def _write_parquet(
    table: pa.Table, schema: TableSchema, selective: str | None, metadata: dict[str, str], settings: StoreSettings
) -> pa.Buffer:
    encodings = {name: _ENCODINGS[kind] for name, kind in schema.fields if kind in _ENCODINGS}
    strings = [name for name, kind in schema.fields if kind is FieldType.STRING]
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        table.schema,
        use_dictionary=[*schema.tags, *strings],
        column_encoding={TIME_COLUMN: "DELTA_BINARY_PACKED", **encodings},
        compression="zstd",
        compression_level=settings.compression_level,
        write_statistics=[TIME_COLUMN, *([selective] if selective else [])],
        write_page_checksum=True,
        store_schema=False,
    ) as writer:
        writer.write_table(table, row_group_size=settings.row_group_rows)
        writer.add_key_value_metadata(metadata)
    return sink.getvalue()


def _read_open(
    file: pq.ParquetFile,
    entry: SegmentEntry,
    runs: Runs,
    fields: Iterable[str],
    start_ns: int | None,
    end_ns: int | None,
    wanted: Mask | None,
) -> pa.RecordBatch:
    if file.metadata.num_rows != entry.rows:
        raise ValueError(f"{file.metadata.num_rows} rows where the catalogue says {entry.rows}")
    groups, ranges = _row_groups(file.metadata, runs, start_ns, end_ns, wanted)
    present = set(file.schema_arrow.names)
    names = [name for name in fields if name in present]
    table = file.read_row_groups(groups, columns=[TIME_COLUMN, *names], use_threads=False)
    codes = np.repeat(np.arange(len(runs.lengths), dtype=np.int32), runs.lengths)
    codes = np.concatenate([codes[low:high] for low, high in ranges]) if ranges else codes[:0]
    times = _nanoseconds(table.column(TIME_COLUMN))
    series = pa.DictionaryArray.from_arrays(pa.array(codes), runs.keys)
    columns = [series, pa.array(times), *(_one_chunk(table.column(name)) for name in names)]
    batch = pa.RecordBatch.from_arrays(columns, names=[SERIES_COLUMN, TIME_COLUMN, *names])
    keep = _keep(entry, times, codes, start_ns, end_ns, wanted)
    return batch if keep is None or keep.all() else batch.filter(pa.array(keep))


def _keep(
    entry: SegmentEntry,
    times: Int64s,
    codes: npt.NDArray[Any],
    start_ns: int | None,
    end_ns: int | None,
    wanted: Mask | None,
) -> Mask | None:
    keep: Mask | None = None if wanted is None or wanted.all() else wanted[codes]
    if start_ns is not None and entry.min_time_ns < start_ns:
        keep = times >= start_ns if keep is None else keep & (times >= start_ns)
    if end_ns is not None and entry.max_time_ns >= end_ns:
        keep = times < end_ns if keep is None else keep & (times < end_ns)
    return keep


def _row_groups(
    metadata: pq.FileMetaData, runs: Runs, start_ns: int | None, end_ns: int | None, wanted: Mask | None
) -> tuple[list[int], list[tuple[int, int]]]:
    """Row groups worth reading, and the range of rows of the file that each holds."""
    ends = np.cumsum(runs.lengths)
    column = next(i for i in range(metadata.num_columns) if metadata.schema.column(i).name == TIME_COLUMN)
    groups, ranges, low = [], [], 0
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        high = low + group.num_rows
        first, last = int(np.searchsorted(ends, low, "right")), int(np.searchsorted(ends, high, "left"))
        if (wanted is None or wanted[first : last + 1].any()) and _in_window(group.column(column), start_ns, end_ns):
            groups.append(index)
            ranges.append((low, high))
        low = high
    return groups, ranges


def _in_window(column: pq.ColumnChunkMetaData, start_ns: int | None, end_ns: int | None) -> bool:
    statistics = column.statistics
    if statistics is None or not statistics.has_min_max or (start_ns is None and end_ns is None):
        return True
    scale = _MICROSECOND_NS if "micro" in str(statistics.logical_type).lower() else 1
    low, high = statistics.min_raw * scale, statistics.max_raw * scale
    return (start_ns is None or high >= start_ns) and (end_ns is None or low < end_ns)


def _nanoseconds(column: pa.ChunkedArray) -> Int64s:
    values = _one_chunk(column)
    numbers: Int64s = values.view(pa.int64()).to_numpy(zero_copy_only=True)
    return numbers * _MICROSECOND_NS if values.type.unit == "us" else numbers


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    combined = column.combine_chunks()
    return pc.cast(combined, column.type)


def segments_of(entries: Iterable[SegmentEntry], database: str, table: str) -> Sequence[SegmentEntry]:
    """The entries of one table, lowest rank first within each slice and bucket."""
    found = (entry for entry in entries if entry.database == database and entry.table == table)
    return sorted(found, key=lambda entry: (entry.slice_number, entry.bucket, entry.era, entry.first_version))
