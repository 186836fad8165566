"""The result of a query in Python."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from html import escape
from importlib import import_module
from typing import Any

import pyarrow as pa

HTML_ROWS_MAX = 50
HTML_COLUMNS_MAX = 50
HTML_CELL_CHARACTERS_MAX = 200
"""What a notebook shows of an answer: larger tables make the page slow, and nobody reads them."""


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

    def to_pandas(
        self,
        *,
        types_mapper: Callable[[pa.DataType], Any] | None = None,
        zero_copy: bool = False,
        self_destruct: bool = False,
    ) -> Any:
        """A pandas DataFrame that may be changed.

        Texts are shared with the answer and not copied; numbers are copied, because pandas cannot write to
        memory of Arrow. `zero_copy=True` shares all columns, as `pandas.ArrowDtype`. `types_mapper` chooses
        the pandas type of an Arrow type. `self_destruct=True` frees the answer column by column while it is
        copied, and the answer has no rows after it.
        """
        if zero_copy and types_mapper is None:
            types_mapper = import_module("pandas").ArrowDtype
        table = self._table
        if self_destruct:
            self._table = table.schema.empty_table()
        return table.to_pandas(types_mapper=types_mapper, split_blocks=self_destruct, self_destruct=self_destruct)

    def to_polars(self) -> Any:
        """A polars DataFrame."""
        import polars

        return polars.from_arrow(self._table)

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dict a row, for small answers."""
        return list(self._table.to_pylist())

    def _repr_html_(self) -> str:
        """The first rows as a table for notebooks."""
        from headrace.consumers.query.result_formats import plain_text

        shown = self._table.slice(0, HTML_ROWS_MAX).select(range(min(self._table.num_columns, HTML_COLUMNS_MAX)))
        columns = [plain_text(column.combine_chunks()).to_pylist() for column in shown.columns]
        header = "".join(f"<th>{_cell(name)}</th>" for name in shown.column_names)
        body = "".join(
            f"<tr>{''.join(f'<td>{_cell(value)}</td>' for value in row)}</tr>" for row in zip(*columns, strict=True)
        )
        hidden = self._table.num_columns - shown.num_columns
        caption = f"{len(self):,} {'row' if len(self) == 1 else 'rows'}"
        caption += f", the first {HTML_ROWS_MAX} shown" if len(self) > HTML_ROWS_MAX else ""
        caption += f", {hidden:,} more columns" if hidden else ""
        return f"<table><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table><p>{caption}</p>"


def _cell(text: str) -> str:
    """A text as HTML, cut with the number of characters left out."""
    hidden = len(text) - HTML_CELL_CHARACTERS_MAX
    return escape(text if hidden <= 0 else f"{text[:HTML_CELL_CHARACTERS_MAX]}…+{hidden}")
