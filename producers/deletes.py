"""Deletes rows: one message to the log of every group, since a delete may match rows of any slot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.producers.acks import Quorum
from headrace.producers.cluster import Cluster
from headrace.producers.sender import Sender
from headrace.producers.writer import WriterSettings
from headrace.schemas.errors import HeadraceError
from headrace.schemas.messages import Delete
from headrace.schemas.near_names import near_tables
from headrace.schemas.tables import KEEP_FOREVER_NS, TableSchema

UNIT = "delete messages"
RETENTION_MIN_NS = 1_000_000_000


class DeleteInvalid(HeadraceError):
    """A delete that can match no row: an unknown table or tag, an empty range of time."""

    exit_code = 2


def delete_rows(
    cluster: Cluster,
    database: str,
    table: str,
    tags: Mapping[str, str | Iterable[str]] | None = None,
    start_ns: int | None = None,
    end_ns: int | None = None,
    settings: WriterSettings | None = None,
) -> dict[str, int]:
    """Hide every matching row written before this call; returns the delete's offset in each group's log.

    A row matches when each tag has one of the given values (an empty value is an absent tag) and start <=
    time < end; None leaves a side open. Raises DeleteInvalid before anything is written, and WriteFailed,
    WriteUnknown and QuorumTimeout.
    """
    settings = settings or WriterSettings()
    quorum = Quorum(
        cluster.log, cluster.topics, cluster.slot_table, cluster.watch, settings.quorum, settings.quorum_timeout_ms
    )
    body = delete_message(known_table(cluster, database, table), tags or {}, start_ns, end_ns)
    sender = Sender(cluster.appender, cluster.forward_topic, UNIT, receipts=quorum.watched)
    sender.append(sender.encode([(group, body, 1) for group in cluster.slot_table.headers]))
    offsets = sender.flush(settings.flush_timeout_s)
    quorum.confirm(sender.written(), len(offsets), UNIT)
    return offsets


def drop_table(cluster: Cluster, database: str, table: str, settings: WriterSettings | None = None) -> dict[str, int]:
    """Delete every row of a table, and list it no more while it is empty. Returns and raises as `delete_rows`."""
    offsets = delete_rows(cluster, database, table, settings=settings)
    # Behind the deletes: a table that is hidden has lost its rows.
    cluster.tables.drop(database, table)
    return offsets


def set_retention(cluster: Cluster, database: str, table: str, retention_ns: int | None) -> TableSchema:
    """Keep the rows of a table for so long, None = for ever; returns the schema that has it.

    Leaders drop whole slices that are older. Raises DeleteInvalid, SchemaContended.
    """
    if retention_ns is not None and not RETENTION_MIN_NS <= retention_ns < KEEP_FOREVER_NS:
        raise DeleteInvalid("a table keeps its rows for a second at least", action="give a time such as 30d")
    known_table(cluster, database, table)
    return cluster.tables.ensure(database, table, (), {}, KEEP_FOREVER_NS if retention_ns is None else retention_ns)


def known_table(cluster: Cluster, database: str, table: str) -> TableSchema:
    """The newest schema of a table. Raises DeleteInvalid."""
    # A table or tag that another writer has just created must not be refused as unknown.
    cluster.tables.refresh()
    schema = cluster.tables.catalogue.newest(database, table)
    if schema.version == 0:
        raise no_table(cluster, database, table)
    return schema


def no_table(cluster: Cluster, database: str, table: str) -> DeleteInvalid:
    """The error for a table that does not exist, with the names that it may have meant."""
    catalogue = cluster.tables.catalogue
    near = near_tables((database, table), sorted(key for key in catalogue.tables if not catalogue.is_dropped(*key)))
    return DeleteInvalid(
        f"there is no table {database}.{table}",
        action=f"did you mean {', '.join(near)}?" if near else "SHOW TABLES lists what there is",
    )


def delete_message(
    schema: TableSchema, tags: Mapping[str, str | Iterable[str]], start_ns: int | None, end_ns: int | None
) -> Delete:
    """The message that deletes these rows of a table. Raises DeleteInvalid."""
    # Refused, not ignored: without the misspelt tag the delete would hide rows of every series.
    unknown = sorted(set(tags) - set(schema.tags))
    if unknown:
        raise DeleteInvalid(
            f"{schema.database}.{schema.table} has no tag {unknown[0]!r}",
            action=f"its tags are {', '.join(schema.tags) or 'none'}",
        )
    # In order of name: the digest of the message, by which replicas drop repeats, covers the order too.
    values = {name: (given,) if isinstance(given, str) else tuple(given) for name, given in sorted(tags.items())}
    empty = next((name for name, given in values.items() if not given), None)
    if empty is not None:
        raise DeleteInvalid(f"no value is given for tag {empty!r}", action="leave the tag out to match every value")
    if start_ns is not None and end_ns is not None and start_ns >= end_ns:
        raise DeleteInvalid("the range of time is empty", action="give a start before the end")
    return Delete(schema.database, schema.table, values, start_ns, end_ns)
