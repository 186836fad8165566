"""Writing through one node over HTTP: to a node without Kafka, or where only a node can be reached.

Rows are parsed and checked here, and sent as Arrow IPC streams. A request that failed or whose fate is unknown is
repeated: rows are upserts, so writing them again is safe.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

import pyarrow as pa

from headrace._access import RowWriter
from headrace._node_errors import not_a_node
from headrace.connectors.deadline import Deadline
from headrace.connectors.formats.time_rules import as_timestamps
from headrace.connectors.http import AnswerCut, NodeUnreachable
from headrace.node_client import NodeClient
from headrace.producers.acks import QuorumTimeout
from headrace.producers.router import RowTooLarge
from headrace.producers.sender import WriteFailed, WriteUnknown
from headrace.producers.writer import (
    WriterClosed,
    WriterSettings,
    Written,
    check_new_table,
    counting_unwritten,
    fields_of,
    normal_rows,
    table_resolution,
)
from headrace.schemas.errors import HeadraceError, StateUnknown
from headrace.schemas.table_documents import read_catalogue
from headrace.schemas.tables import Catalogue, check_name, plan_change

REQUEST_BYTES_MAX = 8 << 20
"""Rows of one request, in memory. A node that takes less answers 413, and gets smaller ones."""
ROWS_MAX = 1 << 20
RETRY_TIMEOUT_S = 60.0
"""A node that restarts, or waits for space, answers within this, or the write fails."""
RETRY_PAUSE_S = 0.2
RETRY_PAUSE_MAX_S = 5.0
TOO_LARGE = 413
T = TypeVar("T")


class NodeSchemas:
    """See Schemas: what a node knows."""

    def __init__(self, node: NodeClient) -> None:
        self._node = node
        self.catalogue = Catalogue()

    def refresh(self, timeout_s: float | None = None) -> None:
        """See Schemas; `timeout_s` bounds the wait for the node. Raises NodeRefused where something other than a node
        of this build answers.
        """
        node = self._node if timeout_s is None else NodeClient(self._node.url, answer_timeout_s=timeout_s)
        document = node.schemas()
        try:
            read_catalogue(document, self.catalogue)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise not_a_node(self._node.url) from error


class NodeAccess:
    """See ClusterAccess: through one node."""

    def __init__(self, url: str) -> None:
        """Raises NodeAddressInvalid."""
        self._node = NodeClient(url)
        self.url = self._node.url
        self.tables = NodeSchemas(self._node)

    def writer(self, database: str, table: str, settings: WriterSettings) -> RowWriter:
        """See ClusterAccess."""
        return NodeTableWriter(self._node, self.tables, database, table, settings)

    def delete(
        self,
        database: str,
        table: str,
        tags: Mapping[str, str | Iterable[str]],
        start_ns: int | None,
        end_ns: int | None,
        settings: WriterSettings,
    ) -> Mapping[str, int]:
        """See ClusterAccess."""
        given = {name: [values] if isinstance(values, str) else list(values) for name, values in tags.items()}
        document = {"database": database, "table": table, "tags": given, "start": start_ns, "end": end_ns}
        return self._command("/api/v1/delete", {**document, "quorum": settings.quorum})

    def drop(self, database: str, table: str, settings: WriterSettings) -> Mapping[str, int]:
        """See ClusterAccess."""
        return self._command("/api/v1/drop", {"database": database, "table": table, "quorum": settings.quorum})

    def set_retention(self, database: str, table: str, keep_ns: int | None) -> None:
        """See ClusterAccess."""
        self._node.post("/api/v1/retention", {"database": database, "table": table, "keep_ns": keep_ns})

    def close(self) -> None:
        """See ClusterAccess; each request has had its own connection."""

    def _command(self, path: str, document: Mapping[str, Any]) -> Mapping[str, int]:
        # Not repeated here: behind a delete whose fate is unknown, others may have written again.
        try:
            return dict(self._node.post(path, document)["offsets"])
        except (NodeUnreachable, AnswerCut) as error:
            if isinstance(error, NodeUnreachable) and not error.sent:
                raise
            raise WriteUnknown(
                f"{self.url} did not confirm it: {error.message}", rows=0, action="look before doing it again"
            ) from error


class NodeTableWriter:
    """See RowWriter. Each call of `write` returns when the node has its rows in its log."""

    def __init__(
        self, node: NodeClient, tables: NodeSchemas, database: str, table: str, settings: WriterSettings
    ) -> None:
        """Raises SchemaError."""
        check_name("database", database)
        self.database = database
        self.table = table
        self.written = Written()
        self._node = node
        self._tables = tables
        self._settings = settings
        self._lock = threading.RLock()
        self._newest: dict[str, int] = {}
        self._rows_max = ROWS_MAX
        self._closed = False

    def write(self, rows: pa.Table, tags: Collection[str] | None) -> None:
        """See RowWriter. Raises what TableWriter raises, NodeUnreachable, and NodeRefused."""
        with self._lock:
            if self._closed:
                raise WriterClosed(f"this writer of {self.database}.{self.table} is closed", action="open another one")
            rows = normal_rows(rows, self.table, tags or ())
            if tags is None:
                check_new_table(self._tables, self.database, self.table, rows)
            tags = tags or ()
            table_resolution(self._tables, self._settings, self.database, self.table, rows)
            known = self._tables.catalogue.newest(self.database, self.table)
            change = plan_change(known, sorted(tags), fields_of(rows.schema, tags))
            if change is not None or rows.num_rows:
                self._send(rows, sorted(tags))
            if change is not None:
                self._tables.refresh()

    def flush(self) -> dict[str, int]:
        """See RowWriter; nothing waits here."""
        return self.newest()

    def newest(self) -> dict[str, int]:
        """See RowWriter."""
        return dict(self._newest)

    @property
    def is_settled(self) -> bool:
        """See RowWriter; each call has its answer."""
        return True

    def close(self) -> dict[str, int]:
        """See RowWriter."""
        self._closed = True
        return self.newest()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _send(self, rows: pa.Table, tags: Collection[str]) -> None:
        """Send rows in requests of at most so many bytes, at least one request."""
        start = 0
        while True:
            count = max(1, min(self._rows_max, REQUEST_BYTES_MAX * rows.num_rows // max(1, rows.nbytes)))
            part = rows.slice(start, count)
            try:
                with counting_unwritten(rows.num_rows - start - len(part)):
                    answer = self._sent(part, tags)
            except HeadraceError as error:
                if getattr(error, "status", 0) != TOO_LARGE or not len(part):
                    raise
                if len(part) == 1:
                    # Of other rows this shows nothing: they must not be sent one by one from now on.
                    self._rows_max = ROWS_MAX
                    name = f"{self.database}.{self.table}"
                    raise RowTooLarge(f"a row of {name}: {error.message}", action="shorten its strings") from error
                # Its limit is smaller than ours: all further requests are smaller as well.
                self._rows_max = len(part) // 2
                continue
            self._note(answer)
            start += count
            if start >= rows.num_rows:
                return

    def _sent(self, part: pa.Table, tags: Collection[str]) -> Mapping[str, Any]:
        parameters, stream = self._parameters(tags), _stream(as_timestamps(part))
        return repeated(lambda: self._node.write(parameters, stream), len(part))

    def _note(self, answer: Mapping[str, Any]) -> None:
        self.written.rows += int(answer["rows"])
        self.written.points += int(answer["points"])
        for topic, offset in answer["offsets"].items():
            self._newest[topic] = max(int(offset), self._newest.get(topic, -1))

    def _parameters(self, tags: Collection[str]) -> dict[str, str | list[str]]:
        settings = self._settings
        return {
            "database": self.database,
            "table": self.table,
            # One each, and not `tags=A,B`: a name may have a comma. A table without tags is meant so here.
            "tags": "",
            "tag": list(tags),
            "quorum": str(settings.quorum),
            "quorum_timeout_ms": str(settings.quorum_timeout_ms),
            "resolution": str(settings.resolution),
            "required": str(settings.resolution_required).lower(),
        }


def repeated(call: Callable[[], T], rows: int, timeout_s: float = RETRY_TIMEOUT_S) -> T:
    """The answer to a request that may be sent again, until it is final or `timeout_s` has passed.

    Raises its error; WriteUnknown if an attempt may have been carried out and no answer confirms it, WriteFailed if
    certainly none was.
    """
    deadline, unknown, pause_s = Deadline(timeout_s), False, RETRY_PAUSE_S
    while True:
        try:
            return call()
        except HeadraceError as error:
            # Its rows are in the log: only the members are late, and sending them again hurries nobody.
            if isinstance(error, QuorumTimeout) or not _may_repeat(error):
                # An answer has their number in its message alone.
                if isinstance(error, QuorumTimeout | WriteFailed):
                    error.rows = rows
                raise
            unknown = unknown or _may_be_done(error)
            if deadline.passed():
                raise _given_up(error, rows, timeout_s, unknown=unknown) from error
            wanted_s = max(pause_s, getattr(error, "retry_after_s", 0.0))
        time.sleep(min(wanted_s, RETRY_PAUSE_MAX_S, deadline.left_s()))
        pause_s = min(2 * pause_s, RETRY_PAUSE_MAX_S)


def _may_repeat(error: HeadraceError) -> bool:
    return error.retriable or isinstance(error, StateUnknown | AnswerCut)


def _may_be_done(error: HeadraceError) -> bool:
    return isinstance(error, StateUnknown | AnswerCut) or getattr(error, "sent", False)


def _given_up(error: HeadraceError, rows: int, timeout_s: float, *, unknown: bool) -> HeadraceError:
    why = f"for {timeout_s:g} s the node did not take them: {error.message}"
    if unknown:
        return WriteUnknown(f"{rows:,} rows may be written: {why}", rows=rows, action="writing them again is safe")
    return WriteFailed(f"{rows:,} rows were not written: {why}", rows=rows, action=error.action, retriable=True)


def _stream(rows: pa.Table) -> memoryview:
    for index, column in enumerate(rows.columns):
        # A part of many rows has the dictionary of all of them.
        if pa.types.is_dictionary(column.type) and any(len(each.dictionary) > len(rows) for each in column.chunks):
            rows = rows.set_column(index, rows.column_names[index], column.cast(pa.string()).dictionary_encode())
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return memoryview(sink.getvalue())
