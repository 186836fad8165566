"""chDB (ClickHouse in this process) as a peer of `headrace bench queries`, where its package is installed.

Its tables are of the engine MergeTree, in the order of the segments: by series, then by time. They are filled from the
node's own files before anything is measured.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

DATABASE = "peer"
_SPELLINGS = (
    (re.compile(r"time_bucket\(INTERVAL '(\d+) (\w+)', time\)"), r"toStartOfInterval(time, INTERVAL \1 \2)"),
    (re.compile(r"\bepoch\("), "toUnixTimestamp("),
)
"""Functions of DuckDB in the queries of the bench, as ClickHouse names them."""


class ChdbPeer:
    """One session of chDB. Used by one thread."""

    def __init__(self, module: Any, session: Any, threads: int) -> None:
        self.versions = {"chdb": str(module.__version__), "clickhouse": str(module.engine_version)}
        self._session = session
        for sql in (f"SET max_threads = {threads}", f"CREATE DATABASE {DATABASE}", f"USE {DATABASE}"):
            session.query(sql)

    def load(self, table: str, tags: Sequence[str], files: Sequence[str]) -> None:
        """Copy a table from Parquet files of one schema."""
        order = ", ".join([*tags, "time"])
        create = f"CREATE TABLE {table} ENGINE = MergeTree ORDER BY ({order}) SETTINGS allow_nullable_key = 1 AS"
        for number, path in enumerate(files):
            self._session.query(f"{f'INSERT INTO {table}' if number else create} SELECT * FROM file('{path}', Parquet)")
        self._session.query(f"OPTIMIZE TABLE {table} FINAL")

    def ask(self, sql: str) -> pa.Table:
        """The answer to a query of the bench."""
        found = self._session.query(as_clickhouse(sql), "ArrowTable")
        # It writes a DateTime as its seconds, and no query of the bench has other integers of 32 bits.
        columns = [
            column.cast(pa.int64()).cast(pa.timestamp("s")) if column.type == pa.uint32() else column
            for column in found.columns
        ]
        return pa.table(dict(zip(found.column_names, columns, strict=True)))

    def close(self) -> None:
        """End it."""
        self._session.close()


def as_clickhouse(sql: str) -> str:
    """A query of the bench in the dialect of ClickHouse."""
    for ours, theirs in _SPELLINGS:
        sql = ours.sub(theirs, sql)
    return sql


def chdb_peer(directory: Path, threads: int, load: Callable[[str], Any] = importlib.import_module) -> ChdbPeer | None:
    """A session with its data in a directory; None where the package is not installed."""
    try:
        module, sessions = load("chdb"), load("chdb.session")
    except ImportError:
        return None
    return ChdbPeer(module, sessions.Session(str(directory)), threads)
