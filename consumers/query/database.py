"""The DuckDB instance that the queries of a node share, and its errors as query errors.

It is locked before the first query: it reads no files outside the segment directories, loads no extensions,
and changes no settings. One memory limit holds for all queries together.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb

from headrace.connectors.files import create_directories
from headrace.consumers.query.query_errors import (
    FunctionRefused,
    QueryCancelled,
    QueryError,
    QueryInvalid,
    QueryMemory,
    QueryTimeout,
    SegmentUnreadable,
)
from headrace.consumers.query.settings import QuerySettings

HOME_CATALOG = "memory"
"""The catalog that DuckDB itself gives an instance in memory."""
CATALOG_PREFIX = "__q"
"""Every query has a catalog of its own, named by this prefix and a number."""
LINE_LENGTH_MAX = 400
_CATALOG = re.compile(rf'"?{CATALOG_PREFIX}\d+"?\.')
_HINT = re.compile(r"^\s*(Did you mean .*|Candidate bindings: .*)$", re.MULTILINE)


class LockedDatabase:
    """Opens connections that read no files but those under `directories`, at any depth. Safe for any thread."""

    def __init__(self, directories: Sequence[Path], settings: QuerySettings) -> None:
        self._directories = tuple(Path(directory).resolve() for directory in directories)
        self._settings = settings
        self._lock = threading.Lock()
        self._database: duckdb.DuckDBPyConnection | None = _open(settings, self._directories)

    def connect(self) -> duckdb.DuckDBPyConnection:
        """A new connection to the instance. Raises QueryError after `close`."""
        with self._lock:
            if self._database is None:
                raise QueryError("this node no longer answers queries", action="ask another node")
            return self._database.cursor()

    def reopen(self) -> None:
        """Replace an instance that an internal error of DuckDB has ended."""
        # The old instance is not closed: running queries hold connections to it, and it ends with the last.
        fresh = _open(self._settings, self._directories)
        with self._lock:
            if self._database is not None:
                self._database = fresh

    def names_segment(self, text: str) -> bool:
        """Whether a text names a file that queries may read."""
        # By the whole path: SQL may hold any text that only looks like one.
        return any(f"{directory}/" in text for directory in self._directories)

    def close(self) -> None:
        """Refuse new connections. Running queries continue until their results are closed."""
        # Not closed but let go, as in `reopen`: closing it would close the connections of running queries under them,
        # and DuckDB refuses that while one of them executes. The instance ends with the last of them.
        with self._lock:
            self._database = None


def statement_kinds(connection: duckdb.DuckDBPyConnection, sql: str) -> list[str]:
    """The kind of each statement in a text, as DuckDB names it."""
    return [statement.type.name for statement in connection.extract_statements(sql)]


def syntax_tree(connection: duckdb.DuckDBPyConnection, sql: str) -> Mapping[str, Any]:
    """DuckDB's own syntax tree of reading statements (see `guard`)."""
    ((text,),) = connection.execute("SELECT json_serialize_sql(?)", [sql]).fetchall()
    # Chained operators need no brackets, so the limit on nesting in `guard` does not bound this depth.
    try:
        tree: Mapping[str, Any] = json.loads(text)
    except RecursionError:
        return {"error": True, "error_message": "the SQL chains or nests too many operators"}
    return tree


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
    # Neither the message nor the hint may show the catalog, which no user has named.
    hint = _HINT.search(text)
    return QueryInvalid(_line(text), action=_CATALOG.sub("", hint[1]).strip() if hint else "")


def _line(text: str) -> str:
    first = next((line.strip() for line in text.splitlines() if line.strip()), "the query failed")
    return _CATALOG.sub("", first)[:LINE_LENGTH_MAX]


def _open(settings: QuerySettings, directories: Sequence[Path]) -> duckdb.DuckDBPyConnection:
    # DuckDB creates the last folder only, and only when the first query spills.
    spill_directory = (
        str(create_directories(Path(settings.spill_directory).resolve())) if settings.spill_directory else ""
    )
    database = duckdb.connect(
        ":memory:",
        config={
            "memory_limit": f"{settings.memory_limit_mb}MB",
            "threads": settings.threads,
            "temp_directory": spill_directory,
            "python_enable_replacements": "false",
            # The line above keeps SQL from naming Python variables of this process. An extension brings
            # functions that `guard` has never seen, and DuckDB would download it by itself.
            "autoload_known_extensions": "false",
            "autoinstall_known_extensions": "false",
            "allow_community_extensions": "false",
        },
    )
    database.execute("SET parquet_metadata_cache = true")
    if spill_directory:
        database.execute(f"SET max_temp_directory_size = '{settings.spill_mb_max}MB'")
    # In this order: without access no directory can be allowed, and locked settings cannot be set.
    allowed = ", ".join("'" + f"{directory}/".replace("'", "''") + "'" for directory in directories)
    database.execute(
        f"SET allowed_directories = [{allowed}]; SET enable_external_access = false; SET lock_configuration = true"
    )
    return database
