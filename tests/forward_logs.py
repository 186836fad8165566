"""What the forward logs of a cluster hold, for tests that write: decoded back into the rows that users gave."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from connectors.log.kafka import KafkaLog
from connectors.log.port import read_to_end
from connectors.log.topics import Topics
from consumers.membership.cluster import join_cluster
from headrace.workload.checksum import checksums, total
from schemas.messages import Message, Write, decode_message
from schemas.payload import SERIES_COLUMN, decode_rows
from schemas.records import Create
from schemas.series import tag_columns

NODES = ("n1", "n2", "n3")


def create_cluster(bootstrap: str, name: str) -> None:
    """Give birth to a cluster of three nodes that nobody starts."""
    log = KafkaLog(bootstrap)
    join_cluster(log, Topics(name), Create(NODES, 3, 10_000))
    log.close()


def messages(bootstrap: str, cluster: str) -> list[tuple[str, Message]]:
    """(group, message) of everything in the forward logs."""
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
    """The rows of a message as a user table again."""
    rows = decode_rows(write.rows)
    series = rows.column(SERIES_COLUMN)
    columns = tag_columns(series.dictionary.to_pylist(), tags)
    dictionaries = {
        name: pa.DictionaryArray.from_arrays(series.indices, values).cast(pa.string()).dictionary_encode()
        for name, values in columns.items()
    }
    return pa.table({**dictionaries, **{name: rows.column(name) for name in rows.schema.names[1:]}})


def tables(bootstrap: str, cluster: str, table: str, tags: tuple[str, ...]) -> list[pa.Table]:
    """The rows of a table, one Arrow table a message."""
    bodies = [message.body for _, message in messages(bootstrap, cluster)]
    return [user_rows(body, tags) for body in bodies if isinstance(body, Write) and body.table == table]


def stored_checksums(bootstrap: str, cluster: str, table: str, tags: tuple[str, ...]) -> pa.Table:
    """Checksums of what the forward logs hold of a table."""
    return total([checksums(rows, tags) for rows in tables(bootstrap, cluster, table, tags)])


def dicts(bootstrap: str, cluster: str, table: str = "t", tags: tuple[str, ...] = ("host",)) -> list[dict[str, Any]]:
    """All rows of a table in the forward logs, by time."""
    rows = [row for found in tables(bootstrap, cluster, table, tags) for row in found.to_pylist()]
    return sorted(rows, key=lambda row: (row["time"], str(row)))
