"""The DuckDB instances that run the queries of a node.

An instance is locked before its first query: it reads no files outside the segment directories, loads no extensions,
and changes no settings. It runs one query at a time, on the thread that calls it, and is used again.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, Protocol

import duckdb
import pyarrow as pa

from headrace.connectors.files import create_directories
from headrace.connectors.periodic import PeriodicTask
from headrace.consumers.query.answer_types import check_types
from headrace.consumers.query.checked_statements import CheckedStatements
from headrace.consumers.query.divisions import Divisions
from headrace.consumers.query.query_errors import QueryError, QueryInvalid
from headrace.consumers.query.settings import QuerySettings
from headrace.consumers.scheduling.memory_pool import BYTES_PER_MB

HOME_CATALOG = "memory"
"""The catalog that DuckDB itself gives an instance in memory."""
CATALOG_PREFIX = "__q"
"""The catalog of the query that an instance runs, named by this prefix and a number."""
CATALOG = f"{CATALOG_PREFIX}0"
PAUSE_FUNCTION = "__headrace_pause"
PAUSE_ROWS = 32_768
"""Scans pause at rows that are a multiple of it; a power of two."""
PAUSE_ROWS_JOINED = 16_384
"""The same in a statement that joins: what it does with each row takes several times as long."""
IDLE_MAX = 32
"""Instances of 4 MB that wait for queries: to make one takes longer than a short query."""
IDLE_KEPT = 12
"""Those that wait, also if nobody needs so many."""
SPARE_MAX = 4
"""Instances that are made before a query needs them, while others run: a burst of queries would make them all at once,
each in the place of several short queries.
"""
SPARE_INTERVAL_S = 60.0
"""Whoever takes an instance wakes the thread that makes them."""
STREAM_BYTES = 1_000_000
"""What DuckDB computes of a result before it is taken."""


class Instance:
    """One DuckDB instance with one connection, which runs the statements of one query at a time.

    `pause` is what its scans call; see `LockedDatabase.lease`.
    """

    def __init__(self, memory_mb: int, connection: duckdb.DuckDBPyConnection) -> None:
        self.memory_mb = memory_mb
        self.connection = connection
        self.pauses: Pauses | None = None
        # One without side effects is computed in the scan, before the conditions of the statement and for each row: to
        # read one series of many took four times as long.
        connection.create_function(PAUSE_FUNCTION, self._pause, ["BIGINT"], "BOOLEAN", side_effects=True)
        connection.execute(f"ATTACH ':memory:' AS {CATALOG}; USE {CATALOG}")
        self._beside = connection.cursor()

    def _pause(self, row: int) -> bool:
        # Whatever this raises ends the statement.
        if self.pauses is not None:
            self.pauses.at_row(row)
        return True

    def held_bytes(self) -> int:
        """The memory that it holds now; also while a statement has begun, and waits between two batches."""
        try:
            ((size_bytes,),) = self._beside.execute("SELECT sum(memory_usage_bytes) FROM duckdb_memory()").fetchall()
        except duckdb.Error:
            return self.memory_mb * BYTES_PER_MB
        return int(size_bytes)

    def close(self) -> None:
        """End it."""
        self._beside.close()
        # Without this the connection and its function keep each other.
        with suppress(duckdb.Error):
            self.connection.remove_function(PAUSE_FUNCTION)
        self.connection.close()

    def clear(self) -> None:
        """Forget everything that a query has made here."""
        # A catalog cannot be detached while it is the current one.
        self.connection.execute(
            f"USE {HOME_CATALOG}.main; DETACH {CATALOG}; ATTACH ':memory:' AS {CATALOG}; USE {CATALOG}"
        )


class Pauses(Protocol):
    """Where a scan may wait for its next turn."""

    def at_row(self, row: int) -> None:
        """A scan has reached a row of a file, every PAUSE_ROWS, or PAUSE_ROWS_JOINED."""
        ...


class LockedDatabase:
    """Lends instances that read no files but those under `directories`, at any depth. Safe for any thread.

    The memory limit of DuckDB is one of an instance. With one each, a query at its limit fails or spills alone.
    """

    def __init__(
        self,
        directories: Sequence[Path],
        settings: QuerySettings,
        spills_from_mb: int = 0,
        spare_mb: int = 0,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Instances of at least `spills_from_mb` write what does not fit into `query.spill_directory`.

        Those of `spare_mb`, where it is given, are made ahead once several are lent.
        """
        self._spills_from_mb = spills_from_mb
        self._spare_mb = spare_mb
        self._directories = tuple(Path(directory).resolve() for directory in directories)
        self._roots = tuple(zip((f"{each}/" for each in directories), self._directories, strict=True))
        self._settings = settings
        self._changed = threading.Condition()
        self._closed = False
        self._making = False
        """Whether a query makes an instance."""
        self._idle: list[Instance] = []
        self._numbers = itertools.count()
        self._lent = 0
        self._spares = PeriodicTask("query-instances", SPARE_INTERVAL_S, self._tend_idle)
        self._spares_run = False
        self._clock_s = clock_s
        self._idle_fewest = 0
        self._looked_s = clock_s()
        self.checked = CheckedStatements()
        self.divisions = Divisions()

    def lease(self, memory_mb: int, outside: Callable[[], AbstractContextManager[None]] = nullcontext) -> Instance:
        """An instance of this memory for one query, for `give_back`. Raises QueryError after `close`.

        `outside` surrounds the wait where none is idle.
        """
        with self._changed:
            instance = self._taken(memory_mb)
            self._lent += memory_mb == self._spare_mb
            lacks, begins = self._lacks_spares(), not self._spares_run
            self._spares_run = self._spares_run or lacks
        if lacks:
            # What was lent must not be lost for want of a thread: without spares queries make their own.
            with suppress(RuntimeError):
                if begins:
                    self._spares.start()
            self._spares.wake()
        if instance is not None:
            return instance
        try:
            with outside():
                instance = self._awaited(memory_mb)
        except BaseException:
            # The query may have ended behind the wait.
            if instance is not None:
                self.give_back(instance, reusable=True)
            else:
                with self._changed:
                    self._lent -= memory_mb == self._spare_mb
            raise
        return instance

    def _taken(self, memory_mb: int) -> Instance | None:
        """An idle instance, if there is one. Under the lock."""
        if self._closed:
            raise QueryError("this node no longer answers queries", action="ask another node")
        # The one that came back last knows the footers of the files that are read now.
        places = (place for place in range(len(self._idle) - 1, -1, -1) if self._idle[place].memory_mb == memory_mb)
        found = next(places, None)
        instance = None if found is None else self._idle.pop(found)
        self._idle_fewest = min(self._idle_fewest, len(self._idle))
        return instance

    def _awaited(self, memory_mb: int) -> Instance:
        """One that comes back, or one that is made: what is sooner."""
        with self._changed:
            # One at a time: a burst of queries that all made one would need as many, and others come back meanwhile.
            while (instance := self._taken(memory_mb)) is None and self._making:
                self._changed.wait()
            if instance is not None:
                return instance
            self._making = True
        try:
            return self._made(memory_mb)
        finally:
            with self._changed:
                self._making = False
                self._changed.notify_all()

    def _lacks_spares(self) -> bool:
        """Whether one more should be made ahead. Under the lock."""
        # A node whose queries run one after the other needs none.
        wanted = min(SPARE_MAX, self._lent // 2)
        return not self._closed and sum(each.memory_mb == self._spare_mb for each in self._idle) < wanted

    def _tend_idle(self) -> None:
        self._close_unused()
        self._make_spares()

    def _close_unused(self) -> None:
        """Close those beyond IDLE_KEPT that nobody has needed for SPARE_INTERVAL_S."""
        with self._changed:
            now_s = self._clock_s()
            if now_s - self._looked_s < SPARE_INTERVAL_S:
                return
            # The ones at the front came back first.
            unused = max(0, min(self._idle_fewest, len(self._idle) - IDLE_KEPT))
            closing, self._idle = self._idle[:unused], self._idle[unused:]
            self._idle_fewest, self._looked_s = len(self._idle), now_s
        for instance in closing:
            instance.close()

    def _make_spares(self) -> None:
        while True:
            with self._changed:
                if not self._lacks_spares():
                    return
            instance = self._made(self._spare_mb)
            with self._changed:
                if keeps := not self._closed:
                    self._idle.append(instance)
                    self._changed.notify_all()
            if not keeps:
                instance.close()

    def _made(self, memory_mb: int) -> Instance:
        # Two instances would take the same names for their files.
        spill = ""
        if self._settings.spill_directory and memory_mb >= self._spills_from_mb:
            spill = f"{self._settings.spill_directory}/{os.getpid()}-{next(self._numbers)}"
        return Instance(memory_mb, _open(self._settings, memory_mb, self._directories, spill))

    def give_back(self, instance: Instance, *, reusable: bool) -> None:
        """The query of an instance has ended. Not `reusable`: it may be broken, or hold much."""
        instance.pauses = None
        spare = None
        with self._changed:
            self._lent -= instance.memory_mb == self._spare_mb
            if reusable and not self._closed:
                self._idle.append(instance)
                self._changed.notify_all()
                spare = self._idle.pop(0) if len(self._idle) > IDLE_MAX else None
            else:
                spare = instance
        if spare is not None:
            spare.close()

    def readable(self, file: Path) -> Path:
        """A segment by the path under which queries may read it: DuckDB compares paths as text."""
        # Not by looking at the file: each part of the path would be a call of the kernel, which gives the interpreter's
        # lock away. A statement over many files waited for it a thousand times.
        text = str(file)
        for given, root in self._roots:
            if text.startswith(given):
                return file if given == f"{root}/" else root / text.removeprefix(given)
        return file.resolve()

    def names_segment(self, text: str) -> bool:
        """Whether a text names a file that queries may read."""
        # By the whole path: SQL may hold any text that only looks like one.
        return any(f"{directory}/" in text for directory in self._directories)

    def close(self) -> None:
        """Lend no more. Instances of running queries end when they are given back."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            idle, self._idle = self._idle, []
        self._spares.stop()
        for instance in idle:
            instance.close()


def streamed(connection: duckdb.DuckDBPyConnection, sql: str, batch_rows: int) -> pa.RecordBatchReader:
    """The rows of one statement, computed as they are taken. Raises QueryInvalid for columns that no answer holds."""
    # A relation is bound when it is made and again when it is read, which takes a third of a short query. DuckDB 2.0
    # reads its own relations through this function, which other versions may not have.
    try:
        from duckdb._seam import submit
    except ImportError:
        relation = connection.sql(sql)
        check_types(relation.description)
        return relation.to_arrow_reader(batch_rows)
    result = submit(connection, sql, None, "stream", batch_rows)
    try:
        check_types(result.description)
    except QueryInvalid:
        # An open result keeps the connection from its next statement.
        result.close()
        raise
    return result.arrow_reader()


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


def _open(
    settings: QuerySettings, memory_mb: int, directories: Sequence[Path], spill: str
) -> duckdb.DuckDBPyConnection:
    # DuckDB creates the last folder only, and only when the first query spills.
    spill_directory = ""
    if spill:
        path = Path(spill).resolve()
        spill_directory = str(create_directories(path.parent) / path.name)
    database = duckdb.connect(
        ":memory:",
        config={
            "memory_limit": f"{memory_mb}MB",
            # The thread that runs the statement: it computes while the scheduler lets it, and no other does.
            "threads": 1,
            "async_threads": 0,
            "temp_directory": spill_directory,
            "python_enable_replacements": "false",
            # The line above keeps SQL from naming Python variables of this process. An extension brings
            # functions that `guard` has never seen, and DuckDB would download it by itself.
            "autoload_known_extensions": "false",
            "autoinstall_known_extensions": "false",
            "allow_community_extensions": "false",
        },
    )
    # Without a zone it would be that of the machine, and moments without a zone are UTC.
    database.execute(
        f"SET TimeZone = 'UTC'; SET parquet_metadata_cache = true; SET streaming_buffer_size = '{STREAM_BYTES}B'"
    )
    if spill_directory:
        database.execute(f"SET max_temp_directory_size = '{settings.spill_mb_max}MB'")
    # In this order: without access no directory can be allowed, and locked settings cannot be set.
    allowed = ", ".join("'" + f"{directory}/".replace("'", "''") + "'" for directory in directories)
    database.execute(
        f"SET allowed_directories = [{allowed}]; SET enable_external_access = false; SET lock_configuration = true"
    )
    return database
