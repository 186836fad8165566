"""The newest row of every series, so that a last-row query reads no segment.

Of sealed rows, the index holds them for each bucket of a table: an Arrow IPC stream (zstd) with one row a
series, of `__series` (series key), `time` (ns), `__era`, `__stale`, `__version`, `__since`, then the fields. The
version is the last one of the segment that the row is of; earlier builds have not written it (-1), nor the
era since which the group holds the row's slot (0). Where rows of sync senders are among them, `__order` and
`__cleaned` come before the fields: those of the segment, else empty and 0. A row is stale when a tombstone deleted it and the next
older row is unknown. The newest row of that series is then known only by a scan, until a row at least as new
arrives. Of unsealed rows, a summary is kept up to date by reading each batch once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from pathlib import Path
from weakref import ref

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.consumers.store.batch_columns import Int64s, field_column, narrow_text, tag_columns
from headrace.consumers.store.memtable import LiveBatch, TableKey
from headrace.consumers.store.row_order import order_rows, runs_of
from headrace.consumers.store.segment import Runs, SegmentEntry, SegmentRows
from headrace.consumers.store.segment_reader import read_rows
from headrace.consumers.store.store_view import TableView
from headrace.consumers.store.tag_index import TagIndex
from headrace.consumers.store.tombstone_set import TombstoneSet, visible, without_deleted
from headrace.schemas.payload import SERIES_COLUMN
from headrace.schemas.tables import TIME_COLUMN, FieldType, TableSchema

ERA_COLUMN = "__era"

STALE_COLUMN = "__stale"

VERSION_COLUMN = "__version"

SINCE_COLUMN = "__since"

ORDER_COLUMN = "__order"

CLEANED_COLUMN = "__cleaned"

_EARLIEST = np.iinfo(np.int64).min

_PLAIN = (SERIES_COLUMN, TIME_COLUMN, ERA_COLUMN, STALE_COLUMN, VERSION_COLUMN, SINCE_COLUMN)

_FIXED = (*_PLAIN, ORDER_COLUMN, CLEANED_COLUMN)


@dataclass(frozen=True, slots=True)
class LastRanks:
    """The ranks of last rows; `since` is the era since which the group holds the slot of each.

    For rows of segments with rows of sync senders, `orders` decide between those of one version, and deletes of this
    log up to `cleaned` do not concern them.
    """

    eras: Int64s
    versions: Int64s
    since: Int64s
    orders: pa.StringArray | None = None
    cleaned: Int64s | None = None

    @classmethod
    def of_segment(cls, entry: SegmentEntry, rows: int) -> LastRanks:
        """Those of `rows` rows of one segment."""
        # Ranks of single rows end with the seal. The file has every delete of its range applied, so the highest rank
        # of it serves for all.
        every = (entry.era, entry.last_version, entry.held_since)
        eras, versions, since = (np.full(rows, value, np.int64) for value in every)
        if not entry.synced:
            return cls(eras, versions, since)
        orders = pa.array([entry.order], pa.string()).take(pa.array(np.zeros(rows, np.int64)))
        return cls(eras, versions, since, orders, np.full(rows, entry.cleaned_version, np.int64))

    @classmethod
    def of_live(cls, batches: Sequence[LiveBatch], positions: Int64s) -> LastRanks:
        """Those of rows of the batches at `positions`."""
        eras = np.array([batch.era for batch in batches], np.int64)[positions]
        versions = np.array([batch.version for batch in batches], np.int64)[positions]
        return cls(eras, versions, np.array([batch.held_since for batch in batches], np.int64)[positions])


def last_of_segment(rows: SegmentRows, entry: SegmentEntry) -> pa.RecordBatch:
    """The newest row of each series of a segment."""
    ends = np.cumsum(rows.runs.lengths) - 1
    fields = {name: values.take(pa.array(ends)) for name, values in rows.fields.items()}
    return last_batch(rows.runs.keys, rows.times[ends], LastRanks.of_segment(entry, len(ends)), fields)


def known_times(known: pa.RecordBatch, keys: pa.StringArray) -> Int64s:
    """The time of the last row of each series in `known`; the earliest time for one that has none."""
    place = pc.index_in(keys, value_set=known.column(0))
    times: Int64s = pc.fill_null(known.column(1).take(place), _EARLIEST).to_numpy()
    return times


def newest_of_file(
    path: Path,
    entry: SegmentEntry,
    runs: Runs,
    tombstones: TombstoneSet,
    known: pa.RecordBatch,
    fields: Mapping[str, FieldType],
) -> pa.RecordBatch | None:
    """The newest rows of a segment's series, as far as they may be newer than the last rows in `known`; None if none may.

    `tombstones` are those that are not applied to the file. Only rows that matter are read: the series of most
    files of earlier slices have a newer row already.
    """
    wanted = runs.last_ns >= known_times(known, runs.keys)
    if not wanted.any():
        return None
    # A tombstone may leave an older row the newest one; without any it is the last of its series.
    deleting = bool(tombstones) and tombstones.matches(runs.keys)
    start_ns = None if deleting else int(runs.last_ns[wanted].min())
    rows = read_rows(path, entry, runs, list(fields), start_ns, None, wanted)
    (rows,) = without_deleted([rows], tombstones, [0])
    if not len(rows):
        return None
    ordering = order_rows([rows])
    starts, codes, lengths = runs_of(ordering.codes)
    ends = starts + lengths - 1
    at = pa.array(ordering.rows[ends])
    columns = {name: field_column([rows], name, kind).take(at) for name, kind in fields.items()}
    keys = ordering.keys.take(pa.array(codes))
    return last_batch(keys, ordering.times[ends], LastRanks.of_segment(entry, len(ends)), columns)


def merge_last(batches: Sequence[pa.RecordBatch], fields: Mapping[str, FieldType]) -> pa.RecordBatch:
    """The newest row of each series; of two with the same time the higher rank wins, then the later batch.

    Stale rows are replaced in the same order.
    """
    keys = pa.concat_arrays([batch.column(0) for batch in batches]).dictionary_encode()
    codes = keys.indices.to_numpy()
    times, eras, versions, since, cleaned = (
        np.concatenate([batch.column(place).to_numpy() for batch in batches]) for place in (1, 2, 4, 5, 7)
    )
    orders = pa.concat_arrays([batch.column(6) for batch in batches])
    # Files that were loaded come in any order, so the order of the batches is not that of ranks. Of those that are
    # assigned to one series, the last one stays; a series with one row needs no sort.
    newest = np.empty(len(keys.dictionary), np.int64)
    newest[codes] = np.arange(len(codes))
    if len(newest) < len(codes):
        several = np.flatnonzero(np.bincount(codes)[codes] > 1)
        ranks = (several, *(each[several] for each in (_ordinals(orders), versions, eras, times)))
        order = several[np.lexsort(ranks)]
        newest[codes[order]] = order
    rows = pa.array(newest)
    stale = pa.concat_arrays([batch.column(3) for batch in batches]).take(rows)
    columns = [keys.dictionary, times[newest], eras[newest], stale]
    columns += [versions[newest], since[newest], orders.take(rows), cleaned[newest]]
    columns.extend(field_column(batches, name, kind).take(rows) for name, kind in fields.items())
    return pa.RecordBatch.from_arrays([pa.array(column) for column in columns], names=[*_FIXED, *fields])


def _ordinals(orders: pa.StringArray) -> Int64s:
    """A number for each order, which compare as the orders do."""
    encoded = orders.dictionary_encode()
    places = np.empty(len(encoded.dictionary), np.int64)
    places[pc.sort_indices(encoded.dictionary).to_numpy()] = np.arange(len(places))
    ordinals: Int64s = places[encoded.indices.to_numpy()]
    return ordinals


def apply_tombstones(batch: pa.RecordBatch, tombstones: TombstoneSet, era_max: int) -> pa.RecordBatch:
    """Applies tombstones of this log to last rows; those that were applied before change nothing.

    `era_max` is the highest era of any row of the store, and since which it holds any slot.

    A tombstone without start that matches the newest row of a series deletes the whole series, so the row is
    removed. Any other makes the row stale.
    """
    # The batch holds one row a series. Below a deleted one there may be an older row that the tombstone does
    # not match: before its start, or of a higher era. Only a scan can find it.
    general, limited = tombstones.general, tombstones.limited
    removing = np.array([each.start_ns is None and era_max <= each.era for each in general], np.bool_)
    batch = batch.filter(pa.array(~_hit(batch, general.select(removing))))
    # One that was handed over may match a row of a slot that it does not concern: a scan of that finds it again.
    stale = _hit(batch, general.select(~removing)) | _hit(batch, limited, handed=True)
    return batch.set_column(3, STALE_COLUMN, pc.or_(batch.column(3), pa.array(stale)))


def _hit(batch: pa.RecordBatch, tombstones: TombstoneSet, handed: bool = False) -> np.ndarray:
    """Which last rows one of the tombstones matches, of the rows that it outranks.

    `handed`: the tombstones are of earlier holders, so they concern rows from before the slots came, too.
    """
    # One lookup for each distinct rank: there are as many as segments, and many more rows.
    columns = [batch.column(place).to_numpy() for place in (2, 4, 5, 7)]
    codes = np.zeros(len(batch), np.int64)
    for place in (2, 4, 5, 7):
        encoded = batch.column(place).dictionary_encode()
        codes = codes * max(1, len(encoded.dictionary)) + encoded.indices.to_numpy()
    _, firsts, rank_of_row = np.unique(codes, return_index=True, return_inverse=True)
    ranks = zip(*(column[firsts].tolist() for column in columns), strict=True)
    found = [
        tombstones.floor(era, version, 0) if handed else tombstones.floor(era, version, since, cleaned)
        for era, version, since, cleaned in ranks
    ]
    floors = np.array(found, np.int64)[rank_of_row]
    every = np.arange(len(batch))
    return tombstones.deleted(batch.column(0), every, batch.column(1).to_numpy(), floors)


def empty_last(fields: Mapping[str, FieldType]) -> pa.RecordBatch:
    """The last rows of a table that has none."""
    columns = {name: pa.array([], kind.arrow) for name, kind in fields.items()}
    empty = np.empty(0, np.int64)
    return last_batch(pa.array([], pa.string()), empty, LastRanks(empty, empty, empty), columns)


def has_stale(batch: pa.RecordBatch) -> bool:
    """True if the newest row of some series is unknown."""
    return bool(pc.any(batch.column(3)).as_py())


def last_table(batches: Sequence[pa.RecordBatch], schema: TableSchema) -> pa.Table:
    """Last rows of series, none of which is in two batches, as query results.

    They have the tags (see `tag_columns`), time (int64 ns), and the fields.
    """
    batches = batches or [empty_last(schema.field_types())]
    keys = pa.concat_arrays([batch.column(0) for batch in batches])
    columns: dict[str, pa.Array | pa.ChunkedArray] = dict(tag_columns(keys, schema.tags))
    columns[TIME_COLUMN] = pa.concat_arrays([batch.column(1) for batch in batches])
    for name, kind in schema.fields:
        columns[name] = narrow_text(field_column(batches, name, kind))
    return pa.table(columns)


def with_tags(batch: pa.RecordBatch, tags: Mapping[str, Sequence[str]], index: TagIndex) -> pa.RecordBatch:
    """The last rows of the series with these tags; `index` is that of the batch's keys."""
    return batch.take(pa.array(index.places(tags))) if tags else batch


