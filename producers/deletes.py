"""Deletes rows: one message to the log of every group, since a delete may match rows of any slot.

A group that ends gets it before the others. Where it comes too late there, the others have taken over its rows, and
their delete hides them; the other way round it would be in no log that the rows follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import pyarrow as pa

from headrace.connectors.deadline import Deadline
from headrace.connectors.formats.interface import TimeRangeError
from headrace.connectors.formats.time_rules import TimesImplausible
from headrace.connectors.log.port import TopicMissing
from headrace.producers.acks import Quorum
from headrace.producers.cluster import Cluster, Route, Schemas, groups_of
from headrace.producers.sender import Refused, RoutedMessage, Sender
from headrace.producers.writer import WriterSettings, normal_rows, offsets_by_topic
from headrace.schemas.errors import HeadraceError
from headrace.schemas.group_changes import GroupKey
from headrace.schemas.message_rules import check_body
from headrace.schemas.messages import Delete, Message, ProducerPosition, encode_message
from headrace.schemas.near_names import near_tables
from headrace.schemas.tables import KEEP_FOREVER_NS, TIME_COLUMN, TableSchema

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
    """Hide every matching row written before this call; returns the delete's offset in each log, by its topic.

    A row matches when each tag has one of the given values (an empty value is an absent tag) and start <=
    time < end; None leaves a side open. Raises DeleteInvalid before anything is written, and WriteFailed,
    WriteUnknown and QuorumTimeout.
    """
    settings = settings or WriterSettings()
    quorum = Quorum(
        cluster.log, cluster.topics, cluster.routing, cluster.watch, settings.quorum, settings.quorum_timeout_ms
    )
    body = delete_message(known_table(cluster.tables, database, table), tags or {}, start_ns, end_ns)
    sender = Sender(cluster.appender, cluster.topic_of, UNIT, receipts=quorum.watched)
    deadline = Deadline(settings.flush_timeout_s)

    def encode(groups: Sequence[GroupKey]) -> list[RoutedMessage]:
        return sender.encode([(group, body, 1) for group in groups])

    # Looked at first: a writer that knows a newer table may have written to a group that this process has not seen.
    # It ends: only a newer change of members makes another round, and the deadline covers all of them.
    while not _sent_to_all(cluster, cluster.routing.look(deadline.left_s()), sender, quorum, encode, deadline):
        pass
    offsets = sender.newest()
    # A group that has ended has no members that stay: what it has, the others have by their own record.
    route = cluster.routing.newest
    quorum.confirm({key: each for key, each in sender.written().items() if route.voters(key)}, len(offsets), UNIT)
    return offsets_by_topic(cluster.topics, offsets)


class GroupEnded(HeadraceError):
    """A group of a route took no record any more: members have changed since."""


def repeat_deletes(
    cluster: Cluster, route: Route, deletes: Sequence[tuple[ProducerPosition, Delete]], flush_timeout_s: float
) -> None:
    """Have every group of a route delete, each delete with a position of the caller: a repeat of it counts once.

    Raises MessageInvalid, SchemaError, WriteFailed, WriteUnknown and GroupEnded; all may then be repeated.
    """
    if not deletes:
        return
    quorum = Quorum(cluster.log, cluster.topics, cluster.routing, cluster.watch, 1, 0)
    sender = Sender(cluster.appender, cluster.topic_of, UNIT)
    # All of them before the first is sent: a list that replicas would ignore in part leaves nothing in any log.
    for _, body in deletes:
        check_body(body)
    values = [encode_message(Message(position, body)) for position, body in deletes]

    def encode(groups: Sequence[GroupKey]) -> list[RoutedMessage]:
        return [RoutedMessage(group, value, 1) for group in groups for value in values]

    if not _sent_to_all(cluster, route, sender, quorum, encode, Deadline(flush_timeout_s)):
        raise GroupEnded("a group ended while it was to delete", action="members change: try again", retriable=True)


Encode = Callable[[Sequence[GroupKey]], Sequence[RoutedMessage]]


def _sent_to_all(
    cluster: Cluster, route: Route, sender: Sender, quorum: Quorum, encode: Encode, deadline: Deadline
) -> bool:
    """Whether every group of a route has the delete, behind those that end. Raises WriteFailed, WriteUnknown.

    False if a group has ended meanwhile: the others must have it once more, since they had it before its rows.
    """
    # Of a group that has ended and takes no records any more, the others have everything, or get it as older rows.
    ending = [group for group in route.ending if route.holds(group) or _exists(cluster, group)]
    late = _send(sender, quorum, encode, ending, deadline)
    _fail_present(cluster, sender, late, deadline)
    refused = _send(
        sender, quorum, encode, [group for group in groups_of(route.table) if group not in route.ending], deadline
    )
    _fail_present(cluster, sender, refused, deadline)
    return not refused


def _fail_present(cluster: Cluster, sender: Sender, refused: Sequence[Refused], deadline: Deadline) -> None:
    """Raises WriteFailed for a group that refused the delete and is in the newest table all the same."""
    newest = cluster.routing.look(deadline.left_s()) if refused else None
    for each in refused:
        if newest is not None and newest.holds(each.message.group):
            sender.fail(each.message, each.error)
    sender.check()


def _send(
    sender: Sender, quorum: Quorum, encode: Encode, groups: Sequence[GroupKey], deadline: Deadline
) -> Sequence[Refused]:
    """Append the delete to some groups; those that refused it."""
    if not groups:
        return ()
    quorum.prepare(groups)
    sender.append(encode(groups), again=True)
    refused = sender.settled(deadline)
    sender.check()
    return refused


def _exists(cluster: Cluster, group: GroupKey) -> bool:
    """Whether the topic of a group that ends is still there."""
    try:
        cluster.log.describe(cluster.topic_of(group))
    except TopicMissing:
        return False
    return True


def drop_table(cluster: Cluster, database: str, table: str, settings: WriterSettings | None = None) -> dict[str, int]:
    """Delete every row of a table, and list it no more while it is empty. Returns and raises as `delete_rows`.

    Its retention ends: it would remove the rows of a later table of this name.
    """
    if known_table(cluster.tables, database, table).retention_ns not in (None, KEEP_FOREVER_NS):
        set_retention(cluster, database, table, None)
    offsets = delete_rows(cluster, database, table, settings=settings)
    # Behind the deletes: a table that is hidden has lost its rows.
    cluster.tables.drop(database, table)
    return offsets


def check_restricted(database: str, table: str, tags: object, start: object, end: object) -> None:
    """Raises DeleteInvalid for a delete of everything: a filter that came out empty must not end a table."""
    if not tags and start is None and end is None:
        raise DeleteInvalid(
            f"this deletes every row of {database}.{table}", action="give tags, start or end, or use drop_table"
        )


def set_retention(cluster: Cluster, database: str, table: str, retention_ns: int | None) -> TableSchema:
    """Keep the rows of a table for so long, None = for ever; returns the schema that has it.

    Leaders drop whole slices that are older. Raises DeleteInvalid, SchemaContended.
    """
    if retention_ns is not None and not RETENTION_MIN_NS <= retention_ns < KEEP_FOREVER_NS:
        raise DeleteInvalid(
            "a table keeps its rows for a second at least, and for 292 years at most", action="give a time such as 30d"
        )
    known_table(cluster.tables, database, table)
    # None asks `ensure` to leave the retention as it is, so "for ever" needs a value of its own.
    return cluster.tables.ensure(database, table, (), {}, KEEP_FOREVER_NS if retention_ns is None else retention_ns)


def known_table(tables: Schemas, database: str, table: str) -> TableSchema:
    """The newest schema of a table. Raises DeleteInvalid."""
    # A table or tag that another writer has just created must not be refused as unknown.
    tables.refresh()
    schema = tables.catalogue.newest(database, table)
    if schema.version == 0:
        raise no_table(tables, database, table)
    return schema


def no_table(tables: Schemas, database: str, table: str) -> DeleteInvalid:
    """The error for a table that does not exist, with the names that it may have meant."""
    catalogue = tables.catalogue
    # A list first: another thread may learn of a table meanwhile.
    there = [key for key in sorted(catalogue.tables) if not catalogue.is_dropped(*key)]
    near = near_tables((database, table), there)
    return DeleteInvalid(
        f"there is no table {database}.{table}",
        action=f"did you mean {', '.join(near)}?" if near else "SHOW TABLES lists what there is",
    )


def bound_ns(point: pa.Table) -> int:
    """The time in a table of one row, in nanoseconds since 1970 UTC: where a delete begins or ends.

    Raises DeleteInvalid for a time that no row has, ColumnTypeError.
    """
    try:
        rows = normal_rows(point, "time", ())
    except TimesImplausible as error:
        raise DeleteInvalid(error.message, action="give ISO 8601, or nanoseconds") from error
    except TimeRangeError as error:
        raise DeleteInvalid(
            "start or end is a time that no row can have", action="leave it out for no bound"
        ) from error
    return int(rows.column(TIME_COLUMN)[0].as_py())


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
