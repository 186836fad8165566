"""Errors of DuckDB as query errors."""

from __future__ import annotations

import re

import duckdb

from headrace.consumers.query.database import CATALOG_PREFIX
from headrace.consumers.query.query_errors import (
    FunctionRefused,
    QueryCancelled,
    QueryError,
    QueryInvalid,
    QueryMemory,
    QueryTimeout,
    SegmentUnreadable,
)
from headrace.consumers.query.time_errors import time_invalid

LINE_LENGTH_MAX = 400
_CATALOG = re.compile(rf'"?{CATALOG_PREFIX}\d+"?\.')
_HINT = re.compile(r"^\s*(Did you mean .*|Candidate bindings: .*)$", re.MULTILINE)


def is_broken(error: Exception) -> bool:
    """True for an error after which a DuckDB instance refuses every further statement."""
    return isinstance(error, duckdb.FatalException | duckdb.InternalException)


def translate(
    error: Exception, *, names_segment: bool, timed_out: bool, timeout_ms: int, memory_limit_mb: int
) -> QueryError:
    """The query error for an error of DuckDB; `names_segment`: its text names a file of this node."""
    # An error while batches are read arrives through Arrow as an OSError or ArrowException that holds the text
    # of DuckDB. So the text decides as well as the class.
    text = str(error)
    if isinstance(error, duckdb.InterruptException) or "INTERRUPT Error" in text:
        return QueryTimeout.after(timeout_ms) if timed_out else QueryCancelled("the query was cancelled before its end")
    if isinstance(error, duckdb.OutOfMemoryException) or "Out of Memory Error" in text:
        return QueryMemory.above(memory_limit_mb)
    # A footer whose bytes have changed gives an error of Thrift: no path, and no class but that of all errors.
    unreadable = isinstance(error, duckdb.IOException) or type(error) is duckdb.Error
    if unreadable or (names_segment and not isinstance(error, duckdb.PermissionException)):
        return SegmentUnreadable.because(_line(text))
    if isinstance(error, duckdb.PermissionException):
        return FunctionRefused("queries read tables only, not files", action="SHOW TABLES lists what there is")
    if (invalid := time_invalid(text)) is not None:
        return invalid
    # Neither the message nor the hint may show the catalog, which no user has named.
    hint = _HINT.search(text)
    return QueryInvalid(_line(text), action=_CATALOG.sub("", hint[1]).strip() if hint else "")


def _line(text: str) -> str:
    first = next((line.strip() for line in text.splitlines() if line.strip()), "the query failed")
    return _CATALOG.sub("", first)[:LINE_LENGTH_MAX]
