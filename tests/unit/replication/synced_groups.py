"""One log with files of two sync senders, read by members whose files, jobs and crashes come at different times."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.consumers.replication.founding import Founding
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.group_health import State
from headrace.consumers.replication.journal import JournalEntry
from headrace.consumers.replication.settings import ReplicationLimits
from headrace.consumers.replication.store_jobs import IsUrgent, JobStep
from headrace.consumers.store import SeriesFile, Store, StoreSettings, staged_names
from headrace.consumers.store.row_order import sort_table
from headrace.consumers.store.segment import EncodedSegment, encode_segment
from headrace.consumers.store.segment_files import SegmentName
from headrace.schemas.messages import (
    Anchor,
    Body,
    CarriedDelete,
    Claim,
    Compact,
    Delete,
    Leadership,
    Load,
    Message,
    ProducerPosition,
    Seal,
    Write,
    encode_message,
)
from headrace.schemas.payload import encode_rows, row_schema
from headrace.schemas.series import series_key
from headrace.schemas.tables import DatabaseSchema, FieldType, TableSchema

SETTINGS = StoreSettings(row_group_rows=16, compaction_files_min=2, encode_threads=1)
LIMITS = ReplicationLimits(job_backlog=10_000)
ANCHOR = Anchor(0, 0, bytes(16))
LEADER = Leadership(1, "n1", "i")
SLICE_NS = 1_000
DATABASE = DatabaseSchema("db", SLICE_NS, 1)
FIELDS = (("v", FieldType.INT64),)
TABLE = TableSchema("db", "t", 1, ("name",), FIELDS)
Key = tuple[str, int]
"""Series and time."""
SENDERS = {"s1": ("a", "b"), "s2": ("c",)}
TIMES = (1, 2, SLICE_NS + 1)


class OneTable:
    """The table, known from the start. See SchemaLog."""

    def wait_for(self, database: str, table: str, version: int, timeout_s: float) -> TableSchema | None:
        """See SchemaLog."""
        del timeout_s
        return TABLE if (database, table, version) == ("db", "t", 1) else None

    def database(self, name: str) -> DatabaseSchema | None:
        """See SchemaLog."""
        return DATABASE if name == "db" else None

    def accepts(self, *_arguments: object) -> bool:
        """See SchemaLog."""
        return True


class SlowPool:
    """A JobPool whose steps run when somebody asks, in order; one that waits stays the first."""

    def __init__(self) -> None:
        self.waiting: list[JobStep] = []

    def submit(self, step: JobStep, *, urgent: IsUrgent = lambda: False) -> Any:
        """See JobPool."""
        self.waiting.append(step)

        class Handle:
            """See JobHandle."""

            def done(self) -> bool:
                """See JobHandle."""
                return True

            def result(self, timeout: float | None = None) -> None:
                """See JobHandle."""

        return Handle()

    def run(self, count: int) -> None:
        """Run the oldest steps, up to one that waits for a file."""
        for _ in range(min(count, len(self.waiting))):
            if self.waiting[0]() is not None:
                return
            self.waiting.pop(0)

    def hurry(self) -> None:
        """See JobPool."""

    def shutdown(self) -> None:
        """See JobPool."""


@dataclass
class Member:
    """A group over a store of its own, which reads the log of a `SyncedLog`."""

    directory: Path
    depot: Path
    group: Group = field(init=False)
    pool: SlowPool = field(init=False)

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Open the store; records behind its newest seal are due again."""
        store, self.pool = Store.open(self.directory, "n1", SETTINGS), SlowPool()
        tables: Any = OneTable()
        self.group = Group("n1", Founding(("n1",), 1, ()), store, tables, LIMITS, lambda *_: None, self.pool)

    def read(self, values: list[bytes]) -> None:
        """Apply the records of the log that are new here."""
        for version in range(self.group.version + 1, len(values) + 1):
            headers = (("format", b"4"),)
            self.group.enqueue([JournalEntry("n1", version, version - 1, 0, headers, values[version - 1])])
            assert self.group.turn()
            assert not self.group.health.holds(State.STOPPED), self.group.health.reason

    def stage(self, digest: str) -> None:
        """A fetched file."""
        staging = self.group.store.staging_directory
        staging.mkdir(parents=True, exist_ok=True)
        for name in staged_names(digest):
            shutil.copy(self.depot / name, staging / name)

    def attach(self) -> None:
        """Every file that is awaited arrives."""
        for digest in sorted({entry.content_digest for entry in self.group.store.awaited()}):
            self.stage(digest)
            self.group.store.attach(digest)

    def settle(self) -> None:
        """All jobs end, and all files are here."""
        for _ in range(1_000):
            self.pool.run(1_000)
            self.attach()
            if not self.pool.waiting:
                return
        raise AssertionError("jobs without end")

    def crash(self) -> None:
        """What was not committed is gone."""
        self.group.store.close()
        self.begin()

    def rows(self) -> dict[Key, int]:
        """What a query of the whole table finds."""
        store = self.group.store
        if ("db", "t") not in store.tables():
            return {}
        with store.scan("db", "t") as scan:
            tables = [scan.table, *(pq.read_table(path, partitioning=None) for path in scan.files)]
            found: dict[Key, int] = {}
            for table in tables:
                scale = 1_000 if str(table.schema.field("time").type) == "timestamp[us]" else 1
                times = table.column("time").cast("int64").to_pylist()
                for row, at in zip(table.drop_columns(["time"]).to_pylist(), times, strict=True):
                    key = row["name"], at * scale
                    assert key not in found, key
                    found[key] = row["v"]
            return found

    def last(self) -> dict[Key, int] | None:
        """The newest row of each series; None where only a scan knows it."""
        store = self.group.store
        if ("db", "t") not in store.tables():
            return {}
        table = store.last_rows("db", "t")
        return None if table is None else {(row["name"], row["time"]): row["v"] for row in table.to_pylist()}


