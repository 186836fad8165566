"""A cluster in memory for tests of producers: logs that fail or stay silent, members that follow, writers."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import pyarrow as pa

from headrace.connectors.log.memory import MemoryAppender, MemoryLog
from headrace.connectors.log.port import Headers, OnDelivery
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.bootstrap import join_cluster
from headrace.consumers.membership.schema_log import SchemaLog
from headrace.consumers.replication.heartbeat import StatusWatch
from headrace.producers.cluster import Cluster, FixedRouting
from headrace.producers.writer import TableWriter, WriterSettings
from headrace.schemas.errors import HeadraceError
from headrace.schemas.messages import Message, Write, decode_message
from headrace.schemas.payload import SERIES_COLUMN, decode_rows
from headrace.schemas.receipts import receipt_of, value_digest
from headrace.schemas.records import Create, Role, Status, encode_status
from headrace.schemas.tables import TimeResolution

TOPICS = Topics("c")
NODES = ("n1", "n2", "n3")
DAY_NS = 86_400_000_000_000


def status_of(**given_fields: Any) -> Status:
    """A status with the given fields and neutral values for the rest."""
    neutral = {
        "str": "",
        "int": 0,
        "bool": True,
        "bytes": bytes(16),
        "Role": Role.FOLLOWER,
        "tuple[Acceptance, ...]": (),
    }
    return Status(**{field.name: given_fields.get(field.name, neutral[str(field.type)]) for field in fields(Status)})


class FailingAppender(MemoryAppender):
    """Fails one append to a forward log for each given error; then works."""

    def __init__(self, log: MemoryLog) -> None:
        super().__init__(log)
        self.errors: list[HeadraceError] = []

    def append(
        self,
        topic: str,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """See Appender."""
        if self.errors and on_delivery is not None:
            on_delivery(None, self.errors.pop(0))
        else:
            super().append(topic, value, key=key, headers=headers, on_delivery=on_delivery)


class FollowedAppender(MemoryAppender):
    """The named members hold each record of a group at once, `late` ones some milliseconds after it.

    Their statuses have the given `state`.
    """

    def __init__(
        self, scene: Scene, members: dict[str, tuple[str, ...]], late: tuple[str, ...] = (), **state: Any
    ) -> None:
        super().__init__(scene.log)
        self._scene = scene
        self._members = {TOPICS.forward(group): (group, nodes) for group, nodes in members.items()}
        self._late = late
        self._state = state

    def append(
        self,
        topic: str,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """See Appender."""
        super().append(topic, value, key=key, headers=headers, on_delivery=on_delivery)
        group, nodes = self._members.get(topic, ("", ()))
        for node in nodes:
            if node in self._late:
                threading.Timer(0.05, self._scene.hold, (node, group)).start()
            else:
                self._scene.hold(node, group, **self._state)


class SilentAppender(MemoryAppender):
    """Accepts every record and never reports a delivery."""

    def append(self, topic: str, value: bytes, **_: Any) -> None:
        """See Appender."""


class LateAppender(MemoryAppender):
    """Accepts every record, and reports its delivery when the test wants it."""

    def __init__(self, log: MemoryLog) -> None:
        super().__init__(log)
        self._reports: list[OnDelivery] = []

    def append(self, topic: str, value: bytes, *, on_delivery: OnDelivery | None = None, **_: Any) -> None:
        """See Appender."""
        assert on_delivery is not None
        self._reports.append(on_delivery)

    def report(self) -> None:
        """Every record was delivered."""
        for offset, report in enumerate(self._reports):
            report(offset, None)


@dataclass
class Scene:
    """A cluster of three nodes in memory."""

    log: MemoryLog
    cluster: Cluster

    def writer(self, table: str = "t", appender: MemoryAppender | None = None, **settings: Any) -> TableWriter:
        """A writer of `db.<table>`, whose times have nanoseconds unless the settings differ."""
        cluster = replace(self.cluster, appender=appender) if appender else self.cluster
        return TableWriter(cluster, "db", table, WriterSettings(**{"resolution": TimeResolution.NS, **settings}))

    def messages(self) -> list[tuple[str, Message]]:
        """(group, message) of every record in the forward logs."""
        return [
            (name, decode_message(record.value))
            for name in NODES
            for record in self.log.topic(TOPICS.forward(name)).records
        ]

    def rows(self) -> list[tuple[str, int, tuple[Any, ...]]]:
        """(series, time, fields) of every row written, sorted."""
        found = []
        for _, message in self.messages():
            assert isinstance(message.body, Write)
            for row in decode_rows(message.body.rows).to_pylist():
                series, time = row.pop(SERIES_COLUMN), row.pop("time")
                found.append((series, time, tuple(sorted(row.items()))))
        return sorted(found, key=row_order)

    def broadcast(self, node: str, group: str, durable_offset: int, receipts: bytes = b"", **fields: Any) -> None:
        """Broadcast a node's status."""
        known = {"topic_id": self.log.describe(TOPICS.forward(group)).topic_id, "log_lost": False, **fields}
        status = status_of(node=node, group=group, durable_offset=durable_offset, receipts=receipts, **known)
        self.log.store(TOPICS.status, encode_status(status), None, ())

    def hold(self, node: str, group: str, **fields: Any) -> None:
        """Broadcast the status of a node that has read the log of a group to its end."""
        records = self.log.topic(TOPICS.forward(group)).records
        receipts = b"".join(receipt_of(record.offset, value_digest(record.value)) for record in records)
        self.broadcast(node, group, records[-1].offset, receipts, **fields)


class open_scene:  # noqa: N801
    """The same for property tests, which need a new cluster for each example."""

    def __enter__(self) -> Scene:
        log = MemoryLog()
        slot_table = join_cluster(log, TOPICS, Create(NODES, 3, 10_000))
        self.watch = StatusWatch(log, TOPICS)
        self.tables = SchemaLog(log, TOPICS)
        return Scene(log, Cluster(log, TOPICS, FixedRouting(slot_table), self.tables, self.watch, log.appender()))

    def __exit__(self, *_: object) -> None:
        self.watch.close()
        self.tables.close()


def row_order(row: tuple[str, int, tuple[Any, ...]]) -> tuple[str, int, str]:
    """By series and time, then by any other difference of two rows."""
    return row[0], row[1], repr(row[2])


def readings(hosts: Sequence[str | None], times: list[int], **fields: list[Any]) -> pa.Table:
    """A user table with the tag `host`."""
    return pa.table({"host": pa.array(hosts, pa.string()), "time": pa.array(times, pa.int64()), **fields})


def write_one(writer: TableWriter, time_ns: int) -> None:
    """Write a single row."""
    writer.write(readings(["a"], [time_ns], v=[1]), ["host"])


def appended(writer: TableWriter, time_ns: int) -> None:
    """Write a single row without the check of earlier deliveries."""
    check, writer._sender.check = writer._sender.check, lambda: None  # type: ignore[method-assign]
    write_one(writer, time_ns)
    writer._sender.check = check  # type: ignore[method-assign]
