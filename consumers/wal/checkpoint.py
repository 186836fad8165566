"""Checkpoints: the state in one snapshot, and an end to the journals in which nothing lives.

Order, with the crash that each step must survive:

1. Under the write lock, the state's mapping is copied and the journals are ended; later updates go to new ones. The
   pause grows with the number of records, not with their bytes. A crash here: the old snapshot, then all journals, old
   and new.
2. The ended journals are synced: the snapshot must not refer to bytes that are not durable.
3. `snapshot.partial` is written and synced. A crash here: leftover, removed; all as in 1.
4. It is renamed to `snapshot` and the directory synced. A crash here: old or new snapshot; every journal that either
   needs is still there.
5. The manifest drops the journals that are in the snapshot and hold none of its values. A crash before: they are found,
   named and not needed.
6. Those are deleted. A crash here: unnamed files, removed by the next recovery.
"""

from __future__ import annotations

from collections.abc import Hashable

from consumers.wal.commit import GroupCommit
from consumers.wal.errors import CheckpointFailed
from consumers.wal.journal import Journal
from consumers.wal.recovery import rebuild
from consumers.wal.replace import publish_partial, write_partial
from consumers.wal.snapshot import SNAPSHOT_NAME, SnapshotHeader, encode_snapshot
from consumers.wal.values import Entry
from consumers.wal.writer import Writer


def write_checkpoint(writer: Writer, commit: GroupCommit) -> int:
    """Makes a checkpoint while updates go on; returns the snapshot's size in bytes.

    Raises `CheckpointFailed` (all as before), `DurabilityUnknown` when the sync of step 2 fails.
    """
    with writer.lock:
        entries, transaction = writer.entries.copy(), writer.last
        replay_from, ended = writer.roll()
    writer.files.step("checkpoint: journals ended")
    try:
        commit.sync()
        writer.files.step("checkpoint: journals synced")
        size, referenced = _write_partial(writer, entries, transaction, replay_from)
    except BaseException as error:
        _resume(writer, ended)
        if isinstance(error, OSError):
            raise CheckpointFailed(f"checkpoint of {writer.directory} failed: {error}", error) from error
        raise
    try:
        _publish(writer, transaction, replay_from)
        with writer.lock:
            dead = _drop(writer, replay_from, referenced)
    except OSError as error:
        raise CheckpointFailed(f"checkpoint of {writer.directory} failed: {error}", error) from error
    _delete(writer, dead)
    return size


def write_checkpoint_after_failure(writer: Writer, commit: GroupCommit) -> int:
    """Ends the failed state: the snapshot holds exactly what is known durable, read again from the files, and later
    updates start from it.

    Updates are refused meanwhile. Raises `CheckpointFailed` or `LogDamaged`, and the log stays failed.
    """
    with commit.sync_lock, writer.lock:
        try:
            entries = rebuild(
                writer.files, writer.directory, writer.manifest, writer.journals, writer.durable, writer.serde[1]
            )
            replay_from, _ = writer.roll()
            writer.files.step("checkpoint: state rebuilt")
            size, referenced = _write_partial(writer, entries, writer.last, replay_from)
            _publish(writer, writer.last, replay_from)
            dead = _drop(writer, replay_from, referenced)
        except OSError as error:
            raise CheckpointFailed(f"checkpoint of {writer.directory} failed: {error}", error) from error
        writer.entries = entries
        writer.dirty.clear()
        writer.durable = writer.last
        writer.failure = None
    _delete(writer, dead)
    return size


def _write_partial(
    writer: Writer, entries: dict[Hashable, Entry], transaction: int, replay_from: int
) -> tuple[int, set[Journal]]:
    header = SnapshotHeader(writer.manifest.identity, transaction, replay_from, len(entries), *writer.serde)
    referenced: set[Journal] = set()
    size = write_partial(writer.files, writer.directory / SNAPSHOT_NAME, encode_snapshot(header, entries, referenced))
    return size, referenced


def _publish(writer: Writer, transaction: int, replay_from: int) -> None:
    publish_partial(writer.files, writer.directory / SNAPSHOT_NAME)
    writer.snapshot_transaction = transaction
    writer.replay_from = replay_from


def _drop(writer: Writer, replay_from: int, referenced: set[Journal]) -> list[Journal]:
    kept = [journal for journal in writer.journals.values() if journal.number >= replay_from or journal in referenced]
    dead = [
        journal for journal in writer.journals.values() if journal.number < replay_from and journal not in referenced
    ]
    writer.publish([journal for journal in kept if journal.published], replay_from)
    for journal in dead:
        del writer.journals[journal.number]
        writer.dirty.discard(journal)
    return dead


def _delete(writer: Writer, dead: list[Journal]) -> None:
    for journal in dead:
        try:
            writer.files.unlink(journal.path)
        except OSError:
            # The manifest no longer names it: the next recovery tries again.
            continue
        writer.files.step("checkpoint: journal deleted")


def _resume(writer: Writer, ended: dict[int, Journal]) -> None:
    """No snapshot was named, so partitions that nobody wrote to meanwhile go on in their old journals: a failing
    checkpoint grows nothing.
    """
    with writer.lock:
        if writer.failure is None:
            for partition, journal in ended.items():
                writer.current.setdefault(partition, journal)
