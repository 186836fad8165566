"""Reads rows of slots that left, as of their cut: from files that nobody else reads here, and from memory before these.

They are not merged: whoever asks has rows of the same slots, and each batch has its rank.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from headrace.consumers.store.batch_columns import Mask, field_column, with_tags
from headrace.consumers.store.former_rows import RankedRows
from headrace.consumers.store.memtable import TableKey
from headrace.consumers.store.pruning import ScanRequest, candidates_of
from headrace.consumers.store.segment import SegmentEntry
from headrace.consumers.store.segment_reader import read_rows
from headrace.consumers.store.slots import Hold, Slots, batch_within, batch_without_handed
from headrace.consumers.store.store_errors import CutTooLarge, CutUnready, SegmentAwaited, TableUnknown
from headrace.consumers.store.store_job import StoreComponents
from headrace.consumers.store.store_view import TableView
from headrace.consumers.store.tombstone_set import NO_TOMBSTONES, visible, without_deleted
from headrace.consumers.store.tombstones import rows_between
from headrace.schemas.payload import SERIES_COLUMN
from headrace.schemas.tables import TIME_COLUMN, FieldType, TableSchema

VALUES_MAX = 2_000_000
"""Values of one answer, series and times among them: both nodes have all of it in memory."""
ROWS_BYTES_MAX = 32 << 20
"""Bytes of one answer in memory: texts may have any length."""


def read_cut(
    components: StoreComponents, hold: Hold, key: TableKey, request: ScanRequest
) -> tuple[TableSchema, list[RankedRows]]:
    """The rows of a table in the slots of a cut, and their schema.

    Raises TableUnknown, CutUnready, CutTooLarge, SegmentAwaited, StoreRetired or StoreDamaged.
    """
    found = _view(components, key, hold)
    try:
        return found.schema, _read(components, found, request, hold.slots)
    finally:
        components.files.release([entry.name for entry in found.entries])


def _view(components: StoreComponents, key: TableKey, hold: Hold) -> TableView:
    """The table as it was at the cut, with its files pinned."""
    view = components.view
    with view.lock:
        metadata = view.metadata(key)
        if metadata is None:
            raise TableUnknown(f"no table {key[0]}.{key[1]} here")
        # Not before: the rows may be in memory that no seal has frozen. Not later: the files may be removed.
        if not any(each.version == hold.version and hold.slots.numbers <= each.slots.numbers for each in view.holds):
            raise CutUnready(f"the slots of the cut at version {hold.version} are not held here")
        awaited = [each.name for each in view.awaited(of_cuts=True) if hold.covers(each)]
        if awaited:
            raise SegmentAwaited(f"the cut at version {hold.version} waits for {', '.join(awaited[:3])}")
        every = (*view.entries(), *view.cut_entries())
        entries = tuple(each for each in every if (each.database, each.table) == key and hold.covers(each))
        # Frozen with the cut, or before it. What came later in these slots was handed over, and is in no store here.
        frozen = view.frozen(key)
        own = view.tombstones_by_table().get(key, NO_TOMBSTONES)
        components.files.pin([entry.name for entry in entries])
    return TableView(metadata, entries, tuple(frozen), own.up_to(hold.version))


def _read(components: StoreComponents, view: TableView, request: ScanRequest, slots: Slots) -> list[RankedRows]:
    candidates, wanted = candidates_of(view.entries, request, components.runs.get)
    if any(entry.synced or any(entry.loaded_rank) for entry in candidates):
        raise CutUnready("the cut has files of sync senders, whose ranks are more than two numbers")
    near = (batch for batch in view.live if request.overlaps(batch.min_time_ns, batch.max_time_ns))
    database, handed = view.metadata.database, view.tombstones.limited
    left = (batch_without_handed(batch, database, handed) for batch in near)
    within = (batch_within(batch, database, slots) for batch in left if batch is not None)
    live = [batch for batch in within if batch is not None]
    kinds = dict(request.fields_of(view.schema))
    rows = sum(len(batch.rows) for batch in live) + sum(_rows(components, entry, wanted) for entry in candidates)
    if rows * (len(kinds) + 2) > VALUES_MAX:
        raise CutTooLarge(f"a scan wants up to {rows:,} rows of slots that move", action="wait for their files")
    found, size_bytes = list[RankedRows](), sum(batch.rows.nbytes for batch in live)
    for entry in candidates:
        path, runs, mask = components.files.path(entry.name), components.runs.get(entry.name), wanted.get(entry.name)
        # Small files were read by every query until the cut, and are in memory mostly.
        of_file = components.blocks.read_small(components.files.root, entry, runs, list(kinds), *request.bounds, mask)
        if of_file is None:
            of_file = read_rows(path, entry, runs, kinds, *request.bounds, mask)
        (of_file,) = without_deleted([of_file], view.tombstones.unapplied(entry), [0])
        found.append(RankedRows(entry.era, entry.last_version, of_file))
        size_bytes += of_file.nbytes
        if size_bytes > ROWS_BYTES_MAX:
            raise CutTooLarge(f"a scan wants more than {ROWS_BYTES_MAX:,} bytes", action="wait for the files")
    of_times = [rows_between(left, *request.bounds) for left in visible(live, view.tombstones)]
    for batch, rows in zip(live, with_tags(of_times, request.tags or {}), strict=True):
        found.append(RankedRows(batch.era, batch.version, rows))
    return [RankedRows(each.era, each.version, _columns(each.rows, kinds)) for each in found if len(each.rows)]


def _rows(components: StoreComponents, entry: SegmentEntry, wanted: Mapping[str, Mask]) -> int:
    """How many rows of a file a scan may want."""
    if entry.name not in wanted:
        return entry.rows
    lengths = components.runs.get(entry.name).lengths
    return int(np.sum(lengths[wanted[entry.name]]))


def _columns(rows: pa.RecordBatch, kinds: Mapping[str, FieldType]) -> pa.RecordBatch:
    """Rows with the same columns whatever their batch had."""
    columns = [rows.column(0), rows.column(1), *(field_column([rows], name, kind) for name, kind in kinds.items())]
    return pa.RecordBatch.from_arrays(columns, names=[SERIES_COLUMN, TIME_COLUMN, *kinds])
