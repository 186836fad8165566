"""The open log behind its write lock: ids, journals, the state, and what became of them."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

from connectors.files import Buffer, FileLayer
from consumers.wal.errors import DurabilityUnknown, LogFailed, UpdateFailed
from consumers.wal.frames import JournalHeader, encode_frame
from consumers.wal.journal import Journal
from consumers.wal.manifest import Manifest
from consumers.wal.records import Encoded, Placed
from consumers.wal.recovery import Recovered, write_manifest
from consumers.wal.values import Entry, ValueReference


class Transaction:
    """One update on its way: encoded, then written (`number` > 0) or refused (`error`)."""

    __slots__ = ("appointed", "encoded", "era", "error", "gate", "number", "partition")

    def __init__(self, encoded: Encoded, partition: int) -> None:
        self.encoded = encoded
        self.partition = partition
        self.number = 0
        self.era = 0
        self.error: BaseException | None = None
        self.gate: Any = None
        self.appointed = False


class Writer:
    """Owns the journals, the state by key and the order of transactions of one open log.

    `lock` is the log's write lock: ids and file ranges are given, written and applied under it, so a transaction that
    fails is cut off before anything can stand behind it. Methods named so are called with it held. Invariants:
    `durable` <= `last`; every journal that a transaction after `durable` stands in is in `dirty`, or in the hands of a
    running sync.
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
        self.current: dict[int, Journal] = {}
        self.dirty: set[Journal] = set()
        self.last = recovered.last
        self.durable = recovered.last
        self.failure: str | None = None
        self.era = 0
        self.bytes_written = 0
        self.snapshot_transaction = recovered.snapshot.transaction if recovered.snapshot else 0
        self.replay_from = recovered.snapshot.replay_from if recovered.snapshot else 0
        self.next_number = max([self.replay_from, 1, *(number + 1 for number in self.journals)])
        self._reserve_bytes = reserve_bytes
        self._number_min = 0

    def continue_in_place(self, partitions: int) -> None:
        """After recovery: lets partitions go on at the end of their newest journal, where that is whole and of this
        serde version.
        """
        for number, journal in sorted(self.journals.items()):
            header = journal.header
            usable = header is not None and header.serde_version == self.serde[1]
            if number >= self.replay_from and usable and journal.partition < partitions:
                self.current[journal.partition] = journal

    def append(self, transactions: Sequence[Transaction]) -> None:
        """Under the lock: writes transactions in order and applies them; sets `number` or `error` of each. Never raises
        an `Exception`.
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
            # The frames could not be cut off again: they may come back.
            for transaction in transactions:
                transaction.error = DurabilityUnknown(self.failure)
                transaction.error.__cause__ = error
        elif len(transactions) > 1:
            # Whoever is to blame fails alone; the others are written one by one, in the same order.
            for transaction in transactions:
                self.append((transaction,))
        elif isinstance(error, OSError):
            message = f"update of {self.directory} was not written: {error.strerror or error}"
            transactions[0].error = UpdateFailed(message, error)
            transactions[0].error.__cause__ = error
        else:
            transactions[0].error = error

    def _append_together(self, transactions: Sequence[Transaction]) -> None:
        number = self.last
        plan: dict[Journal, list[Buffer]] = {}
        places: list[tuple[Transaction, Journal, int]] = []
        ends: dict[Journal, int] = {}
        for transaction in transactions:
            journal = self.current.get(transaction.partition) or self._open_partition(transaction.partition)
            encoded = transaction.encoded
            start = ends.get(journal, journal.end)
            number += 1
            frame = encode_frame(
                journal.number, start, number, self.durable, encoded.records, encoded.body, encoded.values_length
            )
            buffers = plan.setdefault(journal, [])
            buffers.append(frame)
            buffers += encoded.values
            places.append((transaction, journal, start + len(frame)))
            ends[journal] = start + len(frame) + encoded.values_length
        self._write(plan)
        try:
            for transaction, journal, values_offset in places:
                self._apply(transaction.encoded, journal, values_offset)
                self.last += 1
                transaction.number = self.last
                transaction.era = self.era
        except BaseException as error:
            # The frames are in the files already: only a checkpoint can take them out again.
            self.fail(f"a written transaction could not be applied: {error!r}")
            raise

    def _write(self, plan: dict[Journal, list[Buffer]]) -> None:
        starts: dict[Journal, int] = {}
        try:
            for journal, buffers in plan.items():
                starts[journal] = journal.end
                journal.append(buffers, self._reserve_bytes)
                self.files.step("update: frames written")
        except BaseException as error:
            for journal, start in starts.items():
                self._cut(journal, start, error)
            raise
        for journal, start in starts.items():
            self.bytes_written += journal.end - start
            self.dirty.add(journal)

    def _cut(self, journal: Journal, start: int, cause: BaseException) -> None:
        try:
            journal.cut(start)
        except OSError as error:
            self.fail(f"{journal.path.name} could not be cut back to {start} ({error}) after: {cause}")

    def _apply(self, encoded: Encoded, journal: Journal, values_offset: int) -> None:
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
        """Under the lock: refuses every update until a checkpoint has written the state without what is not known
        durable.
        """
        if self.failure is None:
            # What was written in an earlier era and not synced then is lost to a checkpoint, however the next sync ends.
            self.era += 1
            doubtful = (
                f"transactions {self.durable + 1} to {self.last} are in doubt"
                if self.last > self.durable
                else "none is in doubt"
            )
            self.failure = f"the log in {self.directory} failed: {reason}; {doubtful}"

    def _open_partition(self, partition: int) -> Journal:
        """Under the lock: makes the partition's journal and publishes it; what an earlier try has made is used again."""
        journal = next((made for made in self.journals.values() if self._is_spare(made, partition)), None)
        if journal is None:
            header = JournalHeader(
                partition, self.next_number, self.manifest.identity, self.last + 1, self.durable, *self.serde
            )
            journal = Journal.create(self.files, self.directory, header, self._reserve_bytes)
            self.files.step("journal: header synced")
            self.next_number += 1
            self.journals[header.number] = journal
        self.files.sync_directory(self.directory)
        self.files.step("journal: name synced")
        self.publish([*(made for made in self.journals.values() if made.published), journal])
        journal.published = True
        self.current[partition] = journal
        return journal

    def _is_spare(self, journal: Journal, partition: int) -> bool:
        return journal.partition == partition and not journal.published and journal.number >= self._number_min

    def publish(self, journals: Sequence[Journal], snapshot: int | None = None) -> None:
        """Under the lock: writes a manifest that names these journals, and the snapshot by its `replay_from` (default:
        as before).
        """
        named = tuple(sorted((journal.number, journal.partition) for journal in journals))
        manifest = Manifest(
            self.manifest.identity, *self.serde, self.manifest.snapshot if snapshot is None else snapshot, named
        )
        write_manifest(self.files, self.directory, manifest)
        self.manifest = manifest

    def roll(self) -> tuple[int, dict[int, Journal]]:
        """Under the lock: ends the current journals; returns (number from which later ones count, the ended ones by
        partition).
        """
        ended, self.current = self.current, {}
        self._number_min = self.next_number
        return self.next_number, ended

    def take_dirty(self) -> tuple[int, set[Journal]]:
        """Under the lock: hands the caller the duty to sync; returns (last transaction written, journals to sync)."""
        dirty, self.dirty = self.dirty, set()
        return self.last, dirty
