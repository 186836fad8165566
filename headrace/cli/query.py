"""`headrace query`: SQL to a node, rows to stdout."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.node import BootstrapOption, ClusterOption
from headrace.cli.output import JsonOption, UsageInvalid, run_command
from headrace.settings import Settings, load_settings
from schemas.errors import HeadraceError

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_SHOWN = 1_000
FIND_NODE_S = 4.0

NodeOption = Annotated[
    str | None,
    typer.Option(
        "--node",
        metavar="URL",
        help="Node to ask, such as http://127.0.0.1:8080; else the setting node.url, else a ready node of the cluster.",
    ),
]


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
    node: NodeOption = None,
    chosen: Annotated[
        QueryFormat, typer.Option("--format", help="How rows come out; arrow is an IPC stream.")
    ] = QueryFormat.TABLE,
    timeout_s: Annotated[
        float | None, typer.Option("--timeout", metavar="S", min=0.001, help="Seconds the query may take.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=1, help="Print the first N rows only.")
    ] = None,
    cluster: ClusterOption = None,
    bootstrap: BootstrapOption = None,
    json_output: JsonOption = False,
) -> None:
    """Ask a node in SQL (DuckDB's dialect; tables are database.table, times are UTC)."""
    json_output = json_output or chosen is QueryFormat.JSON
    with run_command(json_output) as output:
        from consumers.serve.client import NodeClient

        form = QueryFormat.JSON if json_output else chosen
        if form is QueryFormat.ARROW and sys.stdout.isatty():
            raise UsageInvalid(
                "an Arrow stream is nothing for a terminal", action="redirect it: … --format arrow > rows.arrows"
            )
        text = sys.stdin.read() if sql == "-" else sql
        started_s = time.monotonic()
        pieces = NodeClient(node_url(node, cluster, bootstrap)).query(
            text,
            format="arrow" if form is QueryFormat.TABLE else form.value,
            timeout_ms=None if timeout_s is None else max(1, round(timeout_s * 1_000)),
            limit=limit,
        )
        if form is QueryFormat.TABLE:
            rows = _print_table(pieces)
            took_ms = (time.monotonic() - started_s) * 1_000
            shown = f" (the first {ROWS_SHOWN:,} shown)" if rows > ROWS_SHOWN else ""
            output.note(f"{rows:,} {'row' if rows == 1 else 'rows'}{shown}, {took_ms:.0f} ms")
            return
        for piece in pieces:
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()


class NodeUnknown(HeadraceError):
    """No node to ask: none is named, and none of the cluster is ready."""


def node_url(node: str | None, cluster: str | None = None, bootstrap: str | None = None) -> str:
    """The address of the node to ask: the one named by flag, environment or `headrace.toml`, else a ready one of the cluster named there."""
    settings = load_settings({"node.url": node, "cluster.name": cluster, "cluster.bootstrap": bootstrap})
    if settings.node.url:
        return settings.node.url
    if settings.origin("cluster.bootstrap") == settings.origin("cluster.name") == "default":
        raise NodeUnknown(
            "no node is named",
            action="give --node, HEADRACE__NODE__URL or node.url in headrace.toml; or name the cluster and its bootstrap servers",
        )
    return _ready_node(settings)


def _ready_node(settings: Settings) -> str:
    """A node that says it is ready, found through the cluster's status topic."""
    from connectors.http import NodeRefused, NodeUnreachable, call_node
    from connectors.log.deadline import Deadline
    from connectors.log.kafka import KafkaLog
    from connectors.log.topics import Topics
    from consumers.replication.broadcast import StatusReader

    log = KafkaLog(settings.cluster.bootstrap, settings.kafka)
    try:
        reader = StatusReader(log, Topics(settings.cluster.name).status)
        deadline, asked = Deadline(FIND_NODE_S), set[str]()
        while not deadline.passed():
            heard = {status.http for status in reader.follow(deadline.left_s()) if status.http}
            for address in sorted(heard - asked):
                with contextlib.suppress(NodeRefused, NodeUnreachable):
                    call_node(f"{address}/health/ready", timeout_s=2.0)
                    return address
            asked |= heard
    finally:
        log.close()
    raise NodeUnknown(
        f"no node of cluster {settings.cluster.name} is ready ({len(asked)} were heard of)",
        action="look at /health/ready of its nodes, or name one with --node",
        retriable=True,
    )


def _print_table(pieces: Iterator[bytes]) -> int:
    """Print the rows of an Arrow stream as a table; gives how many there were."""
    import pyarrow as pa

    with pa.ipc.open_stream(pa.PythonFile(_Reader(pieces), mode="r")) as stream:
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

    from consumers.query.text import plain_text

    shown = Table()
    for field in table.schema:
        kind = field.type
        numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
        shown.add_column(Text(field.name), justify="right" if numeric else "left", overflow="fold")
    columns = [plain_text(column.combine_chunks()).to_pylist() for column in table.columns]
    for cells in zip(*columns, strict=True):
        shown.add_row(*map(Text, cells))
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 10_000)
    console.print(shown, crop=False)


class _Reader:
    """Pieces of bytes as a file that is read from front to back."""

    closed = False

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._held = b""

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes, fewer only at the end."""
        parts, missing = [self._held], size - len(self._held)
        while size < 0 or missing > 0:
            piece = next(self._pieces, b"")
            if not piece:
                break
            parts.append(piece)
            missing -= len(piece)
        whole = b"".join(parts)
        cut = len(whole) if size < 0 else size
        self._held = whole[cut:]
        return whole[:cut]

    def close(self) -> None:
        """Nothing to close."""
