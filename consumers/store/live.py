"""What questions need of unsealed rows again and again, kept up to date by looking at each batch once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import is_

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from consumers.store.kernel import field_column, order_rows, runs_of
from consumers.store.last import last_batch, merge_last, no_last
from consumers.store.memtable import LiveBatch, TableKey
from consumers.store.tombstones import Tombstone
from consumers.store.view import TableView
from schemas.tables import FieldType


@dataclass(frozen=True, slots=True)
class LiveSummary:
    """Of the visible rows of `batches` under `tombstones`: the newest of each series, and whether no two share series and time."""

    batches: tuple[LiveBatch, ...]
    tombstones: tuple[Tombstone, ...]
    last: pa.RecordBatch
    unique: bool

    def is_part_of(self, view: TableView) -> bool:
        """True if the view has these batches first, in this order, and the same deletes."""
        same = len(self.batches) <= len(view.live) and all(map(is_, self.batches, view.live))
        return same and self.tombstones == view.tombstones


class LiveSummaries:
    """The newest summary of each table. Thread-safe: at worst two threads do the same work."""

    def __init__(self) -> None:
        """Knows nothing yet."""
        self._held: dict[TableKey, LiveSummary] = {}

    def of(self, view: TableView) -> LiveSummary:
        """The summary of a view; work by the rows that came since the last call, unless a seal or a delete came between."""
        key, fields = (view.schema.database, view.schema.table), view.schema.field_types()
        held = self._held.get(key)
        if held is None or not held.is_part_of(view):
            held = LiveSummary((), view.tombstones, no_last(fields), True)
        if len(held.batches) < len(view.live):
            held = _extended(held, view.live[len(held.batches) :], fields)
        self._held[key] = held
        return held


def _extended(held: LiveSummary, fresh: Sequence[LiveBatch], fields: Mapping[str, FieldType]) -> LiveSummary:
    batches = [batch.visible(held.tombstones) for batch in fresh]
    ordering = order_rows(batches)
    starts, codes, lengths = runs_of(ordering.codes)
    ends = starts + lengths - 1
    rows = ordering.rows[ends]
    batch_ends = np.cumsum([len(batch) for batch in batches])
    eras = np.array([batch.era for batch in fresh], np.int64)[np.searchsorted(batch_ends, rows, "right")]
    keys = ordering.keys.take(pa.array(codes))
    columns = {name: field_column(batches, name, kind).take(pa.array(rows)) for name, kind in fields.items()}
    unique = (
        held.unique
        and len(ordering.rows) == int(batch_ends[-1])
        and _all_newer(held.last, keys, ordering.times[starts])
    )
    last = merge_last([held.last, last_batch(keys, ordering.times[ends], eras, columns)], fields)
    return LiveSummary((*held.batches, *fresh), held.tombstones, last, unique)


def _all_newer(last: pa.RecordBatch, keys: pa.StringArray, first_ns: np.ndarray) -> bool:
    """True if every series starts after its row in `last`."""
    position = pc.index_in(keys, value_set=last.column(0))
    known = position.is_valid().to_numpy(zero_copy_only=False)
    times = last.column(1).to_numpy()
    return bool((first_ns[known] > times[position.drop_null().to_numpy()]).all())
