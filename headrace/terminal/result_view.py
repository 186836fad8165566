"""The rows of an Arrow stream as a table or records on stdout; shared by `headrace query` and `headrace sql`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace.connectors.arrow_start import keep_pandas_out

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_SHOWN = 1_000
"""Most rows of a result that are shown. The others are only counted: a result may be larger than memory."""


def show_rows(chunks: Iterator[bytes], *, vertical: bool | None = None) -> int:
    """Print the rows of an Arrow stream; returns their number, with those that are not shown."""
    # Only commands show rows, and none of them needs pandas.
    keep_pandas_out()
    import pyarrow as pa

    with pa.ipc.open_stream(pa.PythonFile(_ChunkReader(chunks), mode="r")) as stream:
        shown: list[pa.RecordBatch] = []
        rows = 0
        for batch in stream:
            if rows < ROWS_SHOWN:
                shown.append(batch.slice(0, ROWS_SHOWN - rows))
            rows += batch.num_rows
        _show(pa.Table.from_batches(shown, stream.schema), vertical)
    return rows


def footer(rows: int, milliseconds: float | None) -> str:
    """`1,234 rows (the first 1,000 shown), 12 ms`; without the time where it is None."""
    hidden = f" (the first {ROWS_SHOWN:,} shown)" if rows > ROWS_SHOWN else ""
    took = "" if milliseconds is None else f", {milliseconds:.0f} ms"
    return f"{rows:,} {'row' if rows == 1 else 'rows'}{hidden}{took}"


def _show(table: pa.Table, vertical: bool | None) -> None:
    import pyarrow as pa

    from headrace.consumers.query.result_formats import plain_text
    from headrace.terminal.output import print_lines, terminal_width
    from headrace.terminal.table_view import Column, render

    columns = []
    for field in table.schema:
        kind = field.type
        numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
        columns.append(Column(field.name, numeric))
    cells = [plain_text(column.combine_chunks()).to_pylist() for column in table.columns]
    print_lines(render(columns, list(zip(*cells, strict=True)), terminal_width(), vertical=vertical))


class _ChunkReader:
    """Chunks of bytes as a file that is read from front to back."""

    closed = False

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._held = b""

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes, fewer only at the end."""
        parts, missing = [self._held], size - len(self._held)
        while size < 0 or missing > 0:
            chunk = next(self._chunks, b"")
            if not chunk:
                break
            parts.append(chunk)
            missing -= len(chunk)
        whole = b"".join(parts)
        cut = len(whole) if size < 0 else size
        self._held = whole[cut:]
        return whole[:cut]

    def close(self) -> None:
        """Nothing to close."""
