"""The slot model over groups with stores: what their logs ask for must be in the files and the memory of a real one.

The files of a cut travel as they do in a cluster: an export of the donor, a `Load` for each in the log of the new
holder, and the staged file before or after it. Jobs run when a command says so.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from headrace.consumers.replication.actions import Action, CutSlots
from headrace.consumers.replication.founding import Founding
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.group_health import State
from headrace.consumers.replication.group_state import GroupState
from headrace.consumers.replication.journal import JournalEntry
from headrace.consumers.replication.replica import Replica
from headrace.consumers.replication.settings import ReplicationLimits
from headrace.consumers.replication.store_jobs import GATHER_STEPS_MAX, IsUrgent, JobStep
from headrace.consumers.store import Slots, Store, StoreSettings, staged_names
from headrace.schemas.group_changes import GroupKey
from headrace.schemas.group_changes import Slots as SlotNumbers
from headrace.schemas.messages import Compact, Leadership, Load, Seal
from tests.unit.replication.slot_logs import ANCHOR, SLOTS_TOTAL, SlotLog
from tests.unit.replication.slot_model import GROUPS, Cluster, RowFormat
from tests.unit.replication.slot_rows import (
    OneTable,
    key_of,
    payload_delete,
    payload_rows,
    payload_write,
)

SETTINGS = StoreSettings(row_group_rows=16, compaction_files_min=2, encode_threads=1)
LIMITS = ReplicationLimits(job_backlog=50)
HEADERS = (("format", b"3"),)
PAYLOADS = RowFormat(
    payload_write, payload_rows, payload_delete, lambda delete: key_of(delete.tags["name"][0], delete.start_ns or 0)
)


class LazyPool:
    """A JobPool whose steps run when somebody asks."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []
        self.ended: set[int] = set()

    def submit(self, step: JobStep, *, urgent: IsUrgent = lambda: False) -> Any:
        """See JobPool."""
        pool = self

        class Handle:
            """See JobHandle."""

            def done(self) -> bool:
                """See JobHandle."""
                return id(self) in pool.ended

            def result(self, timeout: float | None = None) -> None:
                """See JobHandle."""
                del timeout
                while not self.done():
                    pool.run(1)

        handle = Handle()
        self.waiting.append((step, handle))
        return handle

    def run(self, count: int) -> None:
        """Run the oldest steps."""
        for _ in range(min(count, len(self.waiting))):
            step, handle = self.waiting.pop(0)
            # A load waits a moment for others.
            assert None in (step() for _ in range(GATHER_STEPS_MAX + 1))
            self.ended.add(id(handle))
            self.kept = handle

    def hurry(self) -> None:
        """See JobPool."""

    def shutdown(self) -> None:
        """See JobPool."""


class WatchedGroup(Group):
    """A Group that shows the actions of its newest record. Queries know what it decided before any of them."""

    acted: list[Action]

    def _act(self, action: Action) -> None:
        decided = self.replica.state.changes
        assert (decided.settled_version, decided.era) == (self.decided.settled_version, self.decided.era)
        self.acted.append(action)
        super()._act(action)


class StoredLog(SlotLog):
    """A log with a group that applies it to a store."""

    def __init__(self, directory: Path, depot: Path, name: str, members: tuple[str, ...]) -> None:
        self.directory = directory / name
        self.depot = depot
        self.opens = 0
        self.group: WatchedGroup | None = None
        super().__init__(name, members)
        self.open()

    @property
    def replica(self) -> Replica:
        """That of the group; before there is one, what a SlotLog begins with."""
        return self._begin if self.group is None else self.group.replica

    @replica.setter
    def replica(self, value: Replica) -> None:
        self._begin = value

    def new_replica(self) -> Replica:
        """See SlotLog."""
        members, era, gains = self.birth
        return Replica(
            members, era=era, gains=gains, slots_of=lambda write, _total: tuple(sorted(PAYLOADS.slots_of(write)))
        )

    def open(self) -> None:
        """Begin with what the store has, as after a crash: records behind its newest seal are applied again."""
        if self.group is not None:
            self.group.store.close()
        self.group, self.pool = self.opened(self.directory)

    def opened(self, directory: Path) -> tuple[WatchedGroup, LazyPool]:
        """A group over the store in a directory, with all of the log applied."""
        store, pool = Store.open(directory, self.key.group, SETTINGS), LazyPool()
        members, birth, gains = self.birth
        tables: Any = OneTable()
        founding = Founding(members, birth, gains)
        group = WatchedGroup(self.key.group, founding, store, tables, LIMITS, lambda *_: None, pool)
        group.acted = []
        for version, value in enumerate(self.values, 1):
            if version > store.frontier:
                self.apply(group, version, value)
        return group, pool

    def apply(self, group: WatchedGroup, version: int, value: bytes) -> None:
        """One record, as the log consumer passes it."""
        group.enqueue([JournalEntry(self.key.group, version, version - 1, 0, HEADERS, value)])
        group.acted.clear()
        assert group.turn()
        assert not group.health.holds(State.STOPPED), group.health.reason

    def append_value(self, value: bytes) -> list[Action]:
        """See SlotLog."""
        assert self.group is not None
        self.values.append(value)
        self.apply(self.group, len(self.values), value)
        self.actions.append(list(self.group.acted))
        return self.actions[-1]

    def rows(self, store: Store) -> dict[str, int]:
        """What a query of the whole table finds."""
        if ("db", "t") not in store.tables():
            return {}
        with store.scan("db", "t") as scan:
            import pyarrow.parquet as pq

            tables = [scan.table, *(pq.read_table(path, partitioning=None) for path in scan.files)]
            found: dict[str, int] = {}
            for table in tables:
                times = table.column("time").cast("int64").to_pylist()
                for row, at in zip(table.drop_columns(["time"]).to_pylist(), times, strict=True):
                    scale = 1_000 if str(table.schema.field("time").type) == "timestamp[us]" else 1
                    key = key_of(row["name"], at * scale)
                    assert key not in found, key
                    found[key] = row["v"]
            return found

    def last(self, store: Store) -> dict[str, int] | None:
        """The newest row of each series, by key; None where only a scan knows it."""
        if ("db", "t") not in store.tables():
            return {}
        table = store.last_rows("db", "t")
        if table is None:
            return None
        rows = table.to_pylist()
        return {key_of(row["name"], row["time"]): row["v"] for row in rows}


