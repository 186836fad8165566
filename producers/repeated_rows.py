"""Rows of a new table without tags that share a time: nearly always rows of several series, whose tags were forgotten."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from headrace.schemas.errors import HeadraceError
from headrace.schemas.tables import TIME_COLUMN


class RowsRepeat(HeadraceError):
    """Rows of a new table without tags that share a time: they would replace each other."""

    exit_code = 3


def check_distinct(rows: pa.Table, table: str, action: str) -> None:
    """Raises RowsRepeat for rows of a new table without tags that share a time; rows without times pass."""
    times = rows.column(TIME_COLUMN) if TIME_COLUMN in rows.column_names else pa.chunked_array([], pa.int64())
    repeated = len(times) - times.null_count - pc.count_distinct(times).as_py()
    if repeated:
        raise RowsRepeat(
            f"{repeated:,} of {len(times):,} rows for the new table {table} have the time of another one, and no tags "
            "tell them apart: one would replace the other",
            action=action,
        )
