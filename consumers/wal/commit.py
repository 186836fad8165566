"""Group commit: one sync for all callers that wait for one.

A caller that finds no leader becomes the leader. It takes all waiting transactions, writes their frames with
one call a journal, syncs each dirty journal once and wakes the group. The first transaction that arrived
meanwhile leads the next group. No caller waits for a background thread.
"""

from __future__ import annotations

import _thread
import threading
import time
from collections import deque
from dataclasses import dataclass

from headrace.consumers.wal.log_writer import LogWriter, Transaction
from headrace.consumers.wal.wal_errors import DurabilityUnknown, LogFailed

_WRITTEN_BEFORE_FAILURE = "transaction {} is written, but a sync failed before it was durable"

SAMPLES_MAX = 1_024
"""Newest synced updates and groups that the metrics cover."""


@dataclass(frozen=True, slots=True)
class WalMetrics:
    """Metrics since the log was opened; waits and group sizes cover the newest 1,024.

    Times are in milliseconds, 0 without a sample.
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
    """Makes written transactions durable, one sync at a time."""

    def __init__(self, writer: LogWriter) -> None:
        self.sync_lock = threading.Lock()
        self.waits_ns: deque[int] = deque(maxlen=SAMPLES_MAX)
        self.group_sizes: deque[int] = deque(maxlen=SAMPLES_MAX)
        self.syncs = 0
        self._writer = writer
        self._lock = threading.Lock()
        self._waiting: list[Transaction] = []
        self._leader: Transaction | None = None

    def commit(self, transaction: Transaction) -> None:
        """Writes the transaction; on return it and all before it are durable, or its `error` is set."""
        started_ns = time.perf_counter_ns()
        if transaction.encoded.values:
            # Large values are written by their own caller, so
            # that copying them overlaps with the running sync.
            with self._writer.lock:
                self._writer.append((transaction,))
            if transaction.error is not None:
                return
        try:
            gate = self._join(transaction)
            if gate is not None:
                gate.acquire()
            # Without a gate, or promoted: whoever is neither has been a member of a group that has ended.
            if self._leader is transaction:
                self._lead(transaction)
        except BaseException:
            self._leave(transaction)
            raise
        self.waits_ns.append(time.perf_counter_ns() - started_ns)

    def _join(self, transaction: Transaction) -> threading.Lock | None:
        """Lines the transaction up; returns what its caller waits for, None when it leads."""
        with self._lock:
            if self._leader is None:
                self._waiting.append(transaction)
                self._leader = transaction
                return None
            # A bare lock for each waiter instead of a condition:
            # it wakes exactly one thread, without a second lock.
            gate: threading.Lock = _thread.allocate_lock()
            # Acquired before the leader can see the transaction: a release that came first would be an error.
            gate.acquire()
            transaction.gate = gate
            self._waiting.append(transaction)
            return gate

    def _leave(self, transaction: Transaction) -> None:
        """Takes a caller out of the line; one that leads appoints the next. A second call does nothing."""
        # An interrupted caller (KeyboardInterrupt) may be a waiter, a waiter that was promoted at this moment, or a
        # leader that still waits for the running sync. Nobody writes for it any more, and nobody waits for it.
        with self._lock:
            if transaction in self._waiting:
                self._waiting.remove(transaction)
            if self._leader is transaction:
                # The one that arrived first: the group that it takes has everybody who waits, so nobody starves.
                self._leader = self._waiting[0] if self._waiting else None
                if self._leader is not None:
                    self._leader.gate.release()

    def _lead(self, transaction: Transaction) -> None:
        group: list[Transaction] = []
        completed = False
        try:
            # The group is taken after the lock: transactions that
            # arrive during the previous sync join this group.
            with self.sync_lock:
                with self._lock:
                    group, self._waiting = self._waiting, []
                self._write_and_sync(group)
            completed = True
        finally:
            # An interrupted leader (KeyboardInterrupt) must neither leave its group waiting nor report
            # success: a member without an error counts as durable.
            for member in group:
                if not completed and member.error is None:
                    member.error = _interrupted(member)
                if member.gate is not None:
                    member.gate.release()
            self._leave(transaction)

    def _write_and_sync(self, group: list[Transaction]) -> None:
        with self._writer.lock:
            self._writer.append([member for member in group if member.number == 0])
            for member in group:
                # Large values were written before the group formed;
                # a sync that failed since then covered them.
                if member.error is None and member.failures_before != self._writer.failure_count:
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
        """Makes everything written so far durable.

        Raises `LogFailed`, or `DurabilityUnknown` when the sync fails.
        """
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
        """With the sync lock held: one sync for each dirty journal.

        After a failure the log refuses updates. Raises DurabilityUnknown when the log failed meanwhile.
        """
        writer = self._writer
        try:
            with writer.lock:
                # Target and set in one critical section: the watermark
                # must not cover a later, unsynced transaction.
                target, dirty = writer.take_dirty()
            for journal in dirty:
                journal.sync()
                self.syncs += 1
        except BaseException as error:
            # Never retried: after a failed fsync the kernel marks the pages clean, and the next fsync
            # succeeds without writing them.
            with writer.lock:
                writer.fail(f"sync of a journal: {error}")
            raise
        writer.files.step("update: journals synced")
        with writer.lock:
            # The kernel reports an error of writeback once for a descriptor: the sync of a cut on the same one may have
            # taken that of these pages. It runs under the write lock, and so behind it the failure is known. It is
            # still there: the checkpoint that ends it waits for the sync lock.
            if writer.failure is not None:
                raise DurabilityUnknown(
                    f"the log failed while transactions up to {target} were synced: {writer.failure}"
                )
            writer.durable = target


def _interrupted(member: Transaction) -> LogFailed | DurabilityUnknown:
    if member.number:
        return DurabilityUnknown(
            f"the leader of the group was interrupted before transaction {member.number} was durable"
        )
    return LogFailed("the leader of the group was interrupted before it wrote")
