"""Deletes of a sender, as deletes of its own devices in every group's log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headrace.consumers.sync.delete_cover import box_bytes, cover, matching
from headrace.consumers.sync.owner_log import OwnerLog
from headrace.producers.cluster import Cluster, Route
from headrace.producers.deletes import repeat_deletes
from headrace.schemas.errors import HeadraceError
from headrace.schemas.message_bodies import ProducerPosition
from headrace.schemas.messages import Delete, deletes_batch, deletes_producer, last_deletes_batch
from headrace.schemas.series import escape_table, parse_series_key
from headrace.schemas.sync_records import OwnerEnrolment, SyncDelete, SyncDeletes

LOOK_TIMEOUT_S = 10.0
FLUSH_TIMEOUT_S = 30.0
RECORDS_AT_ONCE = 10_000
BYTES_AT_ONCE = 16 << 20
"""Of the values of records that are sent together; one with more goes alone."""
_Records = list[tuple[ProducerPosition, Delete]]


class MembersChange(HeadraceError):
    """Slots are on their way to another group: deletes wait for the moment that this takes."""


def apply_deletes(cluster: Cluster, owners: OwnerLog, sender: OwnerEnrolment, number: int, body: SyncDeletes) -> int:
    """Append the deletes of a group of a sender to every log; how many records each log got, both fences among them.

    Can be repeated: the position of each follows from the number of their manifest. Behind them no file of a lower one
    is loaded, and no delete of this one counts. Raises SenderCloned, MembersChange, GroupEnded, WriteFailed,
    WriteUnknown, and the errors of the log.
    """
    # One route for all records. Groups that reach a newer table ignore what comes late by this one.
    route = _whole_route(cluster)
    producer, table_version = deletes_producer(sender.sender, body.group), route.table.version
    # The fence first, also where nothing is found: a receiver that was replaced could enrol a device behind the look
    # below and load an older file. Sent again with these deletes the file would count as here, and they as done.
    _append_fence(cluster, route, ProducerPosition(producer, deletes_batch(number, table_version), 0), body)
    # Behind everything that files of the sender have added so far.
    cluster.tables.refresh()
    found = (
        # Replicas drop a repeat, and what is older than the newest.
        (ProducerPosition(producer, deletes_batch(number, table_version, place), sequence), each)
        for place, deleted in enumerate(body.deletes, 1)
        for sequence, each in enumerate(_own(cluster, owners, sender, deleted))
    )
    records = 0
    for part in _parts(found):
        repeat_deletes(cluster, route, part, FLUSH_TIMEOUT_S)
        records += len(part)
    # A group may have ended without them, and its rows be where they came before: then all are sent by the new table.
    _check_unchanged(cluster, route)
    # And a fence behind them: a receiver that was replaced in the middle may look at the owners only after these are
    # done. Files loaded since then have enrolled more devices by then, and it would delete their rows.
    _append_fence(cluster, route, ProducerPosition(producer, last_deletes_batch(number), 0), body)
    # A group that comes later learns of that fence when it takes its slots. One that came meanwhile may not.
    _check_unchanged(cluster, route)
    return 2 + records


def _parts(records: Iterable[tuple[ProducerPosition, Delete]]) -> Iterator[_Records]:
    """Records in parts: a table of many devices makes so many that no memory has all, and no deadline is for all."""
    part, part_bytes = _Records(), 0
    for position, body in records:
        size_bytes = box_bytes(body.tags)
        if part and (len(part) == RECORDS_AT_ONCE or part_bytes + size_bytes > BYTES_AT_ONCE):
            yield part
            part, part_bytes = [], 0
        part.append((position, body))
        part_bytes += size_bytes
    if part:
        yield part


def _check_unchanged(cluster: Cluster, route: Route) -> None:
    """Raises MembersChange if a route is not the newest one any more."""
    if _whole_route(cluster).table.version != route.table.version:
        raise MembersChange("members changed during deletes", action="they are repeated", retriable=True)


def _whole_route(cluster: Cluster) -> Route:
    """The newest route. Raises MembersChange until each group that gains slots knows what those knew that give them."""
    route = cluster.routing.look(LOOK_TIMEOUT_S)
    if route.pending:
        raise MembersChange("a new group has no log yet", action="wait", retriable=True)
    if not route.moving:
        return route
    cluster.watch.start()
    statuses = cluster.watch.statuses.online()
    for header in route.table.headers:
        shown = (each for status in statuses if status.group == header for each in status.accepted)
        accepted = {each.group for each in shown if each.table_version >= route.table.version}
        if missing := route.table.donors(header) - accepted:
            raise MembersChange(
                f"group {header} has not taken over from {', '.join(sorted(missing))} yet",
                action="wait, and start its nodes if they are down",
                retriable=True,
            )
    return route


def _append_fence(cluster: Cluster, route: Route, position: ProducerPosition, body: SyncDeletes) -> None:
    """Append a delete that matches no row: its position is what counts. Nothing with a lower one counts behind it."""
    first = body.deletes[0]
    fence = Delete(first.database, first.table, {}, 0, 0)
    repeat_deletes(cluster, route, [(position, fence)], FLUSH_TIMEOUT_S)


def _own(cluster: Cluster, owners: OwnerLog, sender: OwnerEnrolment, deleted: SyncDelete) -> Iterator[Delete]:
    schema = cluster.tables.catalogue.newest(deleted.database, deleted.table)
    if not schema.version or not set(deleted.tags) <= set(schema.tags):
        # No row of the sender is here that it could concern: an absent tag is an empty one.
        unknown = set(deleted.tags) - set(schema.tags)
        if not schema.version or any("" not in deleted.tags[name] for name in unknown):
            return
    head = escape_table(deleted.table)
    keys = (key for key in owners.devices(sender, deleted.database) if key == head or key.startswith(head + ","))
    devices = matching((parse_series_key(key)[1] for key in keys), deleted.tags)
    if not devices:
        return
    for box in cover(devices, schema.tags):
        yield Delete(deleted.database, deleted.table, box, deleted.start_ns, deleted.end_ns)
