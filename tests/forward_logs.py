"""Decodes the forward logs of a cluster back into user rows, for tests of writers."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace.connectors.log.kafka import KafkaLog
from headrace.connectors.log.port import read_to_end
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.bootstrap import join_cluster
from headrace.schemas.messages import Message, Write, decode_message
from headrace.schemas.payload import SERIES_COLUMN, decode_rows
from headrace.schemas.records import Create
from headrace.schemas.series import tag_columns
from headrace.workload.checksum import checksums, total

NODES = ("n1", "n2", "n3")


def create_cluster(bootstrap: str, name: str) -> None:
    """Create a cluster of three nodes, none of which is started."""
    log = KafkaLog(bootstrap)
    join_cluster(log, Topics(name), Create(NODES, 3, 10_000))
    log.close()


def messages(bootstrap: str, cluster: str) -> list[tuple[str, Message]]:
    """(group, message) of every record in the forward logs."""
    log, topics = KafkaLog(bootstrap), Topics(cluster)
    try:
        return [
            (name, decode_message(record.value))
            for name in NODES
            for record in read_to_end(log, topics.forward(name), timeout_s=30)
        ]
    finally:
        log.close()


def user_rows(write: Write, tags: tuple[str, ...]) -> pa.Table:
    """The rows of a message as a user table."""
    rows = decode_rows(write.rows)
    series = rows.column(SERIES_COLUMN)
    columns = tag_columns(series.dictionary.to_pylist(), tags)
    dictionaries = {
        name: pa.DictionaryArray.from_arrays(series.indices, values).cast(pa.string()).dictionary_encode()
        for name, values in columns.items()
    }
    return pa.table({**dictionaries, **{name: rows.column(name) for name in rows.schema.names[1:]}})


def tables(bootstrap: str, cluster: str, table: str, tags: tuple[str, ...]) -> list[pa.Table]:
    """The rows of a table, one Arrow table for each message."""
    bodies = [message.body for _, message in messages(bootstrap, cluster)]
    return [user_rows(body, tags) for body in bodies if isinstance(body, Write) and body.table == table]


def stored_checksums(bootstrap: str, cluster: str, table: str, tags: tuple[str, ...]) -> pa.Table:
    """Checksums of a table's rows in the forward logs."""
    return total([checksums(rows, tags) for rows in tables(bootstrap, cluster, table, tags)])


def dicts(bootstrap: str, cluster: str, table: str = "t", tags: tuple[str, ...] = ("host",)) -> list[dict[str, Any]]:
    """All rows of a table in the forward logs, by time."""
    rows = [row for found in tables(bootstrap, cluster, table, tags) for row in found.to_pylist()]
    return sorted(rows, key=lambda row: (row["time"], str(row)))
