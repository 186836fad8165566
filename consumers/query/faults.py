"""Turns what DuckDB raises into the conditions of `errors`, in one line each."""

from __future__ import annotations

import re

import duckdb

from consumers.query.errors import (
    FunctionRefused,
    QueryCancelled,
    QueryError,
    QueryInvalid,
    QueryMemory,
    QueryTimeout,
    SegmentUnreadable,
)

CATALOG_PREFIX = "__q"
LINE_LENGTH_MAX = 400
_CATALOG = re.compile(rf'"?{CATALOG_PREFIX}\d+"?\.')
_HINT = re.compile(r"^\s*(Did you mean .*|Candidate bindings: .*)$", re.MULTILINE)
_SEGMENT = re.compile(r"\S+\.parquet")


def is_broken(error: Exception) -> bool:
    """True for an error after which a DuckDB instance answers nothing any more."""
    return isinstance(error, duckdb.FatalException | duckdb.InternalException)


def translate(error: Exception, *, timed_out: bool, timeout_ms: int, memory_limit_mb: int) -> QueryError:
    """The condition behind an error of DuckDB, whether raised by itself or through Arrow."""
    text = str(error)
    if isinstance(error, duckdb.InterruptException) or "INTERRUPT Error" in text:
        return timeout(timeout_ms) if timed_out else QueryCancelled("the query was cancelled before its end")
    if isinstance(error, duckdb.OutOfMemoryException) or "Out of Memory Error" in text:
        return QueryMemory(
            f"the query needs more than the {memory_limit_mb} MB that queries may use here",
            action="narrow the time range or the columns, or aggregate before sorting and joining",
        )
    segment = _SEGMENT.search(text)
    if isinstance(error, duckdb.IOException) or (segment and not isinstance(error, duckdb.PermissionException)):
        return SegmentUnreadable(
            f"a segment cannot be read: {_line(text)}", action="run headrace verify; this node may have to recover"
        )
    if isinstance(error, duckdb.PermissionException):
        return FunctionRefused("queries read tables only, not files", action="SHOW TABLES lists what there is")
    hint = _HINT.search(text)
    return QueryInvalid(_line(text), action=_CATALOG.sub("", hint[1]).strip() if hint else "")


def timeout(timeout_ms: int) -> QueryTimeout:
    """The error of a query whose time is over."""
    return QueryTimeout(
        f"the query did not finish within {timeout_ms} ms",
        action="narrow the time range, or give it more time with timeout_ms",
        retriable=True,
    )


def _line(text: str) -> str:
    first = next((line.strip() for line in text.splitlines() if line.strip()), "the query failed")
    return _CATALOG.sub("", first)[:LINE_LENGTH_MAX]
