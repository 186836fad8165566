"""The write path of an open log: transaction ids, journals and the state, all under the write lock."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

from headrace.connectors.files import Buffer, FileLayer
from headrace.consumers.wal.frames import JournalHeader, encode_frame
from headrace.consumers.wal.journal_file import JournalFile
from headrace.consumers.wal.manifest import Manifest
from headrace.consumers.wal.record_encoding import Encoded, Placed
from headrace.consumers.wal.value_references import Entry, ValueReference
from headrace.consumers.wal.wal_errors import DurabilityUnknown, LogFailed, UpdateFailed
from headrace.consumers.wal.wal_recovery import Recovered, write_manifest


class Transaction:
    """One update in progress: encoded, then written (`number` > 0) or refused (`error`)."""

    __slots__ = ("encoded", "error", "failures_before", "gate", "number", "partition")

    def __init__(self, encoded: Encoded, partition: int) -> None:
        self.encoded = encoded
        self.partition = partition
        self.number = 0
        self.failures_before = 0
        self.error: BaseException | None = None
        self.gate: Any = None


class LogWriter:
    """Owns the journals, the state by key and the order of transactions of one open log.

    `lock` is the log's write lock; methods marked "Under the lock" are called with it held. Ids and file
    ranges are assigned, written and applied under it, so a failed transaction is truncated before another can
    follow it. Invariants: `durable` <= `last`; every journal with a transaction after `durable` is in `dirty`
    or in a running sync.
    """

    def __init__(
        self, files: FileLayer, directory: Path, serde: tuple[str, int], recovered: Recovered, reserve_bytes: int
    ) -> None:
        self.lock = threading.Lock()
        self.files = files
        self.directory = directory
        self.serde = serde
        self.manifest = recovered.manifest
        self.journals = recovered.journals
        self.entries: dict[Hashable, Entry] = recovered.entries
        self.current: dict[int, JournalFile] = {}
        self.dirty: set[JournalFile] = set()
        self.last = recovered.last
        self.durable = recovered.last
        self.failure: str | None = None
        self.failure_count = 0
        self.bytes_written = 0
        self.replay_from = recovered.snapshot.replay_from if recovered.snapshot else 0
        # Above every number that a file or the snapshot has: numbers seed the CRCs, so frames of a deleted file
        # would be valid again in one that got its number.
        self.next_number = max([self.replay_from, 1, *(number + 1 for number in self.journals)])
        self._reserve_bytes = reserve_bytes
        self._number_min = 0

    def continue_in_place(self, partitions: int) -> None:
        """After recovery: continues partitions in their newest journals of this serde version."""
        # A journal has one serde version in its header. Continuing avoids a new file, two syncs and a
        # manifest for each partition at every start.
        for number, journal in sorted(self.journals.items()):
            header = journal.header
            usable = header is not None and header.serde_version == self.serde[1]
            # Not one below the snapshot's: recovery would never read what is appended there.
            if number >= self.replay_from and usable and journal.partition < partitions:
                self.current[journal.partition] = journal

    def append(self, transactions: Sequence[Transaction]) -> None:
        """Under the lock: writes and applies transactions in order; sets `number` or `error` of each.

        Never raises an `Exception`.
        """
        if not transactions:
            return
        if self.failure is not None:
            for transaction in transactions:
                transaction.error = LogFailed(self.failure)
            return
        try:
            self._append_together(transactions)
        except Exception as error:
            self._settle_failure(transactions, error)

    def _settle_failure(self, transactions: Sequence[Transaction], error: Exception) -> None:
        if self.failure is not None:
            # The frames could not be truncated, so they may be recovered after a crash.
            for transaction in transactions:
                transaction.error = DurabilityUnknown(self.failure)
                transaction.error.__cause__ = error
        elif len(transactions) > 1:
            # Written again one by one, in the same order, so that only the transaction with the fault fails.
            for transaction in transactions:
                self.append((transaction,))
        elif isinstance(error, OSError):
            message = f"update of {self.directory} was not written: {error.strerror or error}"
            transactions[0].error = UpdateFailed(message, error)
            transactions[0].error.__cause__ = error
        else:
            transactions[0].error = error

    def _append_together(self, transactions: Sequence[Transaction]) -> None:
        # Frames are planned first and written with one call a journal. Numbers are assigned to `last` only
        # after the write, so a failed write leaves no gap.
        number = self.last
        plan: dict[JournalFile, list[Buffer]] = {}
        positions: list[tuple[Transaction, JournalFile, int]] = []
        ends: dict[JournalFile, int] = {}
        for transaction in transactions:
            journal = self.current.get(transaction.partition) or self._open_partition(transaction.partition)
            # Every frame of a group carries the watermark of before the group: no frame may state its own
            # transactions, or those beside it, as durable.
            encoded = transaction.encoded
            start = ends.get(journal, journal.end)
            number += 1
            frame = encode_frame(
                journal.number, start, number, self.durable, encoded.records, encoded.body, encoded.values_length
            )
            buffers = plan.setdefault(journal, [])
            buffers.append(frame)
            buffers += encoded.values
            positions.append((transaction, journal, start + len(frame)))
            ends[journal] = start + len(frame) + encoded.values_length
        self._write(plan)
        try:
            for transaction, journal, values_offset in positions:
                self._apply(transaction.encoded, journal, values_offset)
                self.last += 1
                transaction.number = self.last
                transaction.failures_before = self.failure_count
        except BaseException as error:
            # The frames are in the files already: only a checkpoint can remove them.
            self.fail(f"a written transaction could not be applied: {error!r}")
            raise

    def _write(self, plan: dict[JournalFile, list[Buffer]]) -> None:
        starts: dict[JournalFile, int] = {}
        try:
            for journal, buffers in plan.items():
                starts[journal] = journal.end
                journal.append(buffers, self._reserve_bytes)
                self.files.step("update: frames written")
        except BaseException as error:
            for journal, start in starts.items():
                self._truncate(journal, start, error)
            raise
        for journal, start in starts.items():
            self.bytes_written += journal.end - start
            self.dirty.add(journal)

    def _truncate(self, journal: JournalFile, start: int, cause: BaseException) -> None:
        try:
            journal.truncate(start)
        except OSError as error:
            self.fail(f"{journal.path.name} could not be truncated to {start} ({error}) after: {cause}")

    def _apply(self, encoded: Encoded, journal: JournalFile, values_offset: int) -> None:
        entries, version = self.entries, self.serde[1]
        for key, value in encoded.effects:
            if value is None:
                entries.pop(key, None)
            elif type(value) is Placed:
                entries[key] = ValueReference(
                    journal, value.kind, version, values_offset + value.offset, value.length, value.crc
                )
            else:
                entries[key] = value  # type: ignore[assignment]

    def fail(self, reason: str) -> None:
        """Under the lock: refuses every update until a checkpoint has written the state of the watermark."""
        if self.failure is None:
            # Transactions that were written before this failure are unknown for good: a checkpoint removes
            # them, even if a later sync of the same journal succeeds.
            self.failure_count += 1
            unknown = (
                f"transactions {self.durable + 1} to {self.last} are in doubt"
                if self.last > self.durable
                else "none is in doubt"
            )
            self.failure = f"the log in {self.directory} failed: {reason}; {unknown}"

    def _open_partition(self, partition: int) -> JournalFile:
        """Under the lock: creates and publishes a journal, reusing the file of a failed attempt."""
        journal = next((journal for journal in self.journals.values() if self._is_spare(journal, partition)), None)
        if journal is None:
            header = JournalHeader(
                partition, self.next_number, self.manifest.identity, self.last + 1, self.durable, *self.serde
            )
            journal = JournalFile.create(self.files, self.directory, header, self._reserve_bytes)
            self.files.step("journal: header synced")
            self.next_number += 1
            self.journals[header.number] = journal
        # Name, then manifest, then the first frame. So a journal that the manifest does not name holds no
        # frame, and recovery may delete it; and a named one exists after any crash.
        self.files.sync_directory(self.directory)
        self.files.step("journal: name synced")
        self.publish([*(each for each in self.journals.values() if each.published), journal])
        journal.published = True
        self.current[partition] = journal
        return journal

    def _is_spare(self, journal: JournalFile, partition: int) -> bool:
        # Not one from before a roll: the snapshot contains whatever is numbered below it, so its frames would be
        # lost.
        return journal.partition == partition and not journal.published and journal.number >= self._number_min

    def publish(self, journals: Sequence[JournalFile], snapshot: int | None = None) -> None:
        """Under the lock: writes a manifest with these journals and `replay_from` (None: unchanged)."""
        named = tuple(sorted((journal.number, journal.partition) for journal in journals))
        manifest = Manifest(
            self.manifest.identity, *self.serde, self.manifest.snapshot if snapshot is None else snapshot, named
        )
        write_manifest(self.files, self.directory, manifest)
        # Only once it is durable: after an error the next attempt begins from the manifest that is on the disk.
        self.manifest = manifest

    def roll(self) -> tuple[int, dict[int, JournalFile]]:
        """Under the lock: rolls the journals.

        Returns (lowest number of later ones, rolled journals by partition).
        """
        # New journals are created by the next update of their partition: checkpoints of an idle log add no files.
        rolled, self.current = self.current, {}
        self._number_min = self.next_number
        return self.next_number, rolled

    def take_dirty(self) -> tuple[int, set[JournalFile]]:
        """Under the lock: returns (last transaction written, journals that the caller must sync now)."""
        dirty, self.dirty = self.dirty, set()
        return self.last, dirty
