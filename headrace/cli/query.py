"""`headrace query`: SQL to a node, rows to stdout."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import BootstrapOption, ClusterOption, JsonOption, NodeUrlOption
from headrace.cli.session import node_url
from headrace.cli.stale import StaleAnswer, StaleOption
from headrace.terminal.command import UsageInvalid, run_command

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_SHOWN = 1_000


class QueryFormat(StrEnum):
    """How rows come out."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    ARROW = "arrow"


def register(app: typer.Typer) -> None:
    """Add the command `query`."""
    app.command()(query)


def query(
    sql: Annotated[
        str, typer.Argument(metavar="SQL", help="One SELECT, SHOW TABLES, DESCRIBE or EXPLAIN; - reads it from stdin.")
    ],
    node: NodeUrlOption = None,
    chosen: Annotated[
        QueryFormat, typer.Option("--format", help="How rows come out; arrow is an IPC stream.")
    ] = QueryFormat.TABLE,
    timeout_s: Annotated[
        float | None, typer.Option("--timeout", metavar="S", min=0.001, help="Seconds the query may take.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=1, help="Print the first N rows only.")
    ] = None,
    stale: StaleOption = None,
    cluster: ClusterOption = None,
    bootstrap: BootstrapOption = None,
    json_output: JsonOption = False,
) -> None:
    """Query a node in SQL (DuckDB's dialect; tables are database.table, times are UTC)."""
    # `--format json` is `--json`: errors are JSON too.
    json_output = json_output or chosen is QueryFormat.JSON
    with run_command(json_output) as output:
        from headrace.node_client import NodeClient

        form = QueryFormat.JSON if json_output else chosen
        if form is QueryFormat.ARROW and sys.stdout.isatty():
            raise UsageInvalid(
                "an Arrow stream cannot be shown in a terminal", action="redirect it: … --format arrow > rows.arrows"
            )
        text = sys.stdin.read() if sql == "-" else sql
        started_s = time.monotonic()
        older = StaleAnswer(stale)
        # At least 1 ms: the node takes 0 for its own default.
        chunks = NodeClient(node_url(node, cluster, bootstrap, stale=bool(older.within_s))).query(
            text,
            format="arrow" if form is QueryFormat.TABLE else form.value,
            timeout_ms=None if timeout_s is None else max(1, round(timeout_s * 1_000)),
            limit=limit,
            stale_s=older.within_s,
            on_as_of=older.note,
        )
        older.show(output)
        if form is QueryFormat.TABLE:
            rows = _print_table(chunks)
            took_ms = (time.monotonic() - started_s) * 1_000
            shown = f" (the first {ROWS_SHOWN:,} shown)" if rows > ROWS_SHOWN else ""
            output.note(f"{rows:,} {'row' if rows == 1 else 'rows'}{shown}, {took_ms:.0f} ms")
        else:
            _print_bytes(older.document(chunks) if form is QueryFormat.JSON else chunks)


def _print_bytes(chunks: Iterator[bytes]) -> None:
    # As the node sends them: a result may be larger than memory.
    for chunk in chunks:
        sys.stdout.buffer.write(chunk)
    sys.stdout.buffer.flush()


def _print_table(chunks: Iterator[bytes]) -> int:
    """Print the rows of an Arrow stream as a table; returns their number."""
    import pyarrow as pa

    with pa.ipc.open_stream(pa.PythonFile(_ChunkReader(chunks), mode="r")) as stream:
        # A result may be larger than memory: rows that are not shown are only counted.
        shown: list[pa.RecordBatch] = []
        rows = 0
        for batch in stream:
            if rows < ROWS_SHOWN:
                shown.append(batch.slice(0, ROWS_SHOWN - rows))
            rows += batch.num_rows
        _render(pa.Table.from_batches(shown, stream.schema))
    return rows


def _render(table: pa.Table) -> None:
    import pyarrow as pa
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from headrace.consumers.query.result_formats import plain_text

    shown = Table()
    for field in table.schema:
        kind = field.type
        numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
        shown.add_column(Text(field.name), justify="right" if numeric else "left", overflow="fold")
    columns = [plain_text(column.combine_chunks()).to_pylist() for column in table.columns]
    for cells in zip(*columns, strict=True):
        shown.add_row(*map(Text, cells))
    # A pipe has no width, and rich would fold at 80 columns what a script reads line by line.
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 10_000)
    console.print(shown, crop=False)


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
