"""Reads segments: rows pruned by row group, the schema in the footer, the content digest of a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.consumers.store.batch_columns import Int64s, Mask, one_array
from headrace.consumers.store.digest import content_digest
from headrace.consumers.store.segment import METADATA_PREFIX, MICROSECOND_NS, Runs, SegmentEntry
from headrace.consumers.store.segment_files import file_digest
from headrace.consumers.store.store_errors import SegmentUnread, StoreDamaged, StoreError
from headrace.schemas.payload import SERIES_COLUMN
from headrace.schemas.series import series_keys
from headrace.schemas.tables import TIME_COLUMN, FieldType, TableSchema, widened


@dataclass(slots=True)
class ReadCount:
    """What one scan has read."""

    segments: int = 0
    row_groups: int = 0

    def add(self, row_groups: int) -> None:
        """One more segment, of which so many row groups were read."""
        self.segments += 1
        self.row_groups += row_groups


def read_rows(
    path: Path,
    entry: SegmentEntry,
    runs: Runs,
    fields: Iterable[str],
    start_ns: int | None = None,
    end_ns: int | None = None,
    wanted: Mask | None = None,
    count: ReadCount | None = None,
) -> pa.RecordBatch:
    """Rows of a segment as a row batch with those of `fields` that the file has.

    Only rows with a time in [start_ns, end_ns) of a series that `wanted` marks (one flag a run); row groups
    that cannot hold such a row are not read. Text is large_string. Raises StoreDamaged when the file's bytes
    have changed, SegmentUnread when they have not and yet cannot be read. `count` gets what was read.
    """
    try:
        # With checksums: a flipped bit has to be an error, and never another value in an answer.
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            return _read_open(file, entry, runs, fields, start_ns, end_ns, wanted, count or ReadCount())
    except (pa.ArrowException, OSError, ValueError) as error:
        raise read_error(path, entry, error) from error


def digest_of_file(path: Path) -> str:
    """The content digest computed from the file alone; raises StoreDamaged when it is no readable segment."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            table = file.read(use_threads=False)
            metadata = {key.decode(): value.decode() for key, value in (file.metadata.metadata or {}).items()}
        split = table.schema.names.index(TIME_COLUMN)
        # As codes: the text of a tag repeats with every row, and so may exceed the 2 GiB of a string array.
        tags = {name: one_array(table.column(name).dictionary_encode()) for name in table.schema.names[:split]}
        times = nanoseconds(table.column(TIME_COLUMN))
        runs = runs_of_tags(metadata[METADATA_PREFIX + "table"], tags, times)
        fields = {name: one_array(table.column(name)) for name in table.schema.names[split + 1 :]}
        return content_digest(runs.keys, runs.lengths, times, fields)
    # A damaged footer fails in many ways, depending on the byte that changed.
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreDamaged(f"segment {path} cannot be read: {error!r}") from error


def schema_of_file(path: Path, entry: SegmentEntry) -> TableSchema:
    """The table schema that a segment was written with.

    Raises StoreDamaged or SegmentUnread when its footer cannot be read.
    """
    try:
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        raise read_error(path, entry, error) from error
    split = schema.names.index(TIME_COLUMN)
    fields = {name: FieldType.of_arrow(schema.field(name).type) for name in schema.names[split + 1 :]}
    known = tuple((name, kind) for name, kind in fields.items() if kind is not None)
    assert len(known) == len(fields), path
    return TableSchema(entry.database, entry.table, entry.schema_version, tuple(schema.names[:split]), known)


def union_of(schemas: Sequence[TableSchema]) -> TableSchema:
    """All columns of versions of one table, each in the type that holds the values of all of them."""
    fields: dict[str, FieldType] = {}
    for name, kind in (field for schema in schemas for field in schema.fields):
        wider = widened(fields.get(name, kind), kind)
        # The table log has no other change of a type.
        assert wider is not None, (schemas[0].table, name)
        fields[name] = wider
    tags = {tag for schema in schemas for tag in schema.tags}
    newest = max(schema.version for schema in schemas)
    return replace(schemas[0], version=newest, tags=tuple(sorted(tags)), fields=tuple(sorted(fields.items())))