class StoredCluster(Cluster):
    """The cluster of the model with a store for each group."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.depot = directory / "depot"
        self.depot.mkdir(parents=True)
        self.loads: list[tuple[str, GroupKey, Load]] = []
        self.unexported: list[tuple[str, int, str, SlotNumbers, int]] = []
        self.stored: dict[str, StoredLog] = {}
        self.fresh = 0
        super().__init__(self.log_of, PAYLOADS)

    def log_of(self, name: str, members: tuple[str, ...]) -> StoredLog:
        """The log of a group."""
        self.stored[name] = StoredLog(self.directory, self.depot, name, members)
        return self.stored[name]

    # More commands.

    def work(self, first: int, second: int) -> None:
        """Jobs of a store run."""
        self.stored[GROUPS[first % 3]].pool.run(1 + second % 4)

    def seal(self, first: int, second: int) -> None:
        """The leader seals, and merges what the store plans."""
        group = GROUPS[first % 3]
        leader = self.leader(group)
        self.watched(group, lambda: self.logs[group].append(Seal(leader, ANCHOR)))
        if second % 2:
            self.merge(group)

    def merge(self, group: str) -> None:
        """The merges that a leader appends once no job runs."""
        log, leader = self.stored[group], self.leader(group)
        log.pool.run(1_000)
        assert log.group is not None
        for plan in log.group.store.plan_compaction():
            self.watched(group, partial(log.append, Compact(leader, "db", "t", plan.inputs)))

    def restart(self, first: int, _second: int) -> None:
        """A group begins again from its store."""
        self.stored[GROUPS[first % 3]].open()

    def restore(self, first: int, second: int) -> None:
        """A copy of the state stays behind as that of a former leader, and the group begins again."""
        log = self.stored[GROUPS[first % 3]]
        if second % 2:
            copy = log.new_replica()
            copy.state = GroupState.from_bytes(log.replica.state.to_bytes())
            self.snapshots[GROUPS[first % 3]] = copy
        log.open()

    def load(self, first: int, second: int) -> None:
        """The leader of a new holder appends what it knows of the files of a cut; some are staged by then."""
        self.export()
        if ready := self.ready_loads():
            self.loads.remove(chosen := ready[first % len(ready)])
            group, _, load = chosen
            log = self.stored[group]
            if second % 3:
                self.stage(log, load)
            body = Load(self.leader(group), *(getattr(load, name) for name in Load.__slots__[1:]))
            known = len(log.actions)
            self.watched(group, lambda: log.append(body))
            assert [body] == [action.load for action in log.actions[known] if hasattr(action, "load")]

    def ready_loads(self) -> list[tuple[str, GroupKey, Load]]:
        """The loads of groups whose log has the table that brings the slots: a leader waits for that."""
        # Where a slot comes back, its cut may be open long before: the group ignores a load of a slot that is given.
        reached = {name: log.replica.state.changes.settled_version for name, log in self.stored.items()}
        return [each for each in self.loads if reached[each[0]] >= each[2].held_since]

    def attach(self, first: int, _second: int) -> None:
        """Files that are awaited arrive."""
        log = self.stored[GROUPS[first % 3]]
        assert log.group is not None
        for digest in sorted({entry.content_digest for entry in log.group.store.awaited()}):
            self.stage_digest(log.group.store, digest)
            log.group.store.attach(digest)

    def release(self, first: int, _second: int) -> None:
        """A donor removes what it gave, once the change is over."""
        log = self.stored[GROUPS[first % 3]]
        if self.change is None and log.group is not None:
            log.group.release(log.replica.state.changes.given)
            log.group.turn()

    # What follows.

    def leader(self, group: str) -> Leadership:
        """The leadership under which a leader appends."""
        if self.logs[group].replica.state.leader is None:
            self.claim(group, 0)
        leader = self.logs[group].replica.state.leader
        assert leader is not None
        return leader

    def leave(self, group: str, version: int, cut: CutSlots) -> None:
        """See Cluster."""
        super().leave(group, version, cut)
        assert self.change is not None
        for moved in cut.moves:
            self.unexported.append((group, version, moved.key.group, moved.slots, len(self.tables)))

    def export(self) -> None:
        """The files of cuts are listed and fetched, after the takeover or before it."""
        for donor, version, taker, slots, table_version in self.unexported:
            log = self.stored[donor]
            log.pool.run(1_000)
            assert log.group is not None
            directory = self.directory / f"export-{donor}-{version}-{taker}"
            cut = log.group.store.export(version, Slots(frozenset(slots), SLOTS_TOTAL), directory)
            for path in directory.iterdir():
                path.replace(self.depot / path.name)
            leader = Leadership(1, "n1", "i")
            topic = log.topic
            self.loads += ((taker, log.key, file.load(leader, topic, table_version)) for file in cut.files)
        self.unexported.clear()

    def stage(self, log: StoredLog, load: Load) -> None:
        """A fetched file."""
        assert log.group is not None
        self.stage_digest(log.group.store, load.content_digest.hex())

    def stage_digest(self, store: Store, digest: str) -> None:
        """The files of a digest, in the staging directory of a store."""
        store.staging_directory.mkdir(parents=True, exist_ok=True)
        for name in staged_names(digest):
            if not (target := store.staging_directory / name).exists():
                os.link(self.depot / name, target)

    def moves_done(self) -> bool:
        """See Cluster: the files have arrived, too."""
        if self.loads or self.unexported or not super().moves_done():
            return False
        stores = [log.group.store for log in self.stored.values() if log.group is not None]
        return not any(store.awaited() or store.pending_jobs() for store in stores)

    def finish(self) -> None:
        """See Cluster: files, jobs and what was given come to an end, too."""
        self.everything(lambda: super(StoredCluster, self).finish())

    def settle_files(self) -> None:
        """Everything that is fetched arrives."""
        self.export()
        while self.ready_loads():
            self.load(0, 0)
        for number in range(3):
            self.work(number, 3)
            self.stored[GROUPS[number]].pool.run(1_000)
            self.attach(number, 0)

    def end(self, first: int, second: int) -> None:
        """See Cluster."""
        if self.finishing:
            self.settle_files()
        super().end(first, second)

    finishing = False

    def everything(self, step: Callable[[], None]) -> None:
        """A step during which all files arrive."""
        self.finishing = True
        step()

    def check(self) -> None:
        """See Cluster, and the same of the stores; a second member that reads the whole log has equal files."""
        for log in self.stored.values():
            log.pool.run(1_000)
        self.check_rows()
        super().check()
        for log in self.stored.values():
            log.open()
            log.pool.run(1_000)
        self.check_rows()
        for log in self.stored.values():
            self.check_member(log)
        self.close()

    def check_replica(self, log: SlotLog) -> None:
        """See `check_member`: what a group ignored before it began again is not counted."""

    def check_rows(self) -> None:
        """Each holder shows the newest value of every key, and nobody else shows the key."""
        wanted: dict[str, dict[str, int]] = {group: {} for group in GROUPS}
        for key, records in self.expected.items():
            order = sorted(records)
            if order and order[-1][1] is not None:
                wanted[self.tables[-1][int(key[0])]][key] = order[-1][1]
        for name, log in self.stored.items():
            assert log.group is not None
            assert wanted[name] == log.rows(log.group.store), (name, {k: sorted(v) for k, v in self.expected.items()})
            if (last := log.last(log.group.store)) is not None:
                series = {key[1:] for key in wanted[name]}
                newest = {max((key for key in wanted[name] if key[1:] == each), key=_time) for each in series}
                assert {key: wanted[name][key] for key in newest} == last, name

    def check_member(self, log: StoredLog) -> None:
        """A member that reads the log from its first record, with every file at hand, has the same files."""
        self.fresh += 1
        store = Store.open(self.directory / f"fresh-{self.fresh}", log.key.group, SETTINGS)
        for path in self.depot.glob("*.parquet"):
            self.stage_digest(store, path.stem)
        store.close()
        group, pool = log.opened(self.directory / f"fresh-{self.fresh}")
        pool.run(1_000)
        assert log.group is not None
        assert group.replica.state.to_bytes() == log.replica.state.to_bytes()
        assert group.store.digests() == log.group.store.digests()
        assert log.rows(group.store) == log.rows(log.group.store)
        group.store.close()

    def close(self) -> None:
        """Close all stores."""
        for log in self.stored.values():
            if log.group is not None:
                log.group.store.close()


def _time(key: str) -> int:
    from tests.unit.replication.slot_rows import time_of

    return time_of(key)
