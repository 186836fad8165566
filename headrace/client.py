"""Headrace from Python: write, delete and query readings.

with headrace.connect("127.0.0.1:9092", "headrace") as client:
    with client.writer("plant", "pumps", tags=["pump"]) as writer:
        writer.write([{"time": datetime.now(UTC), "pump": "p1", "flow": 12.5}])
    print(client.query("SELECT * FROM plant.pumps").to_pandas())
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date, datetime, timedelta
from types import TracebackType
from typing import Any, NoReturn

from headrace._access import ClusterAccess, LogAccess, RowWriter
from headrace._answers import QueryResult
from headrace._arguments import (
    given_nanoseconds,
    given_number,
    given_offsets,
    given_parameters,
    given_sql,
    given_tags,
    given_text,
    given_texts,
    writer_settings,
)
from headrace._asking import NoNode as NoNode
from headrace._asking import Question, ask
from headrace._connection import CONNECT_TIMEOUT_S, FIRST_ANSWER_LEAST_S, ClusterConnection, NoLogs, open_cluster
from headrace._dropped import has_rows, listed_again
from headrace._frames import arrow_table
from headrace._lifetime import Lifetime, not_pickled
from headrace._node_access import NodeAccess
from headrace._nodes import NodeDirectory, node_addresses
from headrace._open_writers import OpenWriters, newest_of
from headrace._parameters import query_parameters
from headrace.producers.deletes import bound_ns, check_restricted, known_table, no_table
from headrace.schemas.durations import DURATION_S_MAX, duration_s
from headrace.schemas.errors import HeadraceError
from headrace.schemas.tables import TIME_COLUMN, TableSchema
from headrace.settings import Settings, load_settings

LIST_TIMEOUT_MS = 3_000

Time = int | str | date | datetime


class ConnectionAmbiguous(HeadraceError):
    """A connection that names a node and Kafka."""

    exit_code = 2


def connect(
    bootstrap: str | None = None,
    cluster: str | None = None,
    *,
    node: str | None = None,
    nodes: str | Iterable[str] | None = None,
    timeout_s: float = CONNECT_TIMEOUT_S,
    **librdkafka: object,
) -> Client:
    """Connect to a cluster; what is not given comes from the environment and `headrace.toml`.

    `node` is the address of one node (HOST:PORT or a URL). Everything goes through it, also writing, and no Kafka is
    needed: the node may be one with a log of its own. It takes no other argument but `timeout_s`.

    `nodes` are addresses of nodes, by default the setting `node.url`. With them queries need no Kafka: it is connected
    by the first call that does, such as `writer`, which then raises these errors.
    `librdkafka` are settings of that library, verbatim (`**{"linger.ms": 5}`) or with `_` for each dot
    (`linger_ms=5`, `log__level=3` for `log_level`). Raises LogUnavailable when Kafka does not answer within
    `timeout_s`, NodeUnreachable when `node` does not, NoCluster, SettingsInvalid, NodeAddressInvalid,
    ConnectionAmbiguous, DurationInvalid and ArgumentInvalid.
    """
    timeout_s, given = duration_s(timeout_s), () if nodes is None else given_texts("nodes", nodes)
    if node is not None:
        if bootstrap or cluster or nodes or librdkafka:
            raise ConnectionAmbiguous("a client has one node, or Kafka", action="give node alone, or leave it out")
        return node_client(node, load_settings({"node.url": node}), timeout_s)
    kafka = {_property(name): value for name, value in librdkafka.items()}
    settings = load_settings({"cluster.bootstrap": bootstrap, "cluster.name": cluster, "kafka": kafka})
    connection = ClusterConnection(lambda: open_cluster(settings, timeout_s=timeout_s))
    named = node_addresses(given, settings.node.url)
    client = Client(LogAccess(connection), settings, NodeDirectory(connection, named))
    if not named:
        connection.open()
    return client


def node_client(url: str, settings: Settings, timeout_s: float = CONNECT_TIMEOUT_S) -> Client:
    """A client that reaches its cluster through one node. Raises NodeAddressInvalid, NodeUnreachable, NodeRefused."""
    access = NodeAccess(url)
    access.tables.refresh(max(FIRST_ANSWER_LEAST_S, timeout_s))
    return Client(access, settings, NodeDirectory(NoLogs(), [access.url]))


class Client:
    """One connection to one cluster.

    A context manager; every method may be called from any thread of the process that made it by `connect`. Each method
    raises ClientClosed behind `close`, ClientNotShared in a process that was forked later, and ArgumentInvalid, which
    names the argument, for one of a wrong type.
    """

    def __init__(self, access: ClusterAccess, settings: Settings, nodes: NodeDirectory) -> None:
        self._access = access
        self._nodes = nodes
        self._settings = settings
        self._lifetime = Lifetime()
        self._writers = OpenWriters()

    def writer(
        self,
        database: str,
        table: str,
        tags: Iterable[str] | None = None,
        *,
        quorum: int | None = None,
        quorum_timeout_ms: int | None = None,
        resolution: str | None = None,
    ) -> Writer:
        """A writer of one table. `tags` names the columns that identify a series; a table keeps the tags it
        has. `tags=[]` makes a table without any: rows with the same time replace each other there.

        `quorum`: 0 = not awaited, 1 = in the log (the default), k = held durably by k members of the group
        when `write` returns. Raises QuorumTooLarge when a group has fewer members. `resolution`: `us` or `ns`,
        the finest digits of the times of a new table; by default the setting `write.time_resolution`, which is
        `us`. A table keeps its resolution: `write` raises ResolutionFixed if another one is given here.
        """
        self._lifetime.check()
        settings = writer_settings(self._settings.write, quorum, quorum_timeout_ms, resolution)
        names, key = None if tags is None else given_texts("tags", tags), _table(database, table)
        rows = self._access.writer(*key, settings)
        made = Writer(self, rows, names)
        self._writers.add(rows, made)
        return made

    def delete(
        self,
        database: str,
        table: str,
        tags: Mapping[str, str | Iterable[str]] | None = None,
        start: Time | None = None,
        end: Time | None = None,
        *,
        quorum: int | None = None,
    ) -> None:
        """Delete every row written before this call whose tags have one of the values named, with start <=
        time < end.

        What is left out does not restrict. Times are datetimes (UTC without a zone), ISO 8601, or integers
        that are nanoseconds. Raises DeleteInvalid for a table or a tag that does not exist, and for a delete without
        tags and times.
        """
        self._lifetime.check()
        key, values, settings = _table(database, table), given_tags(tags), writer_settings(self._settings.write, quorum)
        check_restricted(database, table, values, start, end)
        self.flush()
        self._writers.note(self._access.delete(*key, values, _ns(start), _ns(end), settings))

    def drop_table(self, database: str, table: str, *, quorum: int | None = None) -> None:
        """Delete every row of a table written before this call; nodes then remove its files.

        The table is not listed until it is written again: then it has the columns that it had. Raises DeleteInvalid.
        """
        settings = writer_settings(self._settings.write, quorum)
        self.flush()
        self.table(database, table)
        self._writers.note(self._access.drop(database, table, settings))

    def set_retention(self, database: str, table: str, keep: timedelta | None) -> None:
        """Keep the rows of a table for so long, None = for ever. Nodes drop whole time slices that are older.

        Raises DeleteInvalid for a table that does not exist, and for less than a second.
        """
        self._lifetime.check()
        self._access.set_retention(*_table(database, table), given_nanoseconds("keep", keep))

    def query(
        self,
        sql: str,
        parameters: Mapping[str, Any] | None = None,
        *,
        timeout_ms: int | None = None,
        node: str | None = None,
        stale: float | str | timedelta | None = None,
        stale_ok: bool = False,
        after: Mapping[str, int] | None = None,
    ) -> QueryResult:
        """The answer to a SQL query, from any live node, or from the one at the URL `node`.

        `parameters` are the values of `$name` in the SQL: numbers, texts, booleans, dates, datetimes (UTC without a
        zone), None, and lists of them.

        It contains what this client wrote before, and with `after`, offsets of `flush` or `headrace write --json`, what
        another one wrote. While no node serves, as without Kafka, a node may answer from what it had at most `stale`
        ago (`"60s"`, seconds, a timedelta; `stale_ok`: at any age; 0: never; default: `query.stale_max_s`).
        `QueryResult.as_of` is then not None.

        `timeout_ms` bounds the call from the moment on at which everything that this client wrote is flushed, whoever
        is asked; by default each node has its own limit. A node that falls silent and shows no sign of life is left for
        the next one. Raises the QueryError of the node (QueryTimeout once the time is over), NodeUnreachable, NoNode
        when no live node is known, and DurationInvalid.
        """
        self._lifetime.check()
        given_sql(sql)
        others, values = given_offsets(after), query_parameters(given_parameters(parameters))
        limit_ms = None if timeout_ms is None else given_number("timeout_ms", timeout_ms, 1)
        stale_s = self._stale_s(stale, stale_ok)
        # The node answers when it has applied these offsets: clients read their own writes at every node.
        wanted = newest_of(self.flush(), others)
        question = Question(sql, values, wanted, limit_ms, stale_s, self._settings.query.timeout_ms)
        return ask(self._nodes, question, node and given_text("node", node), self._settings.cluster.name)

    def tables(self) -> list[TableSchema]:
        """Every table of the cluster with its newest schema, in order of name, without those that were dropped."""
        self._lifetime.check()
        self._access.tables.refresh()
        catalogue = self._access.tables.catalogue
        dropped = {key for key in list(catalogue.tables) if catalogue.is_dropped(*key)}
        # Only a node knows whether a dropped table has rows again.
        gone = dropped - listed_again(self._asked_for_tables, dropped)
        return [catalogue.newest(*key) for key in sorted(catalogue.tables) if key not in gone]

    def table(self, database: str, table: str) -> TableSchema:
        """One table with its newest schema. Raises DeleteInvalid when there is none."""
        self._lifetime.check()
        key = _table(database, table)
        found = known_table(self._access.tables, *key)
        dropped = self._access.tables.catalogue.is_dropped(database, table)
        if dropped and not has_rows(self._asked_for_tables, database, table):
            raise no_table(self._access.tables, database, table)
        return found

    def flush(self) -> dict[str, int]:
        """Wait for everything that this client wrote; the newest offset in each log, by its topic.

        `query(…, after=…)` of another client takes them. Raises WriteFailed, WriteUnknown.
        """
        self._lifetime.check()
        return self._writers.flush()

    def close(self) -> None:
        """Flush and close every writer, then the connection; a second call does nothing. Raises the first error of a writer."""
        self._lifetime.check_process()
        self._lifetime.end()
        failure: HeadraceError | None = None
        try:
            self._writers.close()
        except HeadraceError as error:
            failure = error
        self._access.close()
        if failure is not None:
            raise failure

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A child that leaves the block has nothing to close: the parent has it.
        if self._lifetime.is_forked:
            return
        try:
            self.close()
        except HeadraceError as also:
            # The error of the body is the cause. One of closing must not replace it.
            if error is None:
                raise
            error.add_note(f"also: {also}")

    def __reduce__(self) -> NoReturn:
        not_pickled("client")

    def _asked_for_tables(self, sql: str) -> QueryResult:
        # By a query, whose answer contains what this client has deleted and written: a list of tables need not.
        return self.query(sql, timeout_ms=LIST_TIMEOUT_MS, stale_ok=True)

    def _stale_s(self, stale: float | str | timedelta | None, stale_ok: bool) -> float | None:
        if stale is not None:
            return duration_s(stale)
        return float(DURATION_S_MAX) if stale_ok else self._settings.query.stale_max_s or None

    def _schema_of(self, database: str, table: str) -> TableSchema:
        tables = self._access.tables
        # A table that this process does not know may be another client's, created since the last refresh.
        if tables.catalogue.newest(database, table).version == 0:
            tables.refresh()
        return tables.catalogue.newest(database, table)


class Writer:
    """Writes rows of one table. A context manager that flushes at its end; made by `Client.writer`."""

    def __init__(self, client: Client, writer: RowWriter, tags: tuple[str, ...] | None) -> None:
        self._client = client
        self._writer = writer
        self._tags = tags

    @property
    def rows(self) -> int:
        """Rows written so far."""
        return self._writer.written.rows

    @property
    def points(self) -> int:
        """Field values written so far, nulls not counted."""
        return self._writer.written.points

    def write(self, data: Any) -> None:
        """Write rows from pyarrow, polars, pandas, a list of dicts or a dict of columns. Large batches are
        far cheaper.

        `time` is a timestamp of any unit (UTC without a zone) or an integer of nanoseconds; digits finer than
        the table's resolution are an error, and never rounded. New columns
        become fields; a field of whole numbers becomes one of decimals with the first decimal. With a quorum
        of 0 or 1 a later call raises the errors of appending, and writes nothing then. Raises ColumnMissing,
        ColumnTypeError, TimeRangeError, TypeClash and SchemaError, which name the column, before anything is written.
        So do RowsRepeat: no tags were named for a new table, and rows share a time; and TimesImplausible: integers
        look like another unit.
        """
        self._client._lifetime.check()
        rows = arrow_table(data)
        if rows.num_columns == 0:
            return
        schema = self._client._schema_of(self._writer.database, self._writer.table)
        known = [name for name in schema.tags if name in rows.column_names]
        self._writer.write(rows, None if self._tags is None and not known else {*(self._tags or ()), *known})

    def flush(self) -> dict[str, int]:
        """Wait for everything written so far; the newest offset in each log, by its topic.

        Raises WriteFailed, WriteUnknown.
        """
        self._client._lifetime.check()
        offsets = self._writer.flush()
        self._client._writers.note(offsets)
        return offsets

    def close(self) -> None:
        """Flush and take no more rows. Raises as `flush`."""
        self._client._lifetime.check_process()
        self._client._writers.close_one(self._writer)

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client._lifetime.is_forked:
            return
        try:
            self._writer.__exit__(kind, error, trace)
        finally:
            self._client._writers.closed(self._writer)

    def __reduce__(self) -> NoReturn:
        not_pickled("writer")


def _ns(point: Time | None) -> int | None:
    """A point in time as nanoseconds since 1970, UTC."""
    return None if point is None else bound_ns(arrow_table([{TIME_COLUMN: point}]))


def _table(database: object, table: object) -> tuple[str, str]:
    return given_text("database", database), given_text("table", table)


def _property(name: str) -> str:
    return name if "." in name else name.replace("__", "\0").replace("_", ".").replace("\0", "_")
