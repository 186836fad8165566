"""Checkpoints: write the state to one snapshot and delete the journals that nothing refers to any more.

Steps, each with the state that a crash after it leaves:

1. Under the write lock, the state's mapping is copied and the journals are rolled: later updates go to new
   ones. The pause grows with the number of records, not with their bytes. Crash: the old snapshot, then all
   journals, old and new.
2. The rolled journals are synced: the snapshot must not refer to bytes that are not durable. Crash: as in 1.
3. `snapshot.partial` is written and synced. Crash: a leftover, which recovery removes; otherwise as in 1.
4. It is renamed to `snapshot` and the directory is synced. Crash: the old or the new snapshot, and every
   journal that either needs.
5. The manifest is written without the obsolete journals: those that the snapshot contains and that hold none
   of its values. Crash before it: the manifest names journals that are not needed, until the next checkpoint.
6. Obsolete journals are deleted. Crash: files that the manifest does not name, which recovery removes.
"""

from __future__ import annotations

from collections.abc import Hashable

from headrace.consumers.wal.commit import GroupCommit
from headrace.consumers.wal.journal_file import JournalFile
from headrace.consumers.wal.log_writer import LogWriter
from headrace.consumers.wal.replace import publish_partial, write_partial
from headrace.consumers.wal.snapshot_file import SNAPSHOT_NAME, SnapshotHeader, encode_snapshot
from headrace.consumers.wal.value_references import Entry
from headrace.consumers.wal.wal_errors import CheckpointFailed
from headrace.consumers.wal.wal_recovery import rebuild


def write_checkpoint(writer: LogWriter, commit: GroupCommit) -> int:
    """Writes a checkpoint while updates continue; returns the snapshot's size in bytes.

    Raises `CheckpointFailed` (nothing has changed), or `DurabilityUnknown` when the sync of step 2 fails.
    """
    # Copy and roll in one critical section: a transaction is either in the copy or in a journal that is
    # replayed after the snapshot. Entries are immutable, so a shallow copy suffices.
    with writer.lock:
        entries, transaction = writer.entries.copy(), writer.last
        replay_from, rolled = writer.roll()
    writer.files.step("checkpoint: journals rolled")
    try:
        commit.sync()
        writer.files.step("checkpoint: journals synced")
        size, referenced = _write_partial(writer, entries, transaction, replay_from)
    except BaseException as error:
        _resume(writer, rolled)
        if isinstance(error, OSError):
            raise CheckpointFailed(f"checkpoint of {writer.directory} failed: {error}", error) from error
        raise
    try:
        _publish(writer, replay_from)
        with writer.lock:
            obsolete = _drop_obsolete(writer, replay_from, referenced)
    except OSError as error:
        raise CheckpointFailed(f"checkpoint of {writer.directory} failed: {error}", error) from error
    _delete(writer, obsolete)
    return size


def write_checkpoint_after_failure(writer: LogWriter, commit: GroupCommit) -> int:
    """Ends the failed state of a log; returns the snapshot's size in bytes.

    The snapshot holds exactly the transactions known durable. Updates are refused meanwhile. Raises
    `CheckpointFailed` or `LogDamaged`, and the log stays failed.
    """
    # The state in memory contains transactions whose sync failed, so it is rebuilt from the files up to the
    # watermark. Both locks are held: a sync that ended meanwhile would raise the watermark over bytes that
    # never reached the disk.
    with commit.sync_lock, writer.lock:
        try:
            entries = rebuild(
                writer.files, writer.directory, writer.manifest, writer.journals, writer.durable, writer.serde[1]
            )
            replay_from, _ = writer.roll()
            writer.files.step("checkpoint: state rebuilt")
            size, referenced = _write_partial(writer, entries, writer.last, replay_from)
            _publish(writer, replay_from)
            obsolete = _drop_obsolete(writer, replay_from, referenced)
        except OSError as error:
            raise CheckpointFailed(f"checkpoint of {writer.directory} failed: {error}", error) from error
        writer.entries = entries
        writer.dirty.clear()
        # The numbers of the removed transactions are not reused:
        # a caller may still hold one of them as unknown.
        writer.durable = writer.last
        writer.failure = None
    _delete(writer, obsolete)
    return size


def _write_partial(
    writer: LogWriter, entries: dict[Hashable, Entry], transaction: int, replay_from: int
) -> tuple[int, set[JournalFile]]:
    header = SnapshotHeader(writer.manifest.identity, transaction, replay_from, len(entries), *writer.serde)
    referenced: set[JournalFile] = set()
    size = write_partial(writer.files, writer.directory / SNAPSHOT_NAME, encode_snapshot(header, entries, referenced))
    return size, referenced


def _publish(writer: LogWriter, replay_from: int) -> None:
    publish_partial(writer.files, writer.directory / SNAPSHOT_NAME)
    writer.replay_from = replay_from


def _drop_obsolete(writer: LogWriter, replay_from: int, referenced: set[JournalFile]) -> list[JournalFile]:
    # A journal older than the snapshot stays while a large
    # value in it is referenced: values are never rewritten.
    kept = [journal for journal in writer.journals.values() if journal.number >= replay_from or journal in referenced]
    obsolete = [
        journal for journal in writer.journals.values() if journal.number < replay_from and journal not in referenced
    ]
    # The manifest first, the deletion after it: a journal that is named and gone counts as damage.
    writer.publish([journal for journal in kept if journal.published], replay_from)
    for journal in obsolete:
        del writer.journals[journal.number]
        writer.dirty.discard(journal)
    return obsolete


def _delete(writer: LogWriter, obsolete: list[JournalFile]) -> None:
    for journal in obsolete:
        try:
            writer.files.unlink(journal.path)
        except OSError:
            # The manifest no longer names the file, so the next recovery deletes it.
            continue
        writer.files.step("checkpoint: journal deleted")


def _resume(writer: LogWriter, rolled: dict[int, JournalFile]) -> None:
    """Reopens the rolled journals for writing, except where a partition has a new one already."""
    # No snapshot refers to the roll. Without this, each failing checkpoint would add a journal a partition,
    # on a disk that is perhaps full.
    with writer.lock:
        if writer.failure is None:
            for partition, journal in rolled.items():
                writer.current.setdefault(partition, journal)
