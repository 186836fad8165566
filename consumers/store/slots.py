"""Slots as the store needs them: which of its rows are in them. It does not know who holds a slot.

The slot of a row follows from its database, its series and its time, as in `producers.router`. Nothing per row is
done in Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.consumers.store.memtable import LiveBatch
from headrace.consumers.store.segment import SegmentEntry
from headrace.consumers.store.tombstone_set import TombstoneSet
from headrace.schemas.payload import SERIES_TYPE
from headrace.schemas.series import bucket_of, slot_of
from headrace.schemas.tables import SLICE_NS_MIN, DatabaseSchema


@dataclass(frozen=True, slots=True)
class Slots:
    """Some of the `total` slots of a cluster."""

    numbers: frozenset[int]
    total: int

    def hold(self, database: str, bucket: int, slice_number: int) -> bool:
        """Whether the rows of one slice and bucket of a database are in one of them."""
        return slot_of(database, bucket, slice_number, self.total) in self.numbers

    def hold_segment(self, entry: SegmentEntry) -> bool:
        """Whether a segment is in one of them."""
        return self.hold(entry.database, entry.bucket, entry.slice_number)


@dataclass(frozen=True, slots=True)
class Hold:
    """The files of slots that left with the cut at `version`; what comes later is of other holders."""

    version: int
    slots: Slots

    def covers(self, entry: SegmentEntry) -> bool:
        """Whether a segment is a part of the cut."""
        return entry.came_at <= self.version and self.slots.hold_segment(entry)

    def without(self, slots: Slots) -> Hold | None:
        """What is left of it when slots are released; None for nothing."""
        left = self.slots.numbers - slots.numbers
        return replace(self, slots=Slots(left, self.slots.total)) if left else None


def without_held(entries: Iterable[SegmentEntry], held: Iterable[Hold]) -> list[SegmentEntry]:
    """The segments that merges and drops may change."""
    holds = tuple(held)
    return [entry for entry in entries if not any(each.covers(entry) for each in holds)]


def row_slots(rows: pa.RecordBatch, database: DatabaseSchema, slots_total: int) -> npt.NDArray[np.int64]:
    """The slot of each row of a row batch."""
    series = rows.column(0)
    # The loops are over distinct series, and over the slices and buckets that they meet in.
    keys = series.dictionary.to_pylist()
    buckets = np.fromiter((bucket_of(key, database.buckets) for key in keys), np.int64, len(keys))
    slices = rows.column(1).to_numpy() // database.slice_ns
    numbers: npt.NDArray[np.int64] | None = None
    if database.slice_ns < SLICE_NS_MIN:
        # Of an older build: the product below may be more than an int64 holds.
        numbers, slices = np.unique(slices, return_inverse=True)
    places = slices * database.buckets + buckets[series.indices.to_numpy()]
    distinct, place_of_row = np.unique(places, return_inverse=True)
    slice_places, bucket_numbers = np.divmod(distinct, database.buckets)
    slice_numbers = slice_places if numbers is None else numbers[slice_places]
    found = (
        slot_of(database.database, bucket, number, slots_total)
        for bucket, number in zip(bucket_numbers.tolist(), slice_numbers.tolist(), strict=True)
    )
    slots: npt.NDArray[np.int64] = np.fromiter(found, np.int64, len(distinct))[place_of_row]
    return slots


def rows_of_slots(
    rows: pa.RecordBatch, database: DatabaseSchema, slots_total: int, slots: Sequence[int]
) -> pa.RecordBatch:
    """The rows of these slots, in their order, with only the series that they use."""
    chosen = np.flatnonzero(np.isin(row_slots(rows, database, slots_total), slots))
    if len(chosen) == len(rows):
        return rows
    taken = rows.take(pa.array(chosen))
    codes, keys = taken.column(0).indices.to_numpy(), taken.column(0).dictionary
    used = np.zeros(len(keys), np.bool_)
    used[codes] = True
    renumbered = pa.array((np.cumsum(used, dtype=np.int32) - 1)[codes], pa.int32())
    series = pa.DictionaryArray.from_arrays(renumbered, keys.filter(pa.array(used))).cast(SERIES_TYPE)
    return pa.RecordBatch.from_arrays([series, *taken.columns[1:]], schema=rows.schema)


def batch_without(batch: LiveBatch, database: DatabaseSchema, slots: Slots) -> LiveBatch | None:
    """What is left of a batch without the rows of some slots; the batch itself if it has none of them."""
    # Row by row, since one message may have rows of slots that leave and of slots that stay.
    leaving = np.isin(row_slots(batch.rows, database, slots.total), tuple(slots.numbers))
    return _left(batch, leaving)


def batch_within(batch: LiveBatch, database: DatabaseSchema, slots: Slots) -> LiveBatch | None:
    """The rows of a batch that are of some slots; None if there are none."""
    return _left(batch, ~np.isin(row_slots(batch.rows, database, slots.total), tuple(slots.numbers)))


def batch_without_handed(batch: LiveBatch, database: DatabaseSchema, deletes: TombstoneSet) -> LiveBatch | None:
    """What deletes that were handed over, each for some slots, leave of a batch of slots that were gained."""
    if not batch.held_since:
        return batch
    # There may be thousands of them, and few concern one batch.
    outranking = deletes.outranking(batch.era, batch.version, batch.min_time_ns, batch.max_time_ns)
    if not outranking:
        return batch
    series, leaving = batch.rows.column(0), np.zeros(len(batch.rows), np.bool_)
    codes, times = series.indices.to_numpy(), batch.rows.column(1).to_numpy()
    slots_of_rows = dict[int, npt.NDArray[np.int64]]()
    for (total, slots), found in outranking.by_slots().items():
        if total not in slots_of_rows:
            slots_of_rows[total] = row_slots(batch.rows, database, total)
        rows = np.flatnonzero(np.isin(slots_of_rows[total], slots))
        if len(rows):
            leaving[rows] |= found.deleted(series.dictionary, codes[rows], times[rows], np.zeros(len(rows), np.int64))
    return _left(batch, leaving)


def _left(batch: LiveBatch, leaving: npt.NDArray[np.bool_]) -> LiveBatch | None:
    if not leaving.any():
        return batch
    # The time range may be wider than the rows that are left: it only prunes.
    return None if leaving.all() else replace(batch, rows=batch.rows.filter(pa.array(~leaving)))
