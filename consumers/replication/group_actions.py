"""Carries out what the replica of a group decides: on its store, in log order, on the applying thread."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import structlog

from headrace.consumers.replication.actions import (
    Action,
    ApplyDelete,
    ApplyHandedDelete,
    ApplyLoad,
    ApplyRows,
    ApplyWrite,
    CompactNow,
    CutSlots,
    DropSlices,
    HandOversLost,
    Ignored,
    ReleaseSlots,
    SealNow,
)
from headrace.consumers.replication.admission import GroupStopping, RowAdmission, TableSchemas
from headrace.consumers.replication.distinct_slots import DistinctSlots
from headrace.consumers.replication.replica import Replica
from headrace.consumers.replication.row_selection import RowSelection
from headrace.consumers.replication.settings import ReplicationLimits
from headrace.consumers.replication.store_jobs import StoreJobQueue
from headrace.consumers.store import HandedRank, Slots, Store, handed_tombstone
from headrace.consumers.store.slots import rows_of_slots
from headrace.schemas import group_changes
from headrace.schemas.group_changes import Rank
from headrace.schemas.messages import Write
from headrace.schemas.payload import PayloadInvalid
from headrace.schemas.tables import DatabaseSchema, TableSchema

_log = structlog.get_logger(__name__)


class GroupActions:
    """The actions of one group. Owned by its applying thread."""

    def __init__(
        self,
        name: str,
        store: Store,
        replica: Replica,
        tables: TableSchemas,
        limits: ReplicationLimits,
        store_jobs: StoreJobQueue,
        stopping: Callable[[], bool],
        selection: RowSelection | None = None,
    ) -> None:
        """`selection`: for a replay of a part of the log; nothing else is put into the store."""
        self.rows_applied = 0
        self._selection = selection
        self._name = name
        self._store = store
        self._replica = replica
        self._tables = tables
        self._limits = limits
        self._store_jobs = store_jobs
        self._stopping = stopping
        self._admission = RowAdmission()
        self._distinct_slots = DistinctSlots()
        self._admitted: tuple[Write, pa.RecordBatch] | None = None
        replica.slots_of = self._slots_of
        # Before anybody can query: until the store knows the holds again, rows of slots that left would be shown.
        self._hold_again()

    @property
    def _era(self) -> int:
        return self._replica.state.changes.era

    def act(self, action: Action) -> None:
        """Carry out one action. A hand-over is nothing here: it is in the state, and the leader appends it."""
        if self._selection is not None and self._selection.skips(action):
            if isinstance(action, DropSlices | CompactNow | ApplyLoad):
                self._store_jobs.skip(action.version)
        elif isinstance(action, ApplyWrite):
            self._write(action)
        elif isinstance(action, ApplyRows):
            self._write_rows(action)
        elif isinstance(action, ApplyDelete):
            delete = action.delete
            self._store.delete(
                action.version, self._era, delete.database, delete.table, delete.tags, delete.start_ns, delete.end_ns
            )
        elif isinstance(action, ApplyHandedDelete):
            self._delete_handed(action)
        elif isinstance(action, SealNow):
            self._seal(action)
        elif isinstance(action, CutSlots):
            leaving = {slot for each in action.moves for slot in each.slots}
            self._store_jobs.submit(self._store.hold(action.version, self._slots(leaving)))
        elif isinstance(action, ReleaseSlots):
            self.release(action.version, self._slots(action.slots))
        elif isinstance(action, DropSlices | CompactNow | ApplyLoad):
            self._change_files(action)
        elif isinstance(action, HandOversLost):
            _log.error("late records lost with an accepted gap", group=self._name, records_by_group=action.lost)

    def release(self, version: int, slots: Slots) -> None:
        """Remove the files of slots that left."""
        # Not counted as work of that version: members do it at different times, and what they compare has none of it.
        self._store_jobs.submit_aside(self._store.release(version, slots))

    def _hold_again(self) -> None:
        """Hold the files of slots that left before this start: the store keeps that nowhere."""
        cuts: dict[int, set[int]] = {}
        for slot, given in self._replica.state.changes.given.items():
            cuts.setdefault(given.version, set()).add(slot)
        for version, slots in sorted(cuts.items()):
            self._store_jobs.submit_aside(self._store.hold(version, self._slots(slots)))

    def _slots(self, slots: group_changes.Slots | set[int]) -> Slots:
        return Slots(frozenset(slots), self._replica.state.changes.slots_total)

    def _change_files(self, action: DropSlices | CompactNow | ApplyLoad) -> None:
        if isinstance(action, DropSlices):
            drop = action.drop
            job = self._store.drop(action.version, self._era, drop.database, drop.table, drop.before_ns)
            if job is not None:
                self._store_jobs.submit(job)
            else:
                self._store_jobs.skip(action.version)
        elif isinstance(action, CompactNow):
            self._store_jobs.submit(self._store.compact(action.version, action.compact.inputs))
        else:
            load = action.load
            schema = self._schema(load.database, load.table, load.schema_version)
            database = self._database(load.database)
            self._store_jobs.submit(self._store.load(action.version, load, schema, database, self._era))

    def _write(self, action: ApplyWrite) -> None:
        admitted = self._admit(action.write)
        if admitted is not None:
            schema, database, rows = admitted
            self._store.write(action.version, self._era, schema, database, rows)
            self.rows_applied += rows.num_rows

    def _write_rows(self, action: ApplyRows) -> None:
        admitted = self._admit(action.write)
        if admitted is None:
            return
        changes = self._replica.state.changes
        schema, database, rows = admitted
        if action.rank == Rank(self._era, action.version):
            rows = rows_of_slots(rows, database, changes.slots_total, action.slots)
            self._store.write(action.version, self._era, schema, database, rows)
            self.rows_applied += rows.num_rows
            return
        # By the era since which they are held: deletes of this log from before it concern none of their rows.
        by_era: dict[int, list[int]] = {}
        for slot in action.slots:
            by_era.setdefault(max(changes.gained.get(slot, 0), action.rank.era + 1), []).append(slot)
        for held_since, slots in sorted(by_era.items()):
            found = rows_of_slots(rows, database, changes.slots_total, tuple(slots))
            rank = HandedRank(action.rank.era, action.rank.version, held_since)
            self._store.write_handed(action.version, rank, schema, database, found)
            self.rows_applied += found.num_rows

    def _delete_handed(self, action: ApplyHandedDelete) -> None:
        delete, rank = action.delete, HandedRank(action.rank.era, action.rank.version)
        table, between_ns = (delete.database, delete.table), (delete.start_ns, delete.end_ns)
        slots = self._slots(action.slots)
        deleted = handed_tombstone(action.version, rank, slots, table, delete.tags, between_ns)
        self._store.delete_handed(action.version, deleted)

    def _admit(self, write: Write) -> tuple[TableSchema, DatabaseSchema, pa.RecordBatch] | None:
        """The rows of a write; None for one that every replica rejects, or of which no row is selected."""
        schema = self._schema(write.database, write.table, write.schema_version)
        database = self._database(write.database)
        try:
            rows = self._rows(schema, write)
        except PayloadInvalid as error:
            self._replica.reject(Ignored.INVALID, error.message)
            return None
        if self._selection is not None:
            rows = self._selection.rows_of(rows)
            if not rows.num_rows:
                return None
        return schema, database, rows

    def _slots_of(self, write: Write, slots_total: int) -> group_changes.Slots:
        # From the version that the write names, and a database never changes: it follows from logs alone.
        schema = self._schema(write.database, write.table, write.schema_version)
        rows = self._admission.admit(schema, write)
        self._admitted = write, rows
        return self._distinct_slots.of(rows, self._database(write.database), slots_total)

    def _rows(self, schema: TableSchema, write: Write) -> pa.RecordBatch:
        """The rows of a write; those that were just decoded for their slots are not decoded again."""
        known, self._admitted = self._admitted, None
        return known[1] if known is not None and known[0] is write else self._admission.admit(schema, write)

    def _database(self, name: str) -> DatabaseSchema:
        found = self._tables.database(name)
        assert found is not None, f"a table of database {name} that nobody created"
        return found

    def _schema(self, database: str, table: str, version: int) -> TableSchema:
        """The exact schema that an accepted record names."""
        # A newer schema in its place would make the rows depend on how far this node has read another topic.
        while not self._stopping():
            schema = self._tables.wait_for(database, table, version, self._limits.schema_wait_s)
            if schema is not None:
                return schema
        raise GroupStopping(f"group {self._name} is stopping")

    def _seal(self, action: SealNow) -> None:
        # Before the freeze: a second frozen memtable beside one that is still written would double the
        # memory.
        self._store_jobs.wait_for_room()
        schemas = {
            (database, table): self._schema(database, table, version)
            for (database, table), version in action.tables.items()
            if self._selection is None or self._selection.has_table(database, table)
        }
        oldest_era = self._replica.state.changes.oldest_era
        job = self._store.freeze(action.version, oldest_era, action.state, schemas)
        # Queries of the slots that leave with this record wait for their files.
        given = self._replica.state.changes.given
        if leaving := {slot for slot, each in given.items() if each.version == action.version}:
            job.urgent, job.leaving = True, self._slots(leaving)
        self._store_jobs.seal(job, action.offset, action.log_bytes, before_load=action.before_load)