def encode_last(batch: pa.RecordBatch) -> bytes:
    """The value of a bucket in the index."""
    # Without rows of sync senders as earlier builds read it.
    if not pc.any(pc.not_equal(batch.column(7), 0)).as_py():
        batch = batch.drop_columns([ORDER_COLUMN, CLEANED_COLUMN])
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def decode_last(data: bytes) -> pa.RecordBatch:
    """The inverse of `encode_last`."""
    with pa.ipc.open_stream(data) as reader:
        batch = reader.read_next_batch()
    columns, names = batch.columns, batch.schema.names
    if batch.schema.get_field_index(VERSION_COLUMN) < 0:
        # Written by an earlier build, which had no rows of other logs. It has applied every tombstone up to its
        # newest seal, so the rows rank below all that are to be applied.
        unknown = [pa.array(np.full(len(batch), value, np.int64)) for value in (-1, 0)]
        columns, names = [*columns[:4], *unknown, *columns[4:]], [*_PLAIN, *names[4:]]
    if names[len(_PLAIN) : len(_FIXED)] != [ORDER_COLUMN, CLEANED_COLUMN]:
        columns = [*columns[: len(_PLAIN)], *_unsynced(len(batch)), *columns[len(_PLAIN) :]]
        names = [*_FIXED, *names[len(_PLAIN) :]]
    return pa.RecordBatch.from_arrays(columns, names)


