"""The memtable: rows not yet sealed, for each table the list of row batches in order of arrival."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from headrace.consumers.store.store_errors import BatchInvalid
from headrace.schemas.tables import DatabaseSchema, FieldType, TableSchema, widened

TableKey = tuple[str, str]
"""(database, table)."""
_NUMBERS = itertools.count()


@dataclass(frozen=True, slots=True, weakref_slot=True)
class LiveBatch:
    """One message's rows with their rank and time range (both ends included, ns).

    Rows that another log took first have its rank, and `held_since`, the era since which this group holds their slots;
    0 for rows of the own log. No other batch of this process has its `number`, except what is left of it without some
    of its rows.
    """

    era: int
    version: int
    rows: pa.RecordBatch
    min_time_ns: int
    max_time_ns: int
    held_since: int = 0
    number: int = field(default_factory=lambda: next(_NUMBERS), compare=False)


@dataclass(frozen=True, slots=True)
class MemtableSize:
    """Size of the unsealed rows. The node seals and pauses consumption by it."""

    rows: int
    bytes: int
    tables: int


@dataclass(slots=True)
class Memtable:
    """Unsealed rows of all tables of a group, in order of arrival.

    One thread changes it; `snapshot` gives other threads a stable list.
    """

    # Batches are kept as they arrived: sorting happens once, at
    # the seal or in a query, so a write costs no work per row.

    batches: dict[TableKey, list[LiveBatch]] = field(default_factory=dict)
    rows: int = 0
    bytes: int = 0

    def add(self, table: TableKey, batch: LiveBatch) -> None:
        """Appends the rows of one message; O(1)."""
        self.batches.setdefault(table, []).append(batch)
        self.rows += len(batch.rows)
        self.bytes += batch.rows.nbytes

    def mapped(self, change: Callable[[TableKey, LiveBatch], LiveBatch | None]) -> Memtable:
        """A memtable of what is left of each batch."""
        found = Memtable()
        for table, batches in self.batches.items():
            for batch in batches:
                if (left := change(table, batch)) is not None:
                    found.add(table, left)
        return found

    def snapshot(self, table: TableKey) -> Sequence[LiveBatch]:
        """The batches of one table at this instant."""
        return tuple(self.batches.get(table, ()))

    def size(self) -> MemtableSize:
        """Rows, bytes and tables held."""
        return MemtableSize(self.rows, self.bytes, len(self.batches))


def live_batch(version: int, era: int, schema: TableSchema, rows: pa.RecordBatch, held_since: int = 0) -> LiveBatch:
    """A batch of `rows`, which is not empty, with their time range.

    Raises BatchInvalid if they do not match `schema`.
    """
    # Checked on entry: the record is in the log for good, so a
    # batch that a seal could not encode would stop the group.
    field_types = schema.field_types()
    if rows.column(0).dictionary.null_count:
        raise BatchInvalid(f"rows of {schema.database}.{schema.table} have a series without a key")
    for name, arrow_type in zip(rows.schema.names[2:], rows.schema.types[2:], strict=True):
        have, want = FieldType.of_arrow(arrow_type), field_types.get(name)
        if have is None or want is None or widened(have, want) != want:
            raise BatchInvalid(
                f"field {name!r} ({arrow_type}) does not fit version {schema.version} of {schema.database}.{schema.table}"
            )
    # One pass now spares every query a look at the rows of batches that are outside of its time range.
    bounds = pc.min_max(rows.column(1))
    return LiveBatch(era, version, rows, bounds["min"].as_py(), bounds["max"].as_py(), held_since)


def by_rank(batches: Iterable[LiveBatch]) -> list[LiveBatch]:
    """Lowest rank first; batches of one rank keep their order."""
    return sorted(batches, key=lambda batch: (batch.era, batch.version))


def newer_schema(one: TableSchema | None, other: TableSchema) -> TableSchema:
    """The schema with the higher version."""
    return other if one is None or other.version >= one.version else one


@dataclass(frozen=True, slots=True)
class TableMetadata:
    """Partitioning of a table's database, and the newest schema that writes of the table named."""

    database: DatabaseSchema
    schema: TableSchema