def runs_of_tags(table: str, tags: Mapping[str, pa.Array], times: Int64s) -> Runs:
    """The runs of rows sorted by series, derived from their tag columns, which are dictionaries."""
    rows = len(times)
    if not tags:
        return Runs.of_times(series_keys(table, {"": pa.array([""])}), np.array([rows], np.int64), times)
    # A new run begins where any tag changes. Null has a code
    # of its own, since an absent tag is another series.
    changed = np.zeros(rows, np.bool_)
    changed[:1] = True
    for values in tags.values():
        codes = values.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        changed[1:] |= codes[1:] != codes[:-1]
    starts = np.flatnonzero(changed)
    heads = {name: values.take(pa.array(starts)).dictionary_decode() for name, values in tags.items()}
    return Runs.of_times(series_keys(table, heads), np.diff(np.append(starts, rows)), times)


def _read_open(
    file: pq.ParquetFile,
    entry: SegmentEntry,
    runs: Runs,
    fields: Iterable[str],
    start_ns: int | None,
    end_ns: int | None,
    wanted: Mask | None,
    count: ReadCount,
) -> pa.RecordBatch:
    if file.metadata.num_rows != entry.rows:
        raise ValueError(f"{file.metadata.num_rows} rows, the catalogue has {entry.rows}")
    groups, ranges = _row_groups(file.metadata, runs, start_ns, end_ns, wanted)
    count.add(len(groups))
    present = set(file.schema_arrow.names)
    names = [name for name in fields if name in present]
    # One thread: queries and merges already run several at a time on a few cores.
    table = file.read_row_groups(groups, columns=[TIME_COLUMN, *names], use_threads=False)
    # The series of each row comes from the runs in the index, so no tag column is decoded.
    codes = np.repeat(np.arange(len(runs.lengths), dtype=np.int32), runs.lengths)
    codes = np.concatenate([codes[low:high] for low, high in ranges]) if ranges else codes[:0]
    times = nanoseconds(table.column(TIME_COLUMN))
    series = pa.DictionaryArray.from_arrays(pa.array(codes), runs.keys)
    columns = [series, pa.array(times), *(one_array(table.column(name)) for name in names)]
    batch = pa.RecordBatch.from_arrays(columns, names=[SERIES_COLUMN, TIME_COLUMN, *names])
    keep = rows_kept(entry, times, codes, start_ns, end_ns, wanted)
    return batch if keep is None or keep.all() else batch.filter(pa.array(keep))


def rows_kept(
    entry: SegmentEntry,
    times: Int64s,
    codes: npt.NDArray[Any],
    start_ns: int | None,
    end_ns: int | None,
    wanted: Mask | None,
) -> Mask | None:
    """Which rows of a segment have a time in [start_ns, end_ns) and a series that `wanted` marks; None means all."""
    # Most files lie wholly within the time range, and a filter would copy every column.
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
    # A row group is skipped by tags exactly: its first and
    # last run follow from row numbers, not from statistics.
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
    # Raw integers, since the converted statistics are datetimes, which round nanoseconds to microseconds.
    statistics = column.statistics
    if statistics is None or not statistics.has_min_max or (start_ns is None and end_ns is None):
        return True
    scale = MICROSECOND_NS if "micro" in str(statistics.logical_type).lower() else 1
    low, high = statistics.min_raw * scale, statistics.max_raw * scale
    return (start_ns is None or high >= start_ns) and (end_ns is None or low < end_ns)


def nanoseconds(column: pa.ChunkedArray) -> Int64s:
    """A column of times in ns, whatever its unit."""
    values = one_array(column)
    numbers: Int64s = values.view(pa.int64()).to_numpy(zero_copy_only=True)
    return numbers * MICROSECOND_NS if values.type.unit == "us" else numbers


def read_error(path: Path, entry: SegmentEntry, error: Exception) -> StoreError:
    """The condition that an error of reading a segment is: StoreDamaged, or SegmentUnread if its bytes are the same."""
    # An error alone never condemns data: one that follows from the content would condemn it on every replica,
    # and none would be left to copy from.
    if file_digest(path) == entry.file_digest:
        reason = f"segment {path} is as it was sealed and cannot be read: {error}"
        return SegmentUnread(reason, retriable=isinstance(error, MemoryError))
    return StoreDamaged(
        f"segment {path} cannot be read: {error}", action="recover this replica from another one or from the log"
    )
