"""The distinct slots of row batches, and nothing per row in Python."""

from __future__ import annotations

from collections import OrderedDict
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.consumers.replication.admission import DICTIONARIES_KEPT, dictionary_digest
from headrace.consumers.store.slots import row_slots
from headrace.schemas.group_changes import Slots
from headrace.schemas.series import bucket_of, slot_of
from headrace.schemas.tables import DatabaseSchema

SLOTS_KEPT = 65_536
"""Slots of (database, bucket, slice) that are remembered."""

_slot_of = lru_cache(maxsize=SLOTS_KEPT)(slot_of)


class DistinctSlots:
    """The slots of row batches. Owned by one thread.

    A group that gave up slots looks at every write. So the buckets of a dictionary are remembered: most messages of a
    table have the series of the one before.
    """

    def __init__(self) -> None:
        self._buckets: OrderedDict[tuple[bytes, int], npt.NDArray[np.int64]] = OrderedDict()

    def of(self, rows: pa.RecordBatch, database: DatabaseSchema, slots_total: int) -> Slots:
        """The slots of a row batch, ascending."""
        if not len(rows):
            return ()
        times = rows.column(1).to_numpy()
        first, last = int(times.min()) // database.slice_ns, int(times.max()) // database.slice_ns
        # Within one slice the bucket decides: one look at the distinct keys, and a count of codes.
        if first != last:
            return tuple(np.unique(row_slots(rows, database, slots_total)).tolist())
        series, count = rows.column(0), database.buckets
        buckets = self._buckets_of(series.dictionary, count)[series.indices.to_numpy()]
        present = np.flatnonzero(np.bincount(buckets, minlength=count)).tolist()
        return tuple(sorted({_slot_of(database.database, bucket, first, slots_total) for bucket in present}))

    def _buckets_of(self, keys: pa.StringArray, count: int) -> npt.NDArray[np.int64]:
        name = dictionary_digest(keys), count
        if name in self._buckets:
            self._buckets.move_to_end(name)
        else:
            self._buckets[name] = np.fromiter((bucket_of(key, count) for key in keys.to_pylist()), np.int64, len(keys))
            if len(self._buckets) > DICTIONARIES_KEPT:
                self._buckets.popitem(last=False)
        return self._buckets[name]
