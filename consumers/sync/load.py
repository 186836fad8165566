"""The record by which a file of a sync sender becomes a segment of a group, and what became of it.

The leader of the group appends it once a majority of members has the file: staged under its content digest, compared
with the sender's digests and synced.

1. `may_append`: every member reads records of this format. Else they would stop at it.
2. Each member stages `{digest}.parquet` and `{digest}.series` (`store.staging_directory`, `staged_names`), and calls
   `store.note_verified(digest)` once it has compared and synced the bytes. A load attaches what is staged then.
3. `sync_load` makes the record, and `LeaderTasks.append_for` appends it.
4. `outcome` tells what became of it. A delivery report proves nothing: what the log does not show is appended again.

A member that reads the load without the file awaits it (`store.awaited`), and `FilePuller` fetches it from another one.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING

from headrace.schemas.framing import FENCED_LOAD_FORMAT
from headrace.schemas.messages import Leadership, Load, load_identity
from headrace.schemas.records import Status
from headrace.schemas.series import slot_of
from headrace.schemas.sync_records import SyncFile

# A receiver names the loads of its files, and has no group.
if TYPE_CHECKING:
    from headrace.consumers.replication.group import Group


class LoadOutcome(StrEnum):
    """What a group's log has made of a load, as far as this node has applied it."""

    ABSENT = "absent"
    """It has not counted: not read yet, lost, or appended under a leadership that had ended."""
    SLOT_MOVED = "slot_moved"
    """The group has given its slot away: send it to the group that holds the slot."""
    APPLYING = "applying"
    """It has counted, and the store has not carried it out yet."""
    APPLIED = "applied"
    """The store has the file in its catalogue: now, or since it was loaded before."""


def sync_load(file: SyncFile, sender: str, number: int, leadership: Leadership, schema_version: int) -> Load:
    """The record that loads a verified file of a sender.

    `number` is that of its manifest. `schema_version` is a version of the centre's table that has all columns of the
    file, read back from the table log.
    """
    return Load(
        leadership=leadership,
        origin=sender,
        held_since=0,
        database=file.database,
        table=file.table,
        slice_number=file.slice_number,
        bucket=file.bucket,
        era=file.era,
        first_version=file.first_version,
        last_version=file.last_version,
        generation=file.generation,
        content_digest=file.content_digest,
        rows=file.rows,
        min_time_ns=file.min_time_ns,
        max_time_ns=file.max_time_ns,
        size_bytes=file.segment_bytes,
        schema_version=schema_version,
        deletes=file.deletes,
        sender=sender,
        order=file.order,
        settled=file.settled,
        stores=file.stores,
        # A file is group/birth/name.
        group="/".join(file.file.split("/", 2)[:2]),
        number=number,
    )


def file_identity(file: SyncFile, sender: str) -> bytes:
    """By what a file of a sender counts once, however often it is sent; see `load_identity`."""
    return load_identity(sync_load(file, sender, 0, Leadership(0, "", ""), 0))


def may_append(members: Iterable[str], live: Iterable[Status]) -> bool:
    """Whether every member has a live status that shows that it reads these records.

    A member that is down counts as one that does not: nobody knows which build it starts with.
    """
    formats = {status.node: status.format for status in live}
    return all(formats.get(member, 0) >= FENCED_LOAD_FORMAT for member in members)


def outcome(load: Load, group: Group) -> LoadOutcome:
    """What became of a load, by whoever appended it; it may be asked at any time, also by a later leader."""
    changes = group.applied.changes
    if changes.given and slot_of(load.database, load.bucket, load.slice_number, changes.slots_total) in changes.given:
        return LoadOutcome.SLOT_MOVED
    return outcome_here(load_identity(load), group)


def outcome_here(identity: bytes, group: Group) -> LoadOutcome:
    """What became of a load in a group that holds its slot."""
    version = group.replica.state.version
    if identity not in group.replica.state.loads:
        return LoadOutcome.ABSENT
    # The replica has it from here on; its job exists once the group shows that version as applied.
    done = group.version >= version and not group.store.has_pending(version)
    return LoadOutcome.APPLIED if done else LoadOutcome.APPLYING
