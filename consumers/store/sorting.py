"""Row batches of one table turned into the rows of segments: what a seal and a compaction have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from consumers.store.kernel import Ordering, Part, field_column, gather, order_rows, parts_of
from consumers.store.segment import Runs, SegmentRows
from schemas.tables import DatabaseSchema, TableSchema


@dataclass(frozen=True, slots=True)
class SortedTable:
    """Rows of one table in the order of its segments; columns are gathered when a part is asked for, by whichever thread encodes it."""

    ordering: Ordering
    columns: Mapping[str, pa.Array]
    parts: Sequence[Part]

    def rows_of(self, part: Part) -> SegmentRows:
        """The rows of one slice and bucket."""
        rows = self.ordering.rows[part.start : part.stop]
        times = self.ordering.times[part.start : part.stop]
        runs = Runs.of_times(self.ordering.keys.take(pa.array(part.series)), part.lengths, times)
        fields = {name: gather(column, rows) for name, column in self.columns.items()}
        return SegmentRows(runs, times, fields)


def sort_table(batches: Sequence[pa.RecordBatch], database: DatabaseSchema, schema: TableSchema) -> SortedTable:
    """Sorts row batches (lowest rank first, at least one) and keeps the winner of each (series, time)."""
    ordering = order_rows(batches, database.slice_ns, database.buckets)
    columns = {name: field_column(batches, name, kind) for name, kind in schema.fields}
    return SortedTable(ordering, columns, list(parts_of(ordering)))
