"""`headrace query --running` and `--kill`: the queries of a node."""

from __future__ import annotations

from typing import Any

from headrace.node_client import NodeClient
from headrace.terminal.output import Output

SQL_CHARACTERS_SHOWN = 60
_COLUMNS = ("id", "user", "state", "level", "cpu s", "memory MB", "blocked on", "sql")


def operate(output: Output, client: NodeClient, kill: str | None) -> None:
    """List the queries, or end one. Raises QueryUnknown."""
    if kill is not None:
        client.kill(kill)
        output.result({"killed": kill}, f"killed {kill}")
        return
    queries = client.running_queries()
    if output.json_output:
        output.json(queries)
    else:
        output.table(_COLUMNS, [_row(query) for query in queries])


def _row(query: dict[str, Any]) -> tuple[object, ...]:
    sql = " ".join(query["sql"].split())
    shown = sql if len(sql) <= SQL_CHARACTERS_SHOWN else f"{sql[: SQL_CHARACTERS_SHOWN - 1]}…"
    memory_mb = query["memory_bytes"] // 1_000_000
    return (
        *(query["id"], query["user"], query["state"], query["level"], round(query["cpu_seconds"], 3)),
        *(memory_mb, query["blocked_on"], shown),
    )
