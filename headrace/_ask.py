"""Questions to a node over HTTP, and what comes back."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from schemas.errors import HeadraceError

QUERY_PATH = "/api/v1/query"
TIMEOUT_MS = 60_000
GRACE_S = 15.0
CONNECT_TIMEOUT_S = 5.0


class QueryFailed(HeadraceError):
    """A node refused a query or could not finish it; `kind` is the node's name for what happened."""

    def __init__(self, message: str, *, kind: str, action: str = "", retriable: bool = False) -> None:
        super().__init__(message, action=action, retriable=retriable)
        self.kind = kind


class NodeUnreachable(HeadraceError):
    """A node that does not answer, or that left in the middle of an answer."""


class QueryResult:
    """The rows of an answer. It also exports an Arrow stream, so DuckDB, polars and pandas read it as it is."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __repr__(self) -> str:
        return f"<QueryResult of {len(self):,} rows: {', '.join(self._table.column_names)}>"

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


def ask(url: str, sql: str, *, after: Mapping[str, int] | None = None, timeout_ms: int | None = None) -> QueryResult:
    """Ask one node. Raises NodeUnreachable, and QueryFailed with what the node says."""
    question: dict[str, Any] = {"sql": sql, "format": "arrow", "after": dict(after or {})}
    if timeout_ms is not None:
        question["timeout_ms"] = timeout_ms
    connection = _connection(url)
    try:
        connection.connect()
        connection.sock.settimeout((timeout_ms or TIMEOUT_MS) / 1_000 + GRACE_S)
        path = urlsplit(url).path.rstrip("/") + QUERY_PATH
        connection.request("POST", path, json.dumps(question), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != http.client.OK:
            raise _failure(url, response.status, response.read())
        with pa.ipc.open_stream(response) as reader:
            return QueryResult(reader.read_all())
    except (OSError, http.client.HTTPException, pa.ArrowException) as error:
        raise NodeUnreachable(
            f"node {url} did not answer: {error or type(error).__name__}", action="check the node", retriable=True
        ) from error
    finally:
        connection.close()


def _connection(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url if "//" in url else f"http://{url}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if parts.scheme not in ("http", "https") or not host:
        raise NodeUnreachable(f"{url!r} is not the URL of a node", action="for example http://127.0.0.1:8080")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(host, port, timeout=CONNECT_TIMEOUT_S)


def _failure(url: str, status: int, body: bytes) -> QueryFailed:
    try:
        error = json.loads(body)["error"]
        message, kind = str(error["message"]), str(error.get("kind", "Http"))
        action, retriable = str(error.get("action", "")), bool(error.get("retriable", False))
    except (ValueError, KeyError, TypeError):
        return QueryFailed(f"node {url} answered {status}: {body[:200]!r}", kind="Http", retriable=status >= 500)
    return QueryFailed(message, kind=kind, action=action, retriable=retriable)
