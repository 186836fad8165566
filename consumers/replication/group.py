"""One data group at one node: applies the actions of its replica to its store.

Entries come in through a bounded queue and leave it on one thread, in log order. Seals run beside it in a
pool, at most one behind another, and commit in order. A fault that is not retriable stops the group at this
node and shows its cause: no record is skipped here and applied elsewhere.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import structlog

from headrace.consumers.replication.actions import Action
from headrace.consumers.replication.admission import (
    GroupStopping,
    TablesAwaited,
    TableSchemas,
    TableWait,
    log_rejection,
)
from headrace.consumers.replication.applied_state import AppliedState
from headrace.consumers.replication.change_view import ChangeView
from headrace.consumers.replication.founding import Founding
from headrace.consumers.replication.group_actions import GroupActions
from headrace.consumers.replication.group_health import Event, GroupHealth, State, Use
from headrace.consumers.replication.group_state import GapRecord, GroupState, LogBase, LogHasGap
from headrace.consumers.replication.hash_chain import CHAIN_INTERVAL, record_digest
from headrace.consumers.replication.journal import JournalEntry
from headrace.consumers.replication.replica import Replica
from headrace.consumers.replication.row_selection import RowSelection
from headrace.consumers.replication.settings import ReplicationLimits
from headrace.consumers.replication.store_jobs import JobPool, StoreJobQueue
from headrace.consumers.store import Slots, Store
from headrace.schemas.errors import HeadraceError
from headrace.schemas.group_changes import GroupKey
from headrace.schemas.messages import NO_CHAIN

_log = structlog.get_logger(__name__)


class Group:
    """A data group at this node.

    `enqueue` is called by the consuming thread; the properties may be read by any.
    """

    def __init__(
        self,
        name: str,
        founding: Founding,
        store: Store,
        tables: TableSchemas,
        limits: ReplicationLimits,
        on_sealed: Callable[[str, int], None],
        pool: JobPool | None = None,
        selection: RowSelection | None = None,
    ) -> None:
        """`selection`: for a replay of a part of the log."""
        self.name = name
        self.founding = founding
        self.birth_key = GroupKey(name, founding.birth)
        self.store = store
        self._limits = limits
        state = GroupState.from_bytes(store.state) if store.state is not None else GroupState()
        self.replica = Replica(founding.members, state, era=founding.birth, gains=founding.gains)
        self._changed = threading.Condition()
        self.health = GroupHealth(self._changed)
        self._table_wait = TableWait(name, tables, limits.schema_wait_s, self.health, lambda: self._stopping)
        self.replica.knows_tables = self._table_wait.accepts
        self.store_jobs = StoreJobQueue(store.group, store, state, limits, self.health, on_sealed, pool)
        self.applied = AppliedState.of(state, 0)
        self.decided = self.applied.changes
        """What its log has decided up to the record that is carried out now; `applied` follows when that is done."""
        self.chain_sample: tuple[int, bytes] = (0, NO_CHAIN)
        self._stopping = False
        self._actions = GroupActions(
            name, store, self.replica, tables, limits, self.store_jobs, lambda: self._stopping, selection
        )
        self._released: set[int] = set()
        self._chains: deque[bytes] = deque([state.chain], maxlen=limits.chain_history)
        self._offsets: deque[int] = deque([state.offset], maxlen=limits.chain_history)
        self._queue: deque[JournalEntry] = deque()
        self._queue_bytes = 0
        self._thread = threading.Thread(target=self._run, name=f"apply-{name}", daemon=True)

    @property
    def rows_applied(self) -> int:
        """Rows that it has put into its store since this start."""
        return self._actions.rows_applied

    @property
    def version(self) -> int:
        """Newest version applied."""
        return self.applied.version

    def chain_at(self, version: int) -> bytes | None:
        """The chain after a record, None when that is not applied yet or no longer remembered."""
        with self._changed:
            behind = self.applied.version - version
            return self._chains[-1 - behind] if 0 <= behind < len(self._chains) else None

    def history(self) -> list[tuple[int, bytes]]:
        """(offset, chain after it) of the remembered records, oldest first; the first represents all before."""
        with self._changed:
            return list(zip(self._offsets, self._chains, strict=True))

    @property
    def members(self) -> tuple[str, ...]:
        """Its members as its log has decided, the header first."""
        return self.applied.changes.members

    @property
    def voters(self) -> tuple[str, ...]:
        """The members that count for a quorum: those that a running first phase adds do not yet."""
        return self.applied.changes.voters

    @property
    def key(self) -> str:
        """Its name at this node, in the journal and for its store: another one for each birth of its header."""
        return self.store.group

    @property
    def directory_name(self) -> str:
        """The name of its directories, below `segments`, `index` and the directories of a recovery."""
        return self.store.segments_directory.name

    @property
    def era(self) -> int:
        """Era of the rows it takes."""
        return self.replica.state.changes.era

    @property
    def follows(self) -> bool:
        """Whether it takes records.

        It does not while it is stopped, without its log, or under recovery.
        """
        return not self.health.refuses(Use.FOLLOWING)

    @property
    def blocked(self) -> bool:
        """Whether only an operator, or other members, can help: the log is lost, or begins too late."""
        return self.health.holds(State.LOST, State.UNSOURCED)

    def log_is_whole(self, begin: int) -> bool:
        """Whether its log, which begins at offset `begin`, has every record of the group from its first."""
        # A log behind a gap begins at 0 as well when its topic was recreated, so the base is compared and not
        # the offset alone.
        return begin == 0 and self.replica.state.base == LogBase() and self.health.conditions.gap is None

    @property
    def sealed_for_others(self) -> tuple[int, int]:
        """(version, offset) up to which a copy of its files can follow the log.

        (0, -1) while they end before a gap in the log.
        """
        # Between accepting a gap and the seal that the gap asks for, the records before it are in the journal
        # only: a copy of the files would end before the gap, where no log continues.
        base, version, offset = self.replica.state.base, self.store_jobs.sealed_version, self.store_jobs.sealed_offset
        # A gap that is not in files itself may still be cut off the log, and a copy would not notice.
        unread = base.record is not None and (version <= base.version or offset < base.record.offset)
        return (0, -1) if version < base.version or unread else (version, offset)

    @property
    def queue_bytes(self) -> int:
        """Bytes of messages that are journaled and not yet applied."""
        return self._queue_bytes

    def recover(self, entries: Iterable[JournalEntry], on_entry: Callable[[JournalEntry], None]) -> JournalEntry | None:
        """Apply the journal's entries beyond the store's state, before the thread starts; returns the newest.

        The first that would wait for a version of a table, or for a file, and all behind it, are left to the thread.
        """
        # A node that waited here would not start: nobody would see what it waits for, and nobody fetch it.
        newest, left = None, list[JournalEntry]()
        self._table_wait.waits = self.store_jobs.waits_for_files = False
        for newest in entries:
            try:
                if not left and not self.store_jobs.lacks_file:
                    self._apply(newest)
                    on_entry(newest)
                    continue
            except TablesAwaited:
                pass
            left.append(newest)
        self._table_wait.waits = self.store_jobs.waits_for_files = True
        self.enqueue(left)
        return newest

    def start(self) -> None:
        """Begin to apply the queue."""
        self._thread.start()

    def enqueue(self, entries: Sequence[JournalEntry]) -> None:
        """Add entries that are durable in the journal, in log order."""
        with self._changed:
            self._queue.extend(entries)
            self._queue_bytes += sum(len(entry.value) for entry in entries)
            self._changed.notify_all()

    @property
    def full(self) -> bool:
        """Whether the topic should be paused until the queue has drained."""
        return self._queue_bytes >= self._limits.apply_queue_bytes or self._stopped

    @property
    def drained(self) -> bool:
        """Whether a paused topic may be resumed."""
        # Half the limit, so that a topic is not paused and resumed at every record.
        return self._queue_bytes <= self._limits.apply_queue_bytes // 2 and not self._stopped

    def fail(self, reason: str) -> None:
        """Stop the group at this node; data is kept."""
        if self.health.report(Event.STOP, reason):
            _log.error("group stopped", group=self.name, reason=reason, version=self.version)
        self.store_jobs.cancel()

    @property
    def _stopped(self) -> bool:
        return self.health.holds(State.STOPPED)

    def mark_log_lost(self, reason: str) -> None:
        """The log does not hold what this group has: what was read is still applied, and the data is kept."""
        if self.health.report(Event.LOSE, reason):
            _log.error("log lost", group=self.name, reason=reason, version=self.version)

    def join_gap(self, base: LogBase) -> None:
        """Continue behind a gap in the log.

        Called while nothing is applied; without effect on a group that has applied more.
        """
        with self._changed:
            state = self.replica.state
            # A restart behind the gap finds its base in the store, without the place of its record.
            if state.version <= base.version or state.base == base:
                state.base = base
            if state.version == base.version:
                # The digest is cleared with the offset: the record before the gap is in no log and cannot be
                # compared.
                state.offset, state.record_digest = base.offset - 1, NO_CHAIN
                self.applied = AppliedState.of(state, self.applied.timestamp_ms, self.applied)

    def request_stop(self) -> None:
        """Begin to stop, and return at once: groups that are asked first and stopped later end at the same time."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self.store_jobs.cancel()

    def stop(self, timeout_s: float = 30.0) -> None:
        """Finish the current entry and the running seals; queued entries stay in the journal."""
        self.request_stop()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        self.store_jobs.stop()

    def _run(self) -> None:
        while not self._stopping:
            self.turn()
            with self._changed:
                self._changed.wait_for(
                    lambda: self._stopping or ((self._queue or self._released) and not self._stopped)
                )

    def release(self, slots: Iterable[int]) -> None:
        """Remove the files of slots that other groups hold, once these have all of them. Any thread may call it."""
        with self._changed:
            self._released.update(slots)
            self._changed.notify_all()

    def _release(self) -> None:
        """Begin to remove what was released, behind the records so far: the store's jobs run in one order."""
        with self._changed:
            released, self._released = self._released, set()
        changes = self.replica.state.changes
        # A slot that has come back in the meantime has lost its former files already.
        if given := released.intersection(changes.given):
            self._actions.release(self.version, Slots(frozenset(given), changes.slots_total))

    def turn(self) -> bool:
        """Apply the oldest queued entry: one step of the applying thread. False when there is none to apply now."""
        if self._released and not self._stopping and not self._stopped:
            self._release()
        entry = self._next()
        if entry is None:
            return False
        try:
            self._apply(entry)
        except GroupStopping:
            return False
        except HeadraceError as error:
            self.fail(f"record {entry.version} at offset {entry.offset}: {error}")
        except Exception as error:
            # Whatever went wrong, a record that is not applied here must not be skipped: the group stops at it.
            self.fail(f"record {entry.version} at offset {entry.offset}: {error!r}")
            _log.exception("applying failed", group=self.name)
        return True

    def _next(self) -> JournalEntry | None:
        with self._changed:
            if self._stopping or self._stopped or not self._queue:
                return None
            entry = self._queue.popleft()
            self._queue_bytes -= len(entry.value)
            return entry

    def _take(self, entry: JournalEntry) -> list[Action]:
        """The actions of an entry. Raises LogHasGap where records before an accepted gap are not here."""
        try:
            return self.replica.apply(entry.offset, entry.value, entry.headers)
        except LogHasGap as error:
            if not self._has_all_before(error.base):
                # Damage, and not only a fault: the next turn of recovery takes another member's files.
                self.health.damage(error.message, gap=error.base)
                raise
            place = GapRecord(entry.offset, record_digest(entry.value))
            self.replica.state.base = replace(error.base, record=place)
        return self.replica.apply(entry.offset, entry.value, entry.headers)

    def _has_all_before(self, base: LogBase) -> bool:
        """Whether the log had all records before an accepted gap: what was read there is the anchor's data."""
        history, behind = self.history(), self.version - base.version
        if not 0 <= behind < len(history):
            return False
        newest = len(history) - 1 - behind
        # Records that the log had there besides would have the versions of those behind the gap.
        continues = all(offset >= base.offset for offset, _ in history[newest + 1 : newest + 2])
        return history[newest][0] < base.offset and history[newest][1] == base.chain and continues

    def _apply(self, entry: JournalEntry) -> None:
        actions = self._take(entry)
        state = self.replica.state
        assert state.version == entry.version, f"record {entry.version} of {self.name} was counted as {state.version}"
        # Before the actions: a cut hides rows at once, and a query that lacks them must find here that slots have moved.
        self.decided = ChangeView.of(state.changes, self.applied.changes)
        for action in actions:
            self._act(action)
        log_rejection(self.name, self.replica)
        # After the actions: whoever reads the new state may rely on the store holding everything of that
        # version.
        with self._changed:
            self._chains.append(state.chain)
            self._offsets.append(state.offset)
            self.applied = AppliedState.of(state, entry.timestamp_ms, self.applied)
            if state.version % CHAIN_INTERVAL == 0:
                self.chain_sample = (state.version, state.chain)
            self._changed.notify_all()

    def wait_for(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Whether a condition on the applied state became true in time.

        A group with a fault, or one that stops, applies nothing more, so the answer is then False at once.
        """
        with self._changed:
            return (
                self._changed.wait_for(lambda: condition() or self._stopped or self._stopping, timeout_s)
                and condition()
            )

    def _act(self, action: Action) -> None:
        self._actions.act(action)
