"""One data group at one node: carries what its replica decides into its store.

Entries come in through a bounded queue and leave it on one thread, in log order. Seals run beside it in a pool, at most one behind another, and
commit in order. A fault that nobody can wait out stops the group here, with its cause shown: never skipped here and applied elsewhere.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
import structlog

from consumers.replication.chain import CHAIN_INTERVAL
from consumers.replication.files import GroupFiles, GroupStopping
from consumers.replication.journal import JournalEntry
from consumers.replication.limits import ReplicationLimits
from consumers.replication.progress import Progress
from consumers.replication.replica import (
    Action,
    ApplyDelete,
    ApplyWrite,
    CompactNow,
    DropSlices,
    Ignored,
    LogHasGap,
    Replica,
    SealNow,
)
from consumers.replication.state import GroupState, LogBase
from consumers.store import Store
from schemas.errors import HeadraceError
from schemas.messages import NO_CHAIN, Leadership
from schemas.payload import PayloadInvalid, decode_rows
from schemas.tables import DatabaseSchema, FieldType, TableSchema

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Applied:
    """Where a group stands after one record: one value, so that other threads never see half of a step."""

    version: int = 0
    offset: int = -1
    chain: bytes = NO_CHAIN
    timestamp_ms: int = 0
    epoch: int = 0
    leader: Leadership | None = None
    frontier: int = 0
    unsealed_rows: int = 0
    claimed_ms: int = 0
    log_bytes: int = 0

    @classmethod
    def of(cls, state: GroupState, timestamp_ms: int, before: Applied | None = None) -> Applied:
        """The replicated state, and when the log took its newest record and, as far as was seen, its newest accepted claim."""
        claimed_ms = before.claimed_ms if before is not None and before.epoch == state.epoch else timestamp_ms
        return cls(
            state.version,
            state.offset,
            state.chain,
            timestamp_ms,
            state.epoch,
            state.leader,
            state.frontier,
            state.unsealed_rows,
            claimed_ms,
            state.log_bytes,
        )


class Tables(Protocol):
    """The catalogue as a replica needs it: it waits for exactly the version a record names."""

    def wait_for(self, database: str, table: str, version: int, timeout_s: float) -> TableSchema | None:
        """The table at a version, or None when the table log has not come that far in time."""
        ...

    def database(self, database: str) -> DatabaseSchema | None:
        """The database, None while it is unknown."""
        ...


class Recovering(Protocol):
    """How a recovery from another member's files goes."""

    bytes_done: int
    bytes_total: int
    wrong: bool
    waiting: bool

    def progress(self) -> Progress:
        """Its figures."""
        ...

    @property
    def reason(self) -> str:
        """How far it is, or what it waits for."""
        ...


