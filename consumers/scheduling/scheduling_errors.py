"""The conditions that end a query whoever runs it, one class for each that a caller can act on.

This module stays free of DuckDB and Arrow, like `consumers.query.query_errors`, which has the conditions of SQL.
Class names are the `kind` of HTTP answers, so they are part of the protocol between node and client.
"""

from __future__ import annotations

from collections.abc import Collection

from headrace.schemas.errors import HeadraceError

RETRY_AFTER_S = 1
REASONS_SHOWN = 3
"""Reasons that an error names."""


class QueryError(HeadraceError):
    """A query that gave no answer."""

    @property
    def kind(self) -> str:
        """The name of the condition in HTTP answers and on the command line."""
        return type(self).__name__


class TooManyQueries(QueryError):
    """As many queries run as the node, or one user there, is allowed at a time."""

    @classmethod
    def because(cls, reason: str) -> TooManyQueries:
        """The error of a query that a limit refuses."""
        return cls(reason, action=f"retry after {RETRY_AFTER_S} s", retriable=True)


class QueryTooLarge(QueryError):
    """A query that needs more drivers than one query may have."""


class QueryUnknown(QueryError):
    """No query with this id runs here."""

    @classmethod
    def named(cls, query: str) -> QueryUnknown:
        """The error of whoever asks for a query that is not there."""
        return cls(f"no query {query} runs on this node", action="it may have ended, or run on another node")


class QueryCancelled(QueryError):
    """A query that was cancelled, or whose result was closed, before it was read to its end."""


class QueryFailed(QueryError):
    """A driver met an error that is nobody's condition: a defect, which the log of the node shows in full."""


class QueryTimeout(QueryError):
    """A query that did not finish within its time."""

    @classmethod
    def after(cls, timeout_ms: int, awaited: Collection[str] = ()) -> QueryTimeout:
        """The error of a query whose time limit is over; `awaited` is what it still waited for then."""
        if not awaited:
            return cls(
                f"the query did not finish within {timeout_ms} ms",
                action="narrow the time range, or give the query a longer timeout",
                retriable=True,
            )
        shown, more = list(awaited)[:REASONS_SHOWN], len(awaited) - REASONS_SHOWN
        return cls(
            f"the query did not finish within {timeout_ms} ms: it waited for {'; '.join(shown)}"
            f"{f'; and for {more} more' if more > 0 else ''}",
            action="retry, or ask another node; headrace status of the members shows the cause",
            retriable=True,
        )


class QueryMemory(QueryError):
    """A query that needs more memory than queries may use here."""

    @classmethod
    def above(cls, limit_mb: int, node: str = "") -> QueryMemory:
        """The error of a query that needs more than `limit_mb`, at another node if one is named."""
        return cls(
            f"the query needs more than the {limit_mb} MB that it may use at {f'node {node}' if node else 'this node'}",
            action="narrow the time range or the columns, aggregate before sorting and joining, "
            "or raise query.memory_per_query_mb there, within query.memory_limit_mb",
        )
