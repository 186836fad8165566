"""The DuckDB instance that a node's queries share, locked at birth.

No external access but the segment directories, no extensions, no change of settings, one memory limit for all queries together. The settings that
only a path could make weaker (`spill_directory`) are the operator's.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from consumers.query.errors import QueryError

HOME_CATALOG = "memory"
"""The catalog that DuckDB itself gives an instance in memory."""


@dataclass(frozen=True, slots=True)
class QuerySettings:
    """Limits of asking, each for the whole node.

    `memory_limit_mb` and `threads` are shared by all running queries; `timeout_ms` is the most a query may ask for as well as the default;
    without a `spill_directory` a query that does not fit in memory fails.
    """

    memory_limit_mb: int = 1_000
    threads: int = 2
    timeout_ms: int = 60_000
    queries_max: int = 8
    spill_directory: Path | None = None
    spill_mb_max: int = 4_000


class LockedDatabase:
    """Opens connections that can read files under `directories`, at any depth, and no others. Safe for any thread."""

    def __init__(self, directories: Sequence[Path], settings: QuerySettings) -> None:
        self._directories = tuple(Path(directory).resolve() for directory in directories)
        self._settings = settings
        self._lock = threading.Lock()
        self._database: duckdb.DuckDBPyConnection | None = _open(settings, self._directories)

    def connect(self) -> duckdb.DuckDBPyConnection:
        """A connection of its own. Raises QueryError after `close`."""
        with self._lock:
            if self._database is None:
                raise QueryError("this node no longer answers queries", action="ask another node")
            return self._database.cursor()

    def reopen(self) -> None:
        """Open another instance: after an internal error DuckDB answers nothing any more. Connections of the old one end by themselves."""
        fresh = _open(self._settings, self._directories)
        with self._lock:
            if self._database is not None:
                self._database = fresh

    def close(self) -> None:
        """Refuse new connections; what runs goes on until its result is closed."""
        with self._lock:
            database, self._database = self._database, None
        if database is not None:
            database.close()


def statement_kinds(connection: duckdb.DuckDBPyConnection, sql: str) -> list[str]:
    """The kind of each statement in a text, as DuckDB names it."""
    return [statement.type.name for statement in connection.extract_statements(sql)]


def syntax_tree(connection: duckdb.DuckDBPyConnection, sql: str) -> Mapping[str, Any]:
    """DuckDB's own syntax tree of reading statements; see `guard`."""
    ((text,),) = connection.execute("SELECT json_serialize_sql(?)", [sql]).fetchall()
    try:
        tree: Mapping[str, Any] = json.loads(text)
    except RecursionError:
        return {"error": True, "error_message": "the SQL chains or nests too many operators"}
    return tree


def _open(settings: QuerySettings, directories: Sequence[Path]) -> duckdb.DuckDBPyConnection:
    database = duckdb.connect(
        ":memory:",
        config={
            "memory_limit": f"{settings.memory_limit_mb}MB",
            "threads": settings.threads,
            "temp_directory": str(settings.spill_directory or ""),
            "python_enable_replacements": "false",
            "autoload_known_extensions": "false",
            "autoinstall_known_extensions": "false",
            "allow_community_extensions": "false",
        },
    )
    database.execute("SET parquet_metadata_cache = true")
    if settings.spill_directory is not None:
        database.execute(f"SET max_temp_directory_size = '{settings.spill_mb_max}MB'")
    allowed = ", ".join("'" + f"{directory}/".replace("'", "''") + "'" for directory in directories)
    database.execute(
        f"SET allowed_directories = [{allowed}]; SET enable_external_access = false; SET lock_configuration = true"
    )
    return database
