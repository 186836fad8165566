"""The result of a query in Python."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pyarrow as pa


class QueryResult:
    """The rows of an answer.

    It also exports an Arrow stream, so DuckDB, polars and pandas read it directly.
    """

    def __init__(self, table: pa.Table, as_of: datetime | None = None) -> None:
        self._table = table
        self.as_of = as_of
        """The moment up to which a stale answer contains everything (UTC); None for an answer that is current."""

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __repr__(self) -> str:
        as_of = f" as of {self.as_of:%Y-%m-%d %H:%M:%S}Z" if self.as_of else ""
        return f"<QueryResult of {len(self):,} rows{as_of}: {', '.join(self._table.column_names)}>"

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)

    def to_arrow(self) -> pa.Table:
        """A pyarrow Table; `time` columns are timestamps in nanoseconds, UTC."""
        return self._table

    def to_pandas(self) -> Any:
        """A pandas DataFrame."""
        return self._table.to_pandas()

    def to_polars(self) -> Any:
        """A polars DataFrame."""
        import polars

        return polars.from_arrow(self._table)

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dict a row, for small answers."""
        return list(self._table.to_pylist())
