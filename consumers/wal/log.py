"""The public interface of the write-ahead log."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import structlog

from headrace.connectors.files import DirectoryLock, FileLayer
from headrace.consumers.wal.checkpoint import write_checkpoint, write_checkpoint_after_failure
from headrace.consumers.wal.commit import GroupCommit, WalMetrics
from headrace.consumers.wal.log_writer import LogWriter, Transaction
from headrace.consumers.wal.maintenance import Maintenance
from headrace.consumers.wal.record_encoding import encode
from headrace.consumers.wal.serde import Delete, Put, Serde, loads_pairs
from headrace.consumers.wal.value_references import Entry, RecoveredState, ValueReference, load_entry
from headrace.consumers.wal.wal_errors import LogMisused
from headrace.consumers.wal.wal_recovery import Recovered, RecoveryReport, recover_files

PARTITIONS_MAX = 65_536
PREALLOCATE_BYTES_MAX = 1 << 20


class WriteAheadLog:
    """A durable map from key to record. Owns one directory, exclusively while it is open. Thread-safe.

    After any crash the recovered state is the state after a prefix of the transactions, in order of their
    ids. The prefix contains every transaction whose `update(…, sync=True)` returned, and each transaction
    whole or not at all. The disk must report failed syncs and errors. Source: NiFi's write-ahead log, without
    its defects (docs/internals/write-ahead-log.md).
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        serde: Serde[Any, Any],
        partitions: int = 4,
        *,
        sync_interval_ms: int | None = 200,
        checkpoint_bytes: int | None = 256 << 20,
        checkpoint_age_ms: int | None = 600_000,
        preallocate_bytes: int = PREALLOCATE_BYTES_MAX,
        files: FileLayer | None = None,
        maintained: bool = True,
    ) -> None:
        """Configures the log; `recover` opens it.

        `partitions`: journals that are written in parallel; may differ from run to run. `sync_interval_ms`:
        updates without `sync` become durable within that time (None: only with the next synced one).
        `checkpoint_bytes`, `checkpoint_age_ms`: an automatic checkpoint follows after so many bytes of
        journal, or when changes are that old (None: never). `preallocate_bytes`: reserve at the end of each
        journal, at most 1 MiB, 0 for none. `maintained`: a thread calls `run_maintenance`; else the caller does.
        """
        if not 1 <= partitions <= PARTITIONS_MAX:
            raise ValueError(f"partitions must be between 1 and {PARTITIONS_MAX}, not {partitions}")
        if not 0 <= preallocate_bytes <= PREALLOCATE_BYTES_MAX:
            raise ValueError(
                f"preallocate_bytes must be between 0 and {PREALLOCATE_BYTES_MAX}, not {preallocate_bytes}"
            )
        self.directory = Path(directory)
        self.partitions = partitions
        self.report: RecoveryReport | None = None
        self._serde = serde
        self._files = files or FileLayer()
        self._preallocate_bytes = preallocate_bytes
        self._maintained = maintained
        self._maintenance = Maintenance(weakref.ref(self), sync_interval_ms, checkpoint_bytes, checkpoint_age_ms)
        self._lifecycle = threading.Lock()
        self._checkpointing = threading.Lock()
        self._ownership: DirectoryLock | None = None
        self._writer: LogWriter | None = None
        self._commit: GroupCommit | None = None
        self._closed = False

    def recover(self) -> dict[Any, Any]:
        """Opens the directory, creating it if it is missing, and returns the records by key in a new `dict`.

        Large values are read at each access (`RecoveredState`). Truncated frames are in `report` and in the
        log output. Raises `DirectoryHeld`, `LogDamaged` (`FileMissing`), `ForeignSerde`, `ForeignLog`,
        `LogMisused` for a second call, or the exception of the serde. After an error the lock is released and
        `recover` may be called again.
        """
        with self._lifecycle:
            if self._closed:
                raise LogMisused(f"the log in {self.directory} is closed", action="make a new WriteAheadLog")
            if self._writer is not None:
                raise LogMisused(f"the log in {self.directory} is recovered already", action="call recover once")
            self._files.make_directory(self.directory)
            ownership = self._files.lock(self.directory, "the write-ahead log in")
            try:
                state = self._open()
            except BaseException:
                ownership.release()
                raise
            self._ownership = ownership
            if self._maintained:
                self._maintenance.start()
            return state

    def _open(self) -> dict[Any, Any]:
        # Recovery creates millions of small tuples and no garbage;
        # each run of the collector would visit all of them.
        collecting = gc.isenabled()
        gc.disable()
        try:
            name_and_version = (self._serde.name, self._serde.version)
            recovered = recover_files(self._files, self.directory, name_and_version, os.urandom(8))
            state = self._state_of(recovered)
        finally:
            if collecting:
                gc.enable()
        self._report(recovered)
        writer = LogWriter(self._files, self.directory, name_and_version, recovered, self._preallocate_bytes)
        writer.continue_in_place(self.partitions)
        self._commit = GroupCommit(writer)
        self._writer = writer
        return state

    def _state_of(self, recovered: Recovered) -> dict[Any, Any]:
        serde, entries = self._serde, recovered.entries
        kinds = set(map(type, entries.values()))
        referenced = ValueReference in kinds
        if loads_pairs(serde) and kinds <= {bytes}:
            # The items of a mapping are pairs already: no Python step for each of a million records.
            loaded = dict(zip(entries, entries.items(), strict=True))
        elif loads_pairs(serde):
            loaded = {
                key: (key, entry) if type(entry) is bytes else _load_small(serde, key, entry)
                for key, entry in entries.items()
            }
        else:
            loaded = {key: _load_small(serde, key, entry) for key, entry in entries.items()}
        return RecoveredState(loaded, lambda key, value: load_entry(serde, key, value)) if referenced else loaded

    def _report(self, recovered: Recovered) -> None:
        self.report = recovered.report
        for line in recovered.report.dropped:
            structlog.get_logger("headrace.wal").warning(
                "torn tail truncated", directory=str(self.directory), what=line
            )

    def update(
        self, records: Iterable[Put[Any] | Delete[Any]], sync: bool = False, partition: int | None = None
    ) -> int:
        """Writes the records as one transaction, all or none, in order; returns its id, the highest so far.

        On return the transaction survives the end of this process; with `sync` it also survives a power cut,
        and so does every earlier one. `partition` selects the journal (None: the log does). An empty update
        returns the newest id. Raises the exception of the serde, `UnsupportedKey`, `UpdateFailed` (not
        written, try again), `LogFailed` (an earlier sync failed: call `checkpoint()`), `DurabilityUnknown`
        (written, sync failed). After an interrupt (KeyboardInterrupt) it may be written, durable, or neither.
        """
        writer, commit = self._opened()
        if partition is not None and not 0 <= partition < self.partitions:
            raise ValueError(f"partition {partition} is not one of the {self.partitions} of this log")
        # Encoded outside the write lock: a serde may be slow, and one that raises has changed nothing.
        encoded = encode(records, self._serde)
        if not encoded.records:
            return writer.last
        # Callers without a partition share one journal, so that a group costs one sync.
        transaction = Transaction(encoded, partition or 0)
        if sync:
            commit.commit(transaction)
        else:
            with writer.lock:
                writer.append((transaction,))
        if transaction.error is not None:
            raise transaction.error
        return transaction.number

    def sync(self) -> None:
        """Makes every returned update durable; raises `LogFailed` or `DurabilityUnknown`."""
        self._opened()[1].sync()

    def checkpoint(self) -> None:
        """Writes the state to a new snapshot and deletes obsolete journals while updates continue.

        After a failed sync it writes only the transactions known durable, and ends the failed state. Raises
        `CheckpointFailed` (nothing lost, try again), `DurabilityUnknown`, `LogDamaged`.
        """
        with self._checkpointer() as (writer, commit):
            write = write_checkpoint if writer.failure is None else write_checkpoint_after_failure
            size = write(writer, commit)
            self._maintenance.checkpoint_made(writer.bytes_written, size)

    def checkpoint_unless_failed(self) -> None:
        """As `checkpoint`, but after a failed sync it raises `LogFailed` and changes nothing: its owner ends that."""
        with self._checkpointer() as (writer, commit):
            size = write_checkpoint(writer, commit)
            self._maintenance.checkpoint_made(writer.bytes_written, size)

    @contextmanager
    def _checkpointer(self) -> Iterator[tuple[LogWriter, GroupCommit]]:
        self._opened()
        # A lock of its own, not the write lock: a checkpoint
        # may take seconds, and updates must not wait for it.
        with self._checkpointing:
            # Again behind the lock: the log may have been closed while this call waited for another checkpoint.
            yield self._opened()

    def close(self) -> None:
        """Makes everything durable and releases the directory; a second call does nothing.

        Raises `DurabilityUnknown` when the last sync fails; the log is closed all the same. Value references
        stay readable.
        """
        with self._lifecycle:
            if self._closed:
                return
            self._closed = True
            # The thread is joined first, since it may be within a checkpoint of this log.
            self._maintenance.stop()
            with self._checkpointing:
                try:
                    self._finish()
                finally:
                    self._writer = self._commit = None
                    if self._ownership is not None:
                        self._ownership.release()

    def _finish(self) -> None:
        writer, commit = self._writer, self._commit
        # A failed log is not synced: a sync that succeeds now proves nothing about the pages that an earlier one
        # lost.
        if writer is None or commit is None or writer.failure is not None:
            return
        if writer.dirty:
            commit.sync()
        # Behind a sync that still runs: its callers would take the close for a failure of the log.
        with commit.sync_lock, writer.lock:
            # Callers that passed `_opened` before the close are
            # refused here instead of writing to a released directory.
            writer.fail("it was closed")
            for journal in writer.current.values():
                try:
                    # Its error changes nothing: a reserve that stays is zeros up to the end, which recovery takes
                    # for a clean end.
                    journal.trim()
                except OSError:
                    continue

    @property
    def last_transaction(self) -> int:
        """Id of the newest transaction, 0 when there was none."""
        return self._opened()[0].last

    @property
    def durable_transaction(self) -> int:
        """Id of the newest transaction known durable, with all before it."""
        return self._opened()[0].durable

    def reference(self, key: Hashable) -> ValueReference | None:
        """The reference to the current large value of `key`; None for a small value. Raises `KeyError`."""
        entry: Entry = self._opened()[0].entries[key]
        return entry if isinstance(entry, ValueReference) else None

    def get(self, key: Hashable, default: Any = None) -> Any:
        """The current record of `key`, read from disk when it is large."""
        entry = self._opened()[0].entries.get(key)
        return default if entry is None else load_entry(self._serde, key, entry)

    def metrics(self) -> WalMetrics:
        """The current metrics; cheap enough for every scrape."""
        writer, commit = self._opened()
        waits = sorted(commit.waits_ns)
        sizes = list(commit.group_sizes)
        return WalMetrics(
            transactions=writer.last,
            durable_transaction=writer.durable,
            bytes_written=writer.bytes_written,
            syncs=commit.syncs,
            sync_wait_p50_ms=_quantile(waits, 0.5),
            sync_wait_p99_ms=_quantile(waits, 0.99),
            group_size_mean=sum(sizes) / len(sizes) if sizes else 0.0,
            group_size_max=max(sizes, default=0),
            journals=len(writer.journals),
            records=len(writer.entries),
            failed=writer.failure is not None,
        )

    def run_maintenance(self) -> bool:
        """One round of maintenance: an interval sync, and a checkpoint when one is due. False when the log is closed."""
        writer = self._writer
        if writer is None:
            return False
        self._maintenance.tick(self, writer)
        return True

    def _opened(self) -> tuple[LogWriter, GroupCommit]:
        writer, commit = self._writer, self._commit
        if writer is None or commit is None:
            what = "closed" if self._closed else "not recovered yet"
            action = "make a new WriteAheadLog" if self._closed else "call recover first"
            raise LogMisused(f"the log in {self.directory} is {what}", action=action)
        return writer, commit

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _load_small(serde: Serde[Any, Any], key: Hashable, entry: Entry) -> Any:
    return entry if type(entry) is ValueReference else load_entry(serde, key, entry)


def _quantile(ordered_ns: list[int], share: float) -> float:
    return ordered_ns[min(len(ordered_ns) - 1, int(len(ordered_ns) * share))] / 1e6 if ordered_ns else 0.0
