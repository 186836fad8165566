"""Deletes of a sender, as deletes of its own devices in every group's log."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.consumers.sync.delete_cover import cover, matching
from headrace.consumers.sync.owner_log import OwnerLog
from headrace.producers.cluster import Cluster
from headrace.producers.deletes import repeat_deletes
from headrace.schemas.message_bodies import ProducerPosition
from headrace.schemas.messages import Delete, deletes_batch, deletes_producer
from headrace.schemas.series import escape_table, parse_series_key
from headrace.schemas.sync_records import OwnerEnrolment, SyncDelete, SyncDeletes

FLUSH_TIMEOUT_S = 30.0


def apply_deletes(cluster: Cluster, owners: OwnerLog, sender: OwnerEnrolment, number: int, body: SyncDeletes) -> int:
    """Append the deletes of a group of a sender to every log; how many records each log got, both fences among them.

    Can be repeated: the position of each follows from the number of their manifest. Behind them no file of a lower one
    is loaded, and no delete of this one counts. Raises SenderCloned, WriteFailed, WriteUnknown, and the errors of the
    log.
    """
    producer = deletes_producer(sender.sender, body.group)
    # The fence first, also where nothing is found: a receiver that was replaced could enrol a device behind the look
    # below and load an older file. Sent again with these deletes the file would count as here, and they as done.
    _append_fence(cluster, ProducerPosition(producer, deletes_batch(number), 0), body)
    # Behind everything that files of the sender have added so far.
    cluster.tables.refresh()
    found: list[tuple[ProducerPosition, Delete]] = []
    for place, deleted in enumerate(body.deletes, 1):
        for sequence, each in enumerate(_own(cluster, owners, sender, deleted)):
            # Replicas drop a repeat, and what is older than the newest.
            found.append((ProducerPosition(producer, deletes_batch(number, place), sequence), each))
    repeat_deletes(cluster, found, FLUSH_TIMEOUT_S)
    # And a fence behind them: a receiver that was replaced in the middle may look at the owners only after these are
    # done. Files loaded since then have enrolled more devices by then, and it would delete their rows.
    _append_fence(cluster, ProducerPosition(producer, deletes_batch(number, len(body.deletes) + 1), 0), body)
    return 2 + len(found)


def _append_fence(cluster: Cluster, position: ProducerPosition, body: SyncDeletes) -> None:
    """Append a delete that matches no row: its position is what counts. Nothing with a lower one counts behind it."""
    first = body.deletes[0]
    repeat_deletes(cluster, [(position, Delete(first.database, first.table, {}, 0, 0))], FLUSH_TIMEOUT_S)


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
