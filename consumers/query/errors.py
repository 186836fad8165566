"""What can go wrong between a question and its answer, one class per condition that a caller can act on."""

from __future__ import annotations

from schemas.errors import HeadraceError


class QueryError(HeadraceError):
    """A query that gave no answer. `kind` is its name on the wire."""

    @property
    def kind(self) -> str:
        """The name of the condition, the same in HTTP answers and on the command line."""
        return type(self).__name__


class NotReadOnly(QueryError):
    """SQL that is not one single reading statement."""


class FunctionRefused(QueryError):
    """SQL that calls a function which reads files, settings or other queries."""


class UnknownTable(QueryError):
    """SQL that names a table which no database has, or which several have."""


class QueryInvalid(QueryError):
    """SQL that cannot be parsed, bound, or run over these rows."""


class QueryTimeout(QueryError):
    """A query that did not finish within its time."""


class QueryMemory(QueryError):
    """A query that needs more memory than queries may use here."""


class QueryCancelled(QueryError):
    """A query whose result was closed, or whose engine was, before it was read to its end."""


class TooManyQueries(QueryError):
    """All places for running queries are taken."""


class NotCaughtUp(QueryError):
    """The node has not reached the log offsets that the query must see."""


class SegmentUnreadable(QueryError):
    """A segment file of this node could not be read: the fault is here, not in the SQL."""