class Group:
    """A data group at this node. `enqueue` is called by the consuming thread; the properties may be read by any."""

    def __init__(
        self,
        name: str,
        members: tuple[str, ...],
        era: int,
        store: Store,
        tables: Tables,
        limits: ReplicationLimits,
        on_sealed: Callable[[str, int], None],
    ) -> None:
        self.name = name
        self.members = members
        self.store = store
        self._era = era
        self._tables = tables
        self._limits = limits
        state = GroupState.from_bytes(store.state) if store.state is not None else GroupState()
        self.replica = Replica(members, state)
        self.files = GroupFiles(name, store, state, limits, on_sealed, self._files_failed)
        self.fault = ""
        self.recovery: Recovering | None = None
        self.waiting = ""
        self.disputed = ""
        self.damage = ""
        self.lost = ""
        self.outrun = ""
        self.gap: LogBase | None = None
        self.applied = Applied.of(state, 0)
        self.chain_mark: tuple[int, bytes] = (0, NO_CHAIN)
        self.rows_applied = 0
        self._chains: deque[bytes] = deque([state.chain], maxlen=limits.chain_history)
        self._offsets: deque[int] = deque([state.offset], maxlen=limits.chain_history)
        self._queue: deque[JournalEntry] = deque()
        self._queue_bytes = 0
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"apply-{name}", daemon=True)

    @property
    def version(self) -> int:
        """Newest version applied."""
        return self.applied.version

    def chain_at(self, version: int) -> bytes | None:
        """The chain after a record, None when that is not reached yet or no longer remembered."""
        with self._changed:
            behind = self.applied.version - version
            return self._chains[-1 - behind] if 0 <= behind < len(self._chains) else None

    def history(self) -> list[tuple[int, bytes]]:
        """(offset, chain after it) of the records that are remembered, oldest first; the first only stands for what came before."""
        with self._changed:
            return list(zip(self._offsets, self._chains, strict=True))

    @property
    def directory_name(self) -> str:
        """What its directories are called, wherever they lie."""
        return self.store.segments_directory.name

    @property
    def era(self) -> int:
        """Era of the rows it takes."""
        return self._era

    @property
    def follows(self) -> bool:
        """Whether it takes records: neither stopped, nor without its log, nor waiting for another member's files."""
        return not self.fault and not self.lost and self.recovery is None

    @property
    def stuck(self) -> bool:
        """Whether nothing but an operator, or other members, can help: the log is lost, or does not reach what is here."""
        return bool(self.lost) or (self.recovery is not None and self.recovery.waiting)

    def log_is_whole(self, begin: int) -> bool:
        """Whether its log, which begins at offset `begin`, has every record of the group from its first."""
        return begin == 0 and self.replica.state.base == LogBase() and self.gap is None

    @property
    def sealed_for_others(self) -> tuple[int, int]:
        """(version, offset) up to which its files lead a copy to the log; (0, -1) while they end before a gap in the log."""
        if self.files.sealed_version < self.replica.state.base.version:
            return 0, -1
        return self.files.sealed_version, self.files.sealed_offset

    @property
    def queue_bytes(self) -> int:
        """Bytes of messages that are journaled and not yet applied."""
        return self._queue_bytes

    def recover(self, entries: Iterable[JournalEntry], on_entry: Callable[[JournalEntry], None]) -> None:
        """Apply what the journal holds beyond the store's state, before the thread starts."""
        for entry in entries:
            self._apply(entry)
            on_entry(entry)

    def start(self) -> None:
        """Begin to apply what is enqueued."""
        self._thread.start()

    def enqueue(self, entries: Sequence[JournalEntry]) -> None:
        """Hand over entries that are durable in the journal, in log order."""
        with self._changed:
            self._queue.extend(entries)
            self._queue_bytes += sum(len(entry.value) for entry in entries)
            self._changed.notify_all()

    @property
    def full(self) -> bool:
        """Whether the topic should be paused until the queue has drained."""
        return self._queue_bytes >= self._limits.apply_queue_bytes or bool(self.fault)

    @property
    def drained(self) -> bool:
        """Whether a paused topic may go on."""
        return self._queue_bytes <= self._limits.apply_queue_bytes // 2 and not self.fault

    def fail(self, reason: str) -> None:
        """Stop the group at this node; data is kept."""
        with self._changed:
            if not self.fault:
                self.fault = reason
                _log.error("group stopped", group=self.name, reason=reason, version=self.version)
            self._changed.notify_all()
        self.files.give_up()

    def _files_failed(self, reason: str, damage: str) -> None:
        self.damage = self.damage or damage
        self.fail(reason)

    def lose(self, reason: str) -> None:
        """The log does not hold what this group has; what was read is still applied, and the data is kept."""
        if not self.lost:
            self.lost = reason
            _log.error("log lost", group=self.name, reason=reason, version=self.version)

    def join(self, base: LogBase) -> None:
        """The log goes on behind a gap. Called while nothing is applied; without effect on a group that has come further."""
        with self._changed:
            state = self.replica.state
            if state.version <= base.version:
                state.base = base
            if state.version == base.version:
                state.offset, state.record_digest = base.offset - 1, NO_CHAIN
                self.applied = Applied.of(state, self.applied.timestamp_ms, self.applied)

    def stop(self, timeout_s: float = 30.0) -> None:
        """Finish the entry in hand and the running seals; what is queued stays in the journal."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self.files.give_up()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        self.files.stop()

    def _run(self) -> None:
        while (entry := self._next()) is not None:
            try:
                self._apply(entry)
            except GroupStopping:
                return
            except HeadraceError as error:
                self.fail(f"record {entry.version} at offset {entry.offset}: {error}")
            except Exception as error:
                # Whatever went wrong, a record that is not applied here must not be passed over: stop where we are.
                self.fail(f"record {entry.version} at offset {entry.offset}: {error!r}")
                _log.exception("applying failed", group=self.name)

    def _next(self) -> JournalEntry | None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or (self._queue and not self.fault))
            if self._stopping:
                return None
            entry = self._queue.popleft()
            self._queue_bytes -= len(entry.value)
            return entry

    def _apply(self, entry: JournalEntry) -> None:
        try:
            actions = self.replica.apply(entry.offset, entry.value, entry.headers)
        except LogHasGap as error:
            self.gap, self.damage = error.base, error.message
            raise
        state = self.replica.state
        assert state.version == entry.version, f"record {entry.version} of {self.name} was counted as {state.version}"
        for action in actions:
            self._act(action)
        with self._changed:
            self._chains.append(state.chain)
            self._offsets.append(state.offset)
            self.applied = Applied.of(state, entry.timestamp_ms, self.applied)
            if state.version % CHAIN_INTERVAL == 0:
                self.chain_mark = (state.version, state.chain)
            self._changed.notify_all()

    def wait_for_offset(self, offset: int, timeout_s: float) -> bool:
        """Whether everything up to an offset is applied, waited for."""
        return self.wait_for(lambda: self.applied.offset >= offset, timeout_s)

    def wait_for(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Whether a condition of what is applied came true in time; a stopped group never gets there."""
        with self._changed:
            return self._changed.wait_for(lambda: condition() or bool(self.fault), timeout_s) and condition()

    def _act(self, action: Action) -> None:
        if isinstance(action, ApplyWrite):
            self._write(action)
        elif isinstance(action, ApplyDelete):
            delete = action.delete
            self.store.delete(
                action.version, self._era, delete.database, delete.table, delete.tags, delete.start_ns, delete.end_ns
            )
        elif isinstance(action, SealNow):
            self._seal(action)
        elif isinstance(action, DropSlices):
            drop = action.drop
            job = self.store.drop(action.version, self._era, drop.database, drop.table, drop.before_ns)
            if job is not None:
                self.files.submit(job)
            else:
                self.files.nothing_to_do(action.version)
        elif isinstance(action, CompactNow):
            self.files.submit(self.store.compact(action.version, action.compact.inputs))

    def _write(self, action: ApplyWrite) -> None:
        write = action.write
        schema = self._schema(write.database, write.table, write.schema_version)
        database = self._tables.database(write.database)
        assert database is not None, f"table {write.database}.{write.table} without a database"
        try:
            rows = decode_rows(write.rows)
        except PayloadInvalid:
            self.replica.ignored[Ignored.UNDECODABLE] += 1
            return
        if not fits(schema, rows):
            self.replica.ignored[Ignored.UNDECODABLE] += 1
            return
        self.store.write(action.version, self._era, schema, database, rows)
        self.rows_applied += rows.num_rows

    def _schema(self, database: str, table: str, version: int) -> TableSchema:
        """The exact schema a record names, waited for as long as it takes. Raises GroupStopping."""
        while not self._stopping:
            schema = self._tables.wait_for(database, table, version, self._limits.schema_wait_s)
            if schema is not None:
                self.waiting = ""
                return schema
            self.waiting = f"version {version} of table {database}.{table}, which the table log does not hold yet"
        raise GroupStopping(f"group {self.name} is stopping")

    def _seal(self, action: SealNow) -> None:
        self.files.make_room()
        schemas = {
            (database, table): self._schema(database, table, version)
            for (database, table), version in action.tables.items()
        }
        job = self.store.freeze(action.version, self._era, action.state, schemas)
        self.files.seal(job, self.replica.state.offset, self.replica.state.log_bytes)


def fits(schema: TableSchema, rows: pa.RecordBatch) -> bool:
    """Whether a row batch has only columns of the schema, each with its type."""
    types = schema.field_types()
    return all(types.get(field.name) == FieldType.of_arrow(field.type) for field in list(rows.schema)[2:])
