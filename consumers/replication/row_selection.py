"""The rows that a replay of a part of the logs keeps: those of one table, between two times."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.consumers.replication.actions import (
    Action,
    ApplyDelete,
    ApplyHandedDelete,
    ApplyLoad,
    ApplyRows,
    ApplyWrite,
    CompactNow,
    DropSlices,
)
from headrace.schemas.tables import TIME_COLUMN


@dataclass(frozen=True, slots=True)
class RowSelection:
    """Rows of a table with start <= time < end; None has no bound."""

    database: str
    table: str
    start_ns: int | None = None
    end_ns: int | None = None

    def has_table(self, database: str, table: str) -> bool:
        """Whether it is the table."""
        return (database, table) == (self.database, self.table)

    def skips(self, action: Action) -> bool:
        """Whether an action concerns none of the rows."""
        if isinstance(action, CompactNow):
            # It names files of rows that are not all here. Without merges the same rows are in more files.
            return True
        if isinstance(action, ApplyWrite | ApplyRows):
            return not self.has_table(action.write.database, action.write.table)
        if isinstance(action, ApplyDelete | ApplyHandedDelete):
            return not self.has_table(action.delete.database, action.delete.table)
        if isinstance(action, DropSlices):
            return not self.has_table(action.drop.database, action.drop.table)
        if isinstance(action, ApplyLoad):
            load = action.load
            return not (self.has_table(load.database, load.table) and self.overlaps(load.min_time_ns, load.max_time_ns))
        return False

    def overlaps(self, first_ns: int, last_ns: int) -> bool:
        """Whether a row between these times, both included, can be selected."""
        return (self.end_ns is None or first_ns < self.end_ns) and (self.start_ns is None or last_ns >= self.start_ns)

    def rows_of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The selected rows of a write of the table."""
        times = rows.column(TIME_COLUMN).to_numpy()
        kept = np.ones(len(times), np.bool_)
        if self.start_ns is not None:
            kept &= times >= self.start_ns
        if self.end_ns is not None:
            kept &= times < self.end_ns
        return rows if kept.all() else rows.filter(pa.array(kept))
