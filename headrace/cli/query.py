"""`headrace query`: SQL to a node, rows to stdout."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.option_groups import grouped
from headrace.cli.options import ClusterOptions, JsonOption, NodeUrlOption
from headrace.cli.paths import path_text
from headrace.cli.session import node_url
from headrace.cli.stale import StaleAnswer, StaleOption
from headrace.terminal.command import UsageInvalid, run_command

if TYPE_CHECKING:
    from headrace.terminal.output import Output

STANDARD_INPUT = "-"
AFTER_EXAMPLE = """for example --after '{"headrace.forward.n1.1": 17}'"""

ParameterOption = Annotated[
    list[str] | None,
    typer.Option(
        "--param",
        metavar="NAME=VALUE",
        help="Value of $NAME in the SQL; may be repeated. A number, true or false is typed, a value in quotes is text.",
    ),
]


TimeoutOption = Annotated[
    float | None, typer.Option("--timeout", metavar="SECONDS", min=0.001, help="How long the query may take.")
]
AfterOption = Annotated[
    str | None,
    typer.Option(
        "--after",
        metavar="JSON",
        help='Wait for {"TOPIC": OFFSET}, as headrace write --json shows them.',
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


@grouped
def query(
    sql: Annotated[
        str | None,
        typer.Argument(metavar="SQL", help="One SELECT, SHOW TABLES, DESCRIBE or EXPLAIN; - reads it from stdin."),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option("--file", "-f", metavar="FILE", parser=path_text, help="Read the SQL from a file; - is stdin."),
    ] = None,
    param: ParameterOption = None,
    node: NodeUrlOption = None,
    chosen: Annotated[
        QueryFormat, typer.Option("--format", help="How rows come out; arrow is an IPC stream.")
    ] = QueryFormat.TABLE,
    timeout_s: TimeoutOption = None,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=1, help="Print the first N rows only.")
    ] = None,
    after: AfterOption = None,
    stale: StaleOption = None,
    user: Annotated[
        str, typer.Option("--user", metavar="NAME", help="Whose query it is: the node bounds those of one user.")
    ] = "",
    running: Annotated[bool, typer.Option("--running", help="List the queries that run at the node.")] = False,
    kill: Annotated[str | None, typer.Option("--kill", metavar="ID", help="End a query that runs at the node.")] = None,
    *,
    cluster: ClusterOptions,
    json_output: JsonOption = False,
) -> None:
    """Query a node in SQL (DuckDB's dialect; tables are database.table, times are UTC)."""
    # `--format json` is `--json`: errors are JSON too.
    with run_command(json_output or chosen is QueryFormat.JSON) as output:
        if running or kill is not None:
            if sql is not None or file is not None or (running and kill is not None):
                raise UsageInvalid("--running and --kill take no SQL, and not each other")
            if kill == "":
                raise UsageInvalid("--kill names no query", action="headrace query --running lists their IDs")
            _operate(output, node_url(node, cluster, unready=True), kill)
            return
        form, older = _checked(QueryFormat.JSON if output.json_output else chosen), StaleAnswer(stale)
        text, given = (
            _sql(sql, file),
            dict[str, Any](limit=limit, user=user, parameters=param or (), after=_offsets(after)),
        )
        given["timeout_ms"] = _milliseconds(timeout_s)
        url = node_url(node, cluster, unready=bool(older.within_s))
        _ask(output, url, text, form, older, given)


def _operate(output: Output, url: str, kill: str | None) -> None:
    from headrace.cli.running_queries import operate
    from headrace.node_client import NodeClient

    operate(output, NodeClient(url), kill)


def _ask(output: Output, url: str, sql: str, form: QueryFormat, older: StaleAnswer, given: Mapping[str, Any]) -> None:
    from headrace._parameters import typed_parameters
    from headrace.node_client import NodeClient
    from headrace.terminal.result_view import footer, show_rows

    started_s = time.monotonic()
    chunks = NodeClient(url).query(
        sql,
        format="arrow" if form is QueryFormat.TABLE else form.value,
        stale_s=older.within_s,
        on_as_of=older.note,
        **{**given, "parameters": typed_parameters(given["parameters"])},
    )
    older.show(output)
    if form is QueryFormat.TABLE:
        rows = show_rows(chunks)
        output.note(footer(rows, (time.monotonic() - started_s) * 1_000))
    else:
        _copy_out(older.document(chunks) if form is QueryFormat.JSON else chunks)


def _copy_out(chunks: Iterator[bytes]) -> None:
    # As the node sends them: a result may be larger than memory.
    for chunk in chunks:
        sys.stdout.buffer.write(chunk)
    sys.stdout.buffer.flush()


def _milliseconds(timeout_s: float | None) -> int | None:
    """The time of a query. Raises UsageInvalid."""
    if timeout_s is None:
        return None
    if not math.isfinite(timeout_s * 1_000):
        raise UsageInvalid(f"--timeout {timeout_s:g} is no number of seconds", action="leave it out for the node's own")
    # At least 1 ms: the node takes 0 for its own default.
    return max(1, round(timeout_s * 1_000))


def _offsets(text: str | None) -> dict[str, int]:
    """The offsets that an answer must contain, by topic. Raises UsageInvalid."""
    try:
        given = json.loads(text) if text is not None else {}
    except (ValueError, RecursionError) as error:
        raise UsageInvalid(f"--after is not JSON: {error}", action=AFTER_EXAMPLE) from error
    # In Python `true` is an int; in JSON it is not a number.
    numbers = isinstance(given, dict) and all(type(offset) is int and offset >= 0 for offset in given.values())
    if not numbers:
        raise UsageInvalid("--after does not map topics to offsets", action=AFTER_EXAMPLE)
    return dict(given)


def _checked(form: QueryFormat) -> QueryFormat:
    if form is QueryFormat.ARROW and sys.stdout.isatty():
        raise UsageInvalid(
            "an Arrow stream cannot be shown in a terminal", action="redirect it: … --format arrow > rows.arrows"
        )
    return form


def _sql(sql: str | None, file: str | None) -> str:
    """The SQL of the argument, of a file or of stdin. Raises UsageInvalid."""
    if (sql is None) == (file is None):
        raise UsageInvalid("give the SQL, or a file with -f FILE", action='for example headrace query "SHOW TABLES"')
    from headrace.shell.statements import input_lines, read_sql

    if STANDARD_INPUT in (sql, file):
        text = "".join(input_lines(sys.stdin))
    elif file is not None:
        text = read_sql(file)
    else:
        text = str(sql)
    if not text.strip():
        raise UsageInvalid("SQL is empty", action='for example headrace query "SHOW TABLES"')
    return text
