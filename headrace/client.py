"""Headrace from Python: write, delete and query readings.

with headrace.connect("127.0.0.1:9092", "headrace") as client:
    with client.writer("plant", "pumps", tags=["pump"]) as writer:
        writer.write([{"time": datetime.now(UTC), "pump": "p1", "flow": 12.5}])
    print(client.query("SELECT * FROM plant.pumps").to_pandas())
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from datetime import date, datetime, timedelta
from types import TracebackType
from typing import Any

import pyarrow as pa

from headrace._answers import QueryResult
from headrace._connection import CONNECT_TIMEOUT_S, close_cluster, open_cluster
from headrace._frames import arrow_table
from headrace._parameters import query_parameters
from headrace.connectors.deadline import Deadline
from headrace.connectors.http import AnswerCut, NodeRefused, NodeUnreachable
from headrace.consumers.query.query_errors import QueryError
from headrace.node_client import NodeClient
from headrace.producers.cluster import Cluster, MemberStatuses
from headrace.producers.deletes import delete_rows, known_table, set_retention
from headrace.producers.writer import TableWriter, WriterInvalid, WriterSettings, normal_rows
from headrace.schemas.durations import DURATION_S_MAX, duration_s
from headrace.schemas.errors import HeadraceError
from headrace.schemas.records import Role
from headrace.schemas.tables import TIME_COLUMN, TableSchema, TimeResolution
from headrace.settings import Settings, load_settings

FIND_TIMEOUT_S = 10.0
RETRY_S = 0.2
ANSWER_TIMEOUT_S = 600.0
# The node ends a query at its timeout. The client waits longer, to get the error that says so and not a
# closed socket.
GRACE_S = 15.0

Time = int | str | date | datetime


class NoNode(HeadraceError):
    """No node of the cluster answers."""


def connect(
    bootstrap: str | None = None,
    cluster: str | None = None,
    *,
    timeout_s: float = CONNECT_TIMEOUT_S,
    **librdkafka: object,
) -> Client:
    """Connect to a cluster; what is not given comes from the environment and `headrace.toml`.

    `librdkafka` are settings of that library, verbatim (`**{"linger.ms": 5}`) or with `_` for each dot
    (`linger_ms=5`, `log__level=3` for `log_level`). Raises LogUnavailable when Kafka does not answer within
    `timeout_s`, NoCluster, SettingsInvalid.
    """
    kafka = {_property(name): value for name, value in librdkafka.items()}
    settings = load_settings({"cluster.bootstrap": bootstrap, "cluster.name": cluster, "kafka": kafka})
    return Client(open_cluster(settings, timeout_s=timeout_s), settings)


class Client:
    """One connection to one cluster.

    A context manager; every method may be called from any thread. Made by `connect`.
    """

    def __init__(self, cluster: Cluster, settings: Settings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._lock = threading.Lock()
        self._writers: list[Writer] = []
        self._newest: dict[str, int] = {}
        self._node = settings.node.url

    def writer(
        self,
        database: str,
        table: str,
        tags: Iterable[str] = (),
        *,
        quorum: int | None = None,
        quorum_timeout_ms: int | None = None,
        resolution: str | None = None,
    ) -> Writer:
        """A writer of one table. `tags` names the columns that identify a series; a table keeps the tags it
        has.

        `quorum`: 0 = not awaited, 1 = in the log (the default), k = held durably by k members of the group
        when `write` returns. Raises QuorumTooLarge when a group has fewer members. `resolution`: `us` or `ns`,
        the finest digits of the times of a new table; by default the setting `write.time_resolution`, which is
        `us`. A table keeps its resolution: `write` raises ResolutionFixed if another one is given here.
        """
        settings = self._writer_settings(quorum, quorum_timeout_ms, resolution)
        made = Writer(self, TableWriter(self._cluster, database, table, settings), _names(tags))
        with self._lock:
            self._writers.append(made)
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
        that are nanoseconds. Raises DeleteInvalid for a table or a tag that does not exist.
        """
        self.flush()
        offsets = delete_rows(
            self._cluster, database, table, tags, _ns(start), _ns(end), self._writer_settings(quorum, None)
        )
        self._note(offsets)

    def drop_table(self, database: str, table: str, *, quorum: int | None = None) -> None:
        """Delete every row of a table written before this call; nodes then remove its files.

        Its name and columns stay known, and a later write uses them again. Raises DeleteInvalid.
        """
        self.delete(database, table, quorum=quorum)

    def set_retention(self, database: str, table: str, keep: timedelta | None) -> None:
        """Keep the rows of a table for so long, None = for ever. Nodes drop whole time slices that are older.

        Raises DeleteInvalid for a table that does not exist, and for less than a second.
        """
        keep_ns = None if keep is None else keep // timedelta(microseconds=1) * 1_000
        set_retention(self._cluster, database, table, keep_ns)

    def query(
        self,
        sql: str,
        parameters: Mapping[str, Any] | None = None,
        *,
        timeout_ms: int | None = None,
        node: str | None = None,
        stale: float | str | timedelta | None = None,
        stale_ok: bool = False,
    ) -> QueryResult:
        """The answer to a SQL query, from any live node, or from the one at the URL `node`.

        `parameters` are the values of the names that the SQL writes as `$name`: numbers, texts, booleans,
        dates, datetimes (UTC without a zone), None, and lists of them.

        It contains everything this client wrote before. While no node serves, for example without Kafka, a node
        may answer from what it had at most `stale` ago (`"60s"`, seconds, a timedelta; `stale_ok`: at any age; 0:
        never; default: `query.stale_max_s`). `QueryResult.as_of` is then not None. Raises the QueryError that the
        node raised, NodeUnreachable, NoNode when no live node is known, and DurationInvalid.
        """
        stale_s = self._stale_s(stale, stale_ok)
        # The node answers when it has applied these offsets: clients read their own writes at every node.
        after, values = self.flush(), query_parameters(parameters)
        deadline = Deadline(FIND_TIMEOUT_S)
        while True:
            failure: HeadraceError | None = None
            # A node that serves is better than any that does not: the older answers are asked for behind all of them.
            urls = [node] if node else self._nodes(deadline)
            ways = [(url, 0.0 if stale_s else stale_s) for url in urls] + [(url, stale_s) for url in urls if stale_s]
            for url, within_s in ways:
                try:
                    answer = _query_node(url, sql, values, after, timeout_ms, within_s)
                except (QueryError, NodeRefused, NodeUnreachable, AnswerCut) as error:
                    # Errors in the SQL are the same everywhere; a node that is down or behind says nothing
                    # about the others.
                    if not error.retriable:
                        raise
                    failure = error
                    continue
                self._node = self._node if node else url
                return answer
            if deadline.passed():
                raise failure or NoNode(
                    f"no live node of cluster {self._cluster.topics.cluster!r} is known",
                    action="start its nodes, or give the URL of a node",
                    retriable=True,
                )
            time.sleep(min(RETRY_S, deadline.left_s()))

    def tables(self) -> list[TableSchema]:
        """Every table of the cluster with its newest schema, in order of name."""
        self._cluster.tables.refresh()
        catalogue = self._cluster.tables.catalogue
        return [catalogue.newest(*key) for key in sorted(catalogue.tables)]

    def table(self, database: str, table: str) -> TableSchema:
        """One table with its newest schema. Raises DeleteInvalid when there is none."""
        return known_table(self._cluster, database, table)

    def flush(self) -> dict[str, int]:
        """Wait for everything that this client wrote; the newest offset in each group's log.

        Raises WriteFailed, WriteUnknown.
        """
        with self._lock:
            writers = list(self._writers)
        for writer in writers:
            writer.flush()
        with self._lock:
            return dict(self._newest)

    def close(self) -> None:
        """Flush and close every writer, then the connection. Raises the first error of a writer."""
        with self._lock:
            writers = list(self._writers)
        failures = []
        for writer in writers:
            # Every writer is flushed, also behind one that fails: its rows would be lost otherwise.
            try:
                writer.close()
            except HeadraceError as error:
                failures.append(error)
        close_cluster(self._cluster)
        if failures:
            raise failures[0]

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except HeadraceError as also:
            # The error of the body is the cause. One of closing must not replace it.
            if error is None:
                raise
            error.add_note(f"also: {also}")

    def _stale_s(self, stale: float | str | timedelta | None, stale_ok: bool) -> float | None:
        if stale is not None:
            return duration_s(stale)
        return float(DURATION_S_MAX) if stale_ok else self._settings.query.stale_max_s or None

    def _writer_settings(
        self, quorum: int | None, quorum_timeout_ms: int | None, resolution: str | None = None
    ) -> WriterSettings:
        defaults = self._settings.write
        if resolution not in (None, *TimeResolution):
            raise WriterInvalid(
                f"resolution {resolution!r} is unknown", action=f"use one of {', '.join(TimeResolution)}"
            )
        return WriterSettings(
            defaults.quorum if quorum is None else quorum,
            defaults.quorum_timeout_ms if quorum_timeout_ms is None else quorum_timeout_ms,
            defaults.compression,
            resolution=TimeResolution(resolution or defaults.time_resolution),
            resolution_required=resolution is not None,
        )

    def _tags_of(self, database: str, table: str) -> tuple[str, ...]:
        tables = self._cluster.tables
        # A table that this process does not know may be another client's, created since the last refresh.
        if tables.catalogue.newest(database, table).version == 0:
            tables.refresh()
        return tables.catalogue.newest(database, table).tags

    def _note(self, offsets: Mapping[str, int], closed: Writer | None = None) -> None:
        with self._lock:
            for group, offset in offsets.items():
                self._newest[group] = max(offset, self._newest.get(group, -1))
            if closed in self._writers:
                self._writers.remove(closed)

    def _nodes(self, deadline: Deadline) -> list[str]:
        """URLs of nodes to ask: the one that answered last, then those that serve most groups."""
        watch = self._cluster.watch
        # Here and not in `connect`: a client that only writes consumes no status topic.
        watch.start()
        if not self._node:
            watch.wait_for(lambda statuses: bool(live_nodes(statuses)), deadline.left_s())
        found = live_nodes(watch.statuses)
        return [self._node, *(url for url in found if url != self._node)] if self._node else found


