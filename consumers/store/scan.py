"""Reads one table: segments that can be read directly, and all other rows merged.

headrace.consumers.store.pruning decides which segments are merged. In the merged table each (series, time)
occurs once, with the values of the highest rank, and tombstones are applied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa

from headrace.consumers.store.batch_columns import (
    Int64s,
    Mask,
    field_column,
    gather,
    narrow_text,
    tag_columns,
    unify_series,
    with_tags,
)
from headrace.consumers.store.block_cache import BLOCKS_PER_SCAN_MAX, BlockCache
from headrace.consumers.store.pruning import OverlapCache, RunsOf, ScanRequest, candidates_of, split
from headrace.consumers.store.row_order import order_rows
from headrace.consumers.store.segment import SegmentEntry
from headrace.consumers.store.segment_files import SegmentFiles
from headrace.consumers.store.segment_reader import ReadCount, read_rows
from headrace.consumers.store.store_view import TableView
from headrace.consumers.store.synced import rank_of
from headrace.consumers.store.tombstone_set import visible, without_deleted
from headrace.consumers.store.tombstones import rows_between
from headrace.schemas.payload import SERIES_COLUMN
from headrace.schemas.tables import TIME_COLUMN, FieldType, TableSchema

NEAR_ROWS = 131_072
"""Who wants one series of a file reads about so many rows of it: the usual size of a row group."""


@dataclass(frozen=True, slots=True)
class TableRead:
    """The segments to read directly; all other rows, merged; and what was read for these.

    `near_rows` are those of direct segments near wanted series, by name, where there are such; see `Runs.rows_near`.
    """

    direct: list[SegmentEntry]
    rows: pa.Table
    count: ReadCount
    near_rows: Mapping[str, int]


class TableScan:
    """The result of a scan in two halves.

    `files` are Parquet files of valid and unique rows; `table` has all other rows, merged. No requested row
    is missing. `files` may hold rows outside the request, since whole files are named; `table` holds only
    rows in the requested time range with the requested tags. The columns of `table` are the tags
    (see `tag_columns`), `time` (int64 ns, always present) and the requested fields, in this order.
    Files stay on disk until `close`; use the scan as a context manager.
    """

    def __init__(
        self,
        files: list[Path],
        table: pa.Table,
        close: Callable[[], None],
        segments: int = 0,
        merged: ReadCount | None = None,
        file_rows: int = 0,
        rollup: pa.Table | None = None,
        near_rows: int | None = None,
    ) -> None:
        """Created by `Store.scan`; `segments` are those of the table, and `merged` was read of them for `table`.

        `file_rows` is the number of rows in all files, and `near_rows` that of those near the requested series, by
        default all. `rollup` has the rollups of other segments, in whose rows it has
        a part each: tags (dictionary), `time` (the hour, timestamp in ns), and the columns of the request.
        """
        self.files = files
        self.rollup = rollup
        self.file_rows = file_rows
        self.near_rows = file_rows if near_rows is None else near_rows
        self.table = table
        self.segments = segments
        self.merged = merged or ReadCount()
        self._close: Callable[[], None] | None = close

    @classmethod
    def over(
        cls,
        files: SegmentFiles,
        direct: Sequence[SegmentEntry],
        read: TableRead,
        segments: int,
        rollup: pa.Table | None,
    ) -> Self:
        """A scan over pinned segments, which it releases."""
        names = sorted(entry.name for entry in direct)
        paths, file_rows = [files.path(name) for name in names], sum(entry.rows for entry in direct)
        near_rows = sum(read.near_rows.get(entry.name, entry.rows) for entry in direct)
        return cls(paths, read.rows, lambda: files.release(names), segments, read.count, file_rows, rollup, near_rows)

    def close(self) -> None:
        """Releases the files; a second call does nothing."""
        close, self._close = self._close, None
        if close is not None:
            close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_table(
    view: TableView,
    request: ScanRequest,
    files: SegmentFiles,
    runs_of: RunsOf,
    overlaps: OverlapCache,
    blocks: BlockCache,
    live_is_unique: bool,
    *,
    whole_files: bool,
) -> TableRead:
    """Read what cannot be read directly.

    `whole_files`: segments that need no merge are all read directly, also if only few of their series are wanted.
    `live_is_unique`: no two visible unsealed rows share series and time.
    """
    candidates, wanted = candidates_of(view.entries, request, runs_of)
    live = [batch for batch in view.live if request.overlaps(batch.min_time_ns, batch.max_time_ns)]
    direct, merged = split(candidates, live, view.tombstones, request, runs_of, overlaps)
    fields = [name for name, _ in request.fields_of(view.schema)]
    ranked: list[tuple[tuple[int, int, int, str], pa.RecordBatch]] = []
    count = ReadCount()
    for entry in merged:
        runs, mask, path = runs_of(entry.name), wanted.get(entry.name), files.path(entry.name)
        rows = blocks.read_small(files.root, entry, runs, fields, *request.bounds, mask)
        if rows is None:
            rows = read_rows(path, entry, runs, fields, *request.bounds, mask, count)
        else:
            count.add(1)
        (rows,) = without_deleted([rows], view.tombstones.unapplied(entry), [0])
        ranked.append((rank_of(entry), rows))
    narrow = {} if whole_files else _few_series(view.schema, request, direct, wanted, files, runs_of, blocks, count)
    ranked += [(rank_of(entry), narrow[entry.name]) for entry in direct if entry.name in narrow]
    direct = [entry for entry in direct if entry.name not in narrow]
    # Columns before rows: a filter copies every column that it is given.
    of_fields = [replace(batch, rows=_columns(batch.rows, fields)) for batch in live]
    of_times = [rows_between(rows, *request.bounds) for rows in visible(of_fields, view.tombstones)]
    for batch, rows in zip(live, with_tags(of_times, request.tags or {}), strict=True):
        ranked.append(((batch.era, batch.version, batch.version, ""), rows))
    # Files and memory in one order: rows that were handed over are in memory, and may rank below those of a file.
    ranked.sort(key=lambda pair: pair[0])
    batches = [rows for _, rows in ranked if len(rows)]
    # Unique unsealed rows alone need no sort: the common query on recent data.
    rows = merge(batches, view.schema, request, live_is_unique and not merged)
    near = {entry.name: runs_of(entry.name).rows_near(wanted[entry.name], NEAR_ROWS) for entry in direct if wanted}
    return TableRead(direct, rows, count, near)


def _few_series(
    schema: TableSchema,
    request: ScanRequest,
    direct: Sequence[SegmentEntry],
    wanted: Mapping[str, Mask],
    files: SegmentFiles,
    runs_of: RunsOf,
    blocks: BlockCache,
    count: ReadCount,
) -> dict[str, pa.RecordBatch]:
    """The requested rows of those segments that need no merge and of which few series are wanted, by their name."""
    kinds = dict(request.fields_of(schema))
    found = dict[str, pa.RecordBatch]()
    groups_left = BLOCKS_PER_SCAN_MAX // (len(kinds) + 1)
    # A block of texts has any size.
    if not wanted or len(direct) > groups_left or FieldType.STRING in kinds.values():
        return found
    for entry in direct:
        places, bounds = wanted[entry.name].nonzero()[0], request.bounds
        rows = blocks.read_series(files.root, entry, runs_of(entry.name), places, list(kinds), *bounds, groups_left)
        if rows is not None:
            found[entry.name] = rows.rows
            groups_left -= rows.groups
            count.add(rows.groups)
    return found


def merge(batches: Sequence[pa.RecordBatch], schema: TableSchema, request: ScanRequest, unique: bool) -> pa.Table:
    """Row batches, lowest rank first, as one table of tags, time and fields with each (series, time) once.

    With `unique` the batches hold no (series, time) twice.
    """
    if not batches:
        return _no_rows(schema, request)
    tags = [tag for tag in schema.tags if request.needs(tag)]
    columns: dict[str, pa.Array | pa.ChunkedArray] = {}
    rows: Int64s | None = None
    if not unique:
        ordering = order_rows(batches)
        columns |= tag_columns(ordering.keys, tags, ordering.codes)
        columns[TIME_COLUMN], rows = pa.array(ordering.times), ordering.rows
    else:
        if tags:
            keys, codes = unify_series(batches)
            columns |= tag_columns(keys, tags, codes)
        times = [batch.column(1) for batch in batches]
        columns[TIME_COLUMN] = times[0] if len(times) == 1 else pa.concat_arrays(times)
    for name, kind in request.fields_of(schema):
        column = field_column(batches, name, kind)
        columns[name] = narrow_text(column if rows is None else gather(column, rows))
    return pa.table(columns)


def _columns(rows: pa.RecordBatch, fields: Sequence[str]) -> pa.RecordBatch:
    present = set(rows.schema.names)
    return rows.select([SERIES_COLUMN, TIME_COLUMN, *(name for name in fields if name in present)])


def _no_rows(schema: TableSchema, request: ScanRequest) -> pa.Table:
    """The columns of a merge, without rows: most scans of sealed rows have nothing to merge."""
    types: dict[str, pa.DataType] = {tag: pa.dictionary(pa.int32(), pa.string()) for tag in schema.tags}
    types |= {TIME_COLUMN: pa.int64(), **{name: kind.arrow for name, kind in schema.fields}}
    wanted = [(name, kind) for name, kind in types.items() if name == TIME_COLUMN or request.needs(name)]
    return pa.schema(wanted).empty_table()