def _unsynced(rows: int) -> list[pa.Array]:
    """Order and cleaned version of rows that no sync sender sent."""
    zeros = pa.array(np.zeros(rows, np.int64))
    return [pa.array([""], pa.string()).take(zeros), zeros]


def last_batch(keys: pa.Array, times: Int64s, ranks: LastRanks, fields: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """Last rows from columns, none of them stale."""
    stale = np.zeros(len(times), np.bool_)
    fixed = (times, ranks.eras, stale, ranks.versions, ranks.since)
    synced = _unsynced(len(times)) if ranks.orders is None else [ranks.orders, pa.array(ranks.cleaned)]
    columns = [keys, *map(pa.array, fixed), *synced, *fields.values()]
    return pa.RecordBatch.from_arrays(columns, names=[*_FIXED, *fields])


@dataclass(frozen=True, slots=True)
class LiveSummary:
    """A summary of `batches` under `tombstones`.

    `last`: the newest row of each series. `unique`: no two rows have the same (series, time).
    """

    batches: tuple[ref[LiveBatch], ...]
    tombstones: TombstoneSet
    last: pa.RecordBatch
    unique: bool

    def is_prefix_of(self, view: TableView) -> bool:
        """True if the view begins with these batches, in this order, and has the same tombstones."""
        # By identity: batches are immutable, and comparing their rows would cost what the summary saves.
        batches = [reference() for reference in self.batches]
        same = len(batches) <= len(view.live) and all(map(is_, batches, view.live))
        return same and self.tombstones == view.tombstones


class LiveSummaries:
    """The newest summary of each table. Thread-safe: at worst two threads compute the same summary.

    It keeps no batch in memory: those that a seal has stored may never be queried again.
    """

    def __init__(self) -> None:
        """Starts empty."""
        self._summaries: dict[TableKey, LiveSummary] = {}

    def of(self, view: TableView) -> LiveSummary:
        """The summary of a view.

        The work is that of the new rows, unless a seal or a tombstone came since the last call.
        """
        # After a seal, a tombstone or a batch of an earlier rank
        # the view is no extension of the summary: start anew.
        key, fields = (view.schema.database, view.schema.table), view.schema.field_types()
        summary = self._summaries.get(key)
        if summary is None or not summary.is_prefix_of(view):
            summary = LiveSummary((), view.tombstones, empty_last(fields), True)
        if len(summary.batches) < len(view.live):
            summary = _extend(summary, view.live[len(summary.batches) :], fields)
        self._summaries[key] = summary
        return summary

    def forget(self, tables: Iterable[TableKey]) -> None:
        """Drops the summaries of tables whose rows were sealed."""
        for table in tables:
            self._summaries.pop(table, None)


def _extend(summary: LiveSummary, added: Sequence[LiveBatch], fields: Mapping[str, FieldType]) -> LiveSummary:
    batches = visible(added, summary.tombstones)
    ordering = order_rows(batches)
    starts, codes, lengths = runs_of(ordering.codes)
    ends = starts + lengths - 1
    rows = ordering.rows[ends]
    batch_ends = np.cumsum([len(batch) for batch in batches])
    ranks = LastRanks.of_live(added, np.searchsorted(batch_ends, rows, "right"))
    keys = ordering.keys.take(pa.array(codes))
    columns = {name: field_column(batches, name, kind).take(pa.array(rows)) for name, kind in fields.items()}
    # Unique as long as nothing arrives late: the new rows hold no (series, time) twice, and each series
    # continues after its newest row so far. A late row may be a duplicate or not; the scan then merges, which
    # is right in both cases.
    unique = (
        summary.unique
        and len(ordering.rows) == int(batch_ends[-1])
        and _all_newer(summary.last, keys, ordering.times[starts])
    )
    last = last_batch(keys, ordering.times[ends], ranks, columns)
    if len(summary.last):
        last = merge_last([summary.last, last], fields)
    return LiveSummary((*summary.batches, *map(ref, added)), summary.tombstones, last, unique)


def _all_newer(last: pa.RecordBatch, keys: pa.StringArray, first_ns: np.ndarray) -> bool:
    """True if every series starts after its row in `last`."""
    if not len(last):
        return True
    # The new ones are sought among the known ones, which are many more.
    position = pc.index_in(last.column(0), value_set=keys)
    known = position.is_valid().to_numpy(zero_copy_only=False)
    times = last.column(1).to_numpy()
    return bool((first_ns[position.drop_null().to_numpy()] > times[known]).all())
