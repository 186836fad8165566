"""The newest rows of the series of tables as query results, kept for the next query of the same state.

To decode the tags of many series takes much longer than to read the rows. What is kept follows from immutable row
batches and tombstones alone, and is used as long as a table has the very same ones: so nobody has to drop it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from operator import is_

import pyarrow as pa
import pyarrow.compute as pc

from headrace.consumers.store.last_rows import apply_tombstones, has_stale, last_table, merge_last
from headrace.consumers.store.memtable import TableKey
from headrace.consumers.store.tombstone_set import NO_TOMBSTONES, TombstoneSet
from headrace.schemas.tables import TableSchema


@dataclass(frozen=True, slots=True, eq=False)
class LastSource:
    """Last rows of the buckets of a table, which share no series, and the tombstones that are not applied to them.

    `era_max` is that of `apply_tombstones`.
    """

    batches: tuple[pa.RecordBatch, ...]
    tombstones: TombstoneSet
    era_max: int
    schema: TableSchema

    def is_same_as(self, other: LastSource) -> bool:
        """Whether the same rows follow from both."""
        # By identity: batches are immutable, and to compare their rows costs what is to be saved.
        same = len(self.batches) == len(other.batches) and all(map(is_, self.batches, other.batches))
        deletes = self.tombstones == other.tombstones and (not self.tombstones or self.era_max == other.era_max)
        return same and deletes and self.schema == other.schema


@dataclass(frozen=True, slots=True)
class LastTable:
    """Last rows without the deleted ones: `table` has those of all `parts` as query results, in their order."""

    parts: tuple[pa.RecordBatch, ...]
    table: pa.Table
    schema: TableSchema
    size_bytes: int

    @classmethod
    def of(cls, source: LastSource) -> LastTable:
        """The rows that follow from a source."""
        parts, size_bytes = tuple(filter(len, source.batches)), 0
        if source.tombstones:
            parts = tuple(apply_tombstones(batch, source.tombstones, source.era_max) for batch in parts)
            size_bytes = sum(part.nbytes for part in parts)
        table = last_table(parts, source.schema)
        return cls(parts, table, source.schema, size_bytes + table.nbytes)

    def with_live(self, live: pa.RecordBatch) -> pa.Table | None:
        """The newest rows of these and of unsealed ones; None if that of some series is unknown."""
        if not len(live):
            return None if any(map(has_stale, self.parts)) else self.table
        # Most series have no unsealed row, and those of them stay as they are.
        found = [pc.is_in(part.column(0), value_set=live.column(0)) for part in self.parts]
        others = [pc.invert(each) for each in found]
        if any(pc.any(pc.and_(part.column(3), each)).as_py() for part, each in zip(self.parts, others, strict=True)):
            return None
        both = [part.filter(each) for part, each in zip(self.parts, found, strict=True)]
        newest = merge_last([*both, live], self.schema.field_types())
        if has_stale(newest):
            return None
        rows = last_table([newest], self.schema).cast(self.table.schema)
        return pa.concat_tables([self.table.filter(pa.chunked_array(others, pa.bool_())), rows])


class LastTables:
    """The last rows of tables. Thread-safe: at worst two threads make the same ones."""

    def __init__(self, bytes_max: int) -> None:
        """Keeps those of the tables that were used last, of `bytes_max` together; none with 0."""
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._kept: OrderedDict[TableKey, tuple[LastSource, LastTable]] = OrderedDict()
        self._bytes = 0

    @property
    def cached_bytes(self) -> int:
        """The size of all that is kept."""
        with self._lock:
            return self._bytes

    def newest(self, name: TableKey, source: LastSource, live: pa.RecordBatch) -> pa.Table | None:
        """See `LastTable.with_live`: the newest rows of a table, and its unsealed ones."""
        if not any(map(len, source.batches)):
            source, live = LastSource((live,), NO_TOMBSTONES, 0, source.schema), live.slice(0, 0)
        return self._of(name, source).with_live(live)

    def _of(self, name: TableKey, source: LastSource) -> LastTable:
        """The rows that follow from a source, made only if the last call for this table had another one."""
        with self._lock:
            known = self._kept.get(name)
            if known is not None and known[0].is_same_as(source):
                self._kept.move_to_end(name)
                return known[1]
        made = LastTable.of(source)
        with self._lock:
            self._drop(name)
            if made.size_bytes <= self._bytes_max:
                self._kept[name] = source, made
                self._bytes += made.size_bytes
            while self._bytes > self._bytes_max:
                self._drop(next(iter(self._kept)))
        return made

    def _drop(self, name: TableKey) -> None:
        dropped = self._kept.pop(name, None)
        self._bytes -= 0 if dropped is None else dropped[1].size_bytes
