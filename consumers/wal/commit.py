"""Group commit: one sync for everybody who waits for one.

The first caller that finds nobody syncing leads: it takes all that wait, writes their frames with one call a journal,
syncs each dirty journal once, wakes them, and appoints the first of those that came meanwhile. Nobody waits for a
thread of the log's own.
"""

from __future__ import annotations

import _thread
import threading
import time
from collections import deque
from dataclasses import dataclass

from consumers.wal.errors import DurabilityUnknown, LogFailed
from consumers.wal.writer import Transaction, Writer

_WRITTEN_BEFORE_FAILURE = "transaction {} is written, but a sync failed before it was durable"

SAMPLES_MAX = 1_024
"""Newest synced updates and groups that the metrics look back on."""


@dataclass(frozen=True, slots=True)
class WalMetrics:
    """Figures since the log was opened; waits and group sizes over the newest 1,024. Times in milliseconds, 0 when
    there is no sample.
    """

    transactions: int
    durable_transaction: int
    bytes_written: int
    syncs: int
    sync_wait_p50_ms: float
    sync_wait_p99_ms: float
    group_size_mean: float
    group_size_max: int
    journals: int
    records: int
    failed: bool


class GroupCommit:
    """Makes written transactions durable, for callers, for the interval and for a checkpoint, one sync at a time."""

    def __init__(self, writer: Writer) -> None:
        self.sync_lock = threading.Lock()
        self.waits_ns: deque[int] = deque(maxlen=SAMPLES_MAX)
        self.group_sizes: deque[int] = deque(maxlen=SAMPLES_MAX)
        self.syncs = 0
        self._writer = writer
        self._lock = threading.Lock()
        self._waiting: list[Transaction] = []
        self._led = False

    def commit(self, transaction: Transaction) -> None:
        """Writes the transaction and returns when it is durable with everything before it, or with its `error` set."""
        begun = time.perf_counter_ns()
        if transaction.encoded.values:
            # Copying many bytes is worth overlapping with the sync that is under way.
            with self._writer.lock:
                self._writer.append((transaction,))
            if transaction.error is not None:
                return
        gate = None
        with self._lock:
            self._waiting.append(transaction)
            if self._led:
                gate = transaction.gate = _thread.allocate_lock()
                gate.acquire()
            else:
                self._led = True
        if gate is None or self._wait(transaction, gate):
            self._lead()
        self.waits_ns.append(time.perf_counter_ns() - begun)

    def _wait(self, transaction: Transaction, gate: threading.Lock) -> bool:
        """Waits for the end of the transaction's group; True when the caller is to lead the next group instead."""
        try:
            gate.acquire()
        except BaseException:
            self._abandon(transaction)
            raise
        return transaction.appointed

    def _abandon(self, transaction: Transaction) -> None:
        # An interrupted caller may have been appointed at this very moment; then somebody else has to lead.
        with self._lock:
            if transaction in self._waiting:
                self._waiting.remove(transaction)
                if transaction.appointed:
                    self._appoint()

    def _appoint(self) -> None:
        if self._waiting:
            self._waiting[0].appointed = True
            self._waiting[0].gate.release()
        else:
            self._led = False

    def _lead(self) -> None:
        group: list[Transaction] = []
        settled = False
        try:
            with self.sync_lock:
                with self._lock:
                    group, self._waiting = self._waiting, []
                self._write_and_sync(group)
            settled = True
        finally:
            for member in group:
                if not settled and member.error is None:
                    member.error = _interrupted(member)
                if member.gate is not None:
                    member.gate.release()
            with self._lock:
                self._appoint()

    def _write_and_sync(self, group: list[Transaction]) -> None:
        with self._writer.lock:
            self._writer.append([member for member in group if member.number == 0])
            for member in group:
                if member.error is None and member.era != self._writer.era:
                    member.error = DurabilityUnknown(_WRITTEN_BEFORE_FAILURE.format(member.number), member.number)
            self._writer.files.step("update: group written")
        written = [member for member in group if member.error is None]
        self.group_sizes.append(len(group))
        if not written:
            return
        try:
            self._sync_written()
        except BaseException as error:
            for member in written:
                member.error = DurabilityUnknown(
                    f"transaction {member.number} is written, but its sync failed: {error}", member.number
                )
                member.error.__cause__ = error
            if not isinstance(error, Exception):
                raise

    def sync(self) -> None:
        """Makes everything written so far durable; raises `LogFailed`, or `DurabilityUnknown` when the sync fails."""
        with self.sync_lock:
            if self._writer.failure is not None:
                raise LogFailed(self._writer.failure)
            try:
                self._sync_written()
            except OSError as error:
                raise DurabilityUnknown(
                    f"transactions up to {self._writer.last} are written, but their sync failed: {error}"
                ) from error

    def _sync_written(self) -> None:
        """With the sync lock held: one sync for each dirty journal. A failure ends the log's service until a
        checkpoint.
        """
        writer = self._writer
        try:
            with writer.lock:
                target, dirty = writer.take_dirty()
            for journal in dirty:
                journal.sync()
                self.syncs += 1
        except BaseException as error:
            with writer.lock:
                writer.fail(f"sync of a journal: {error}")
            raise
        writer.files.step("update: journals synced")
        writer.durable = target


def _interrupted(member: Transaction) -> LogFailed | DurabilityUnknown:
    if member.number:
        return DurabilityUnknown(
            f"the leader of the group was interrupted before transaction {member.number} was durable"
        )
    return LogFailed("the leader of the group was interrupted before it wrote")