class Writer:
    """Writes rows of one table. A context manager that flushes at its end; made by `Client.writer`."""

    def __init__(self, client: Client, writer: TableWriter, tags: tuple[str, ...]) -> None:
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
        of 0 or 1 a later call raises the errors of appending. Raises ColumnMissing, ColumnTypeError,
        TimeRangeError, TypeClash and SchemaError, which name the column, before anything is written.
        """
        rows = arrow_table(data)
        if rows.num_columns == 0:
            return
        known = self._client._tags_of(self._writer.database, self._writer.table)
        self._writer.write(rows, {*self._tags, *(name for name in known if name in rows.column_names)})

    def flush(self) -> dict[str, int]:
        """Wait for everything written so far; the newest offset in each group's log.

        Raises WriteFailed, WriteUnknown.
        """
        offsets = self._writer.flush()
        self._client._note(offsets)
        return offsets

    def close(self) -> None:
        """Flush and take no more rows. Raises as `flush`."""
        try:
            self._writer.close()
        finally:
            self._client._note(self._writer.newest(), closed=self)

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._writer.__exit__(kind, error, trace)
        finally:
            self._client._note(self._writer.newest(), closed=self)


def _query_node(
    url: str,
    sql: str,
    parameters: Mapping[str, Any],
    after: Mapping[str, int],
    timeout_ms: int | None,
    stale_s: float | None,
) -> QueryResult:
    wait_s = ANSWER_TIMEOUT_S if timeout_ms is None else timeout_ms / 1_000 + GRACE_S
    as_of: list[datetime] = []
    chunks = NodeClient(url, answer_timeout_s=wait_s).query(
        sql,
        format="arrow",
        after=after,
        timeout_ms=timeout_ms,
        parameters=parameters,
        stale_s=stale_s,
        on_as_of=as_of.append,
    )
    with pa.ipc.open_stream(pa.py_buffer(b"".join(chunks))) as reader:
        return QueryResult(reader.read_all(), next(iter(as_of), None))


def live_nodes(statuses: MemberStatuses) -> list[str]:
    """URLs of the nodes that are alive, those first that serve most groups."""
    # A group that is not in sync is behind its log: a query that waits for newer offsets fails there with
    # NotCaughtUp.
    serving: dict[str, int] = {}
    for status in statuses.online():
        if status.http:
            serving[status.http] = serving.get(status.http, 0) + int(status.role is not Role.UNSYNCED)
    return sorted(serving, key=lambda url: -serving[url])


def _ns(point: Time | None) -> int | None:
    """A point in time as nanoseconds since 1970, UTC."""
    if point is None:
        return None
    rows = normal_rows(arrow_table([{TIME_COLUMN: point}]), "time", ())
    return int(rows.column(TIME_COLUMN)[0].as_py())


def _names(tags: Iterable[str]) -> tuple[str, ...]:
    return (tags,) if isinstance(tags, str) else tuple(tags)


def _property(name: str) -> str:
    return name if "." in name else name.replace("__", "\0").replace("_", ".").replace("\0", "_")