@dataclass
class Loaded:
    """A file that a load brought: rows after the deletes that came with it, and whether it was late."""

    version: int
    sender: str
    order: str
    rows: dict[Key, int]
    late: bool


def batch_of(rows: dict[Key, int]) -> pa.RecordBatch:
    """Values as a row batch."""
    keys = sorted(rows)
    series = pa.array([series_key("t", {"name": name}) for name, _ in keys], pa.string()).dictionary_encode()
    columns = [series, pa.array([at for _, at in keys], pa.int64()), pa.array([rows[key] for key in keys], pa.int64())]
    return pa.record_batch(columns, schema=row_schema(FIELDS))


def file_of(rows: dict[Key, int], ranks: tuple[int, int, int]) -> EncodedSegment:
    """The file that an edge sealed of rows of one slice."""
    given = sort_table([batch_of(rows)], DATABASE, TABLE)
    (part,) = given.parts
    name = SegmentName("db", "t", part.slice_number, part.bucket, *ranks)
    return encode_segment("edge", name, TABLE, given.rows_of(part), 0, SETTINGS)


class SyncedLog:
    """The log of a group and what follows from it, by a model: which row of each key wins."""

    def __init__(self, depot: Path, chance: random.Random) -> None:
        self.depot = depot
        self.chance = chance
        self.values: list[bytes] = []
        self.own: list[tuple[int, dict[Key, int]]] = []
        self.deletes: list[tuple[int, str, int | None]] = []
        self.loaded: list[Loaded] = []
        self.sent: list[Load] = []
        self.pending: dict[tuple[str, int], list[int]] = {}
        self.made: dict[tuple[str, int], int] = {}
        self.value = 0
        depot.mkdir(parents=True)
        self.append(Claim(LEADER, ANCHOR, 1_000_000, 1 << 40))

    def append(self, body: Body) -> None:
        """One more record, of a producer of its own."""
        position = ProducerPosition(f"r{len(self.values)}", 1, 0)
        self.values.append(encode_message(Message(position, body)))

    @property
    def version(self) -> int:
        """That of the newest record."""
        return len(self.values)

    def some_rows(self, names: tuple[str, ...], times: tuple[int, ...]) -> dict[Key, int]:
        """Random rows with values that occur once."""
        keys = [(name, at) for name in names for at in times if self.chance.random() < 0.6] or [(names[0], times[0])]
        found = {}
        for key in keys:
            self.value += 1
            found[key] = self.value
        return found

    def write(self) -> None:
        """Somebody writes at the centre, also rows of devices of senders."""
        rows = self.some_rows(("a", "c", "x"), TIMES)
        self.append(Write("db", "t", 1, 1, len(rows), encode_rows(batch_of(rows)).to_pybytes()))
        self.own.append((self.version, rows))

    def delete(self) -> None:
        """A delete of one series at the centre, of all times or of one."""
        name, at = self.chance.choice("abcx"), self.chance.choice((None, *TIMES))
        self.append(Delete("db", "t", {"name": (name,)}, at, None if at is None else at + 1))
        self.deletes.append((self.version, name, at))

    def seal(self) -> None:
        """The leader seals."""
        self.append(Seal(LEADER, ANCHOR))

    def merge(self, member: Member) -> None:
        """The merges that a leader with the files of a member plans."""
        for plan in member.group.store.plan_compaction():
            self.append(Compact(LEADER, "db", "t", plan.inputs))

    def load(self) -> None:
        """A file of a sender, in its order or not; its settled order is that below all that is undecided."""
        sender, slice_number = self.chance.choice(list(SENDERS)), self.chance.randrange(2)
        place = sender, slice_number
        waiting = self.pending.setdefault(place, [])
        while len(waiting) < 3:
            self.made[place] = self.made.get(place, 0) + 1
            waiting.append(self.made[place])
        number = waiting.pop(min(int(self.chance.expovariate(1.5)), 2))
        settled = f"{min(waiting) - 1:04d}" if min(waiting) > 1 else ""
        if min(waiting) > number:
            settled = f"{number - 1:04d}" if number > 1 else ""
        self.load_file(sender, number, slice_number, settled)

    def load_file(self, sender: str, number: int, slice_number: int, settled: str) -> None:
        """The leader appends the load of a file."""
        times = tuple(at for at in TIMES if at // SLICE_NS == slice_number)
        rows = self.some_rows(SENDERS[sender], times)
        file = file_of(rows, (1, number * 10, number * 10 + 9))
        deletes: tuple[CarriedDelete, ...] = ()
        if self.chance.random() < 0.2:
            name = self.chance.choice(SENDERS[sender])
            deletes = (CarriedDelete(1, number * 10 + 20, (("name", (name,)),)),)
            rows = {key: value for key, value in rows.items() if key[0] != name}
        entry = file.entry
        segment, series = (self.depot / name for name in staged_names(entry.content_digest))
        segment.write_bytes(file.data.to_pybytes())
        series.write_bytes(SeriesFile.of(entry, file.runs.to_bytes()).to_bytes())
        order = f"{number:04d}"
        load = Load(
            LEADER, sender, 0, *entry.location, 1, entry.first_version, entry.last_version, 0,
            bytes.fromhex(entry.content_digest), entry.rows, entry.min_time_ns, entry.max_time_ns, entry.size_bytes, 1,
            deletes, sender, order, settled, (f"store-of-{sender}",),
        )  # fmt: skip
        late = any(
            each.sender == sender and each.order > order and slice_number == each.slice_number for each in self.files
        )
        self.append(load)
        self.sent.append(load)
        self.loaded.append(Loaded(self.version, sender, order, rows, late))

    @property
    def files(self) -> list[Load]:
        """Every file that was loaded."""
        return self.sent

    def repeat(self) -> None:
        """A file is loaded again, by a leader that does not know of the first time."""
        if self.sent:
            self.append(replace(self.chance.choice(self.sent), settled=""))

    def check(self, rows: dict[Key, int]) -> None:
        """Each key has the row that wins: the newest of its sender or of the centre, as the log decides."""
        names = {name: sender for sender, names in SENDERS.items() for name in names}
        keys = {key for _, written in self.own for key in written} | {k for each in self.loaded for k in each.rows}
        wanted = {key for key in keys if self.winners(key, names.get(key[0], ""))}
        assert wanted == set(rows), wanted ^ set(rows)
        for key in wanted:
            assert rows[key] in self.winners(key, names.get(key[0], "")), (key, rows[key])

    def winners(self, key: Key, sender: str) -> set[int]:
        """The values that may win: two where a late file meets an older row of the centre."""
        gone = max((at for at, name, when in self.deletes if name == key[0] and when in (None, key[1])), default=0)
        # Deletes of one time have it as their start; one without a time ends nowhere.
        own = [(at, written[key]) for at, written in self.own if key in written and at > gone]
        files = [each for each in self.loaded if key in each.rows and each.version > gone and each.sender == sender]
        if not files:
            return {own[-1][1]} if own else set()
        newest = max(files, key=lambda each: each.order)
        if not own:
            return {newest.rows[key]}
        if own[-1][0] > newest.version:
            return {own[-1][1]}
        return {newest.rows[key], own[-1][1]} if newest.late else {newest.rows[key]}
