"""The store against a dict model: random writes, deletes, seals, merges, drops, loads, cuts and crashes, with a second
store that never crashes beside it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.consumers.store import Cut, SegmentEntry, Slots, Store, StoreSettings, digest_of_file, staged_names
from headrace.consumers.store.index import Index
from headrace.consumers.store.last_tables import LastTables
from headrace.schemas.messages import CarriedDelete, Load
from headrace.schemas.payload import decode_rows, encode_rows
from headrace.schemas.series import bucket_of, series_key
from headrace.schemas.tables import FieldType, TableSchema
from tests.memory_directory import memory
from tests.unit.store.builders import CPU, DATABASE, HOUR_NS, Answer, Row, answer_of, comparable, row_batch, scanned
from tests.unit.store.foreign import LEADER, foreign_files, load_of, slots_of_slices, stage_in

SETTINGS = StoreSettings(row_group_rows=4, encode_threads=1, compaction_files_min=2, compaction_rows_max=60)
HOSTS = ("a", "b", "c,d", "e=\\ f", "")
HOST = st.sampled_from(HOSTS)
RACK = st.sampled_from(("", "r1", "r 2"))
SLICES = frozenset(range(-1, 5))
TIME = st.one_of(st.integers(-3, 40).map(lambda n: n * HOUR_NS // 10), st.integers(0, 3 * HOUR_NS))
VALUES: dict[FieldType, st.SearchStrategy[Any]] = {
    FieldType.INT64: st.integers(-(2**40), 2**40),
    FieldType.FLOAT64: st.sampled_from((0.0, -0.0, 1.5, float("nan"), float("inf"), -2.25)),
    FieldType.STRING: st.sampled_from(("", "x", "größer", "y" * 30)),
    FieldType.BOOL: st.booleans(),
}


@dataclass(frozen=True)
class Written:
    """One row as the model keeps it; earlier deletes than those of the era `held_since` do not concern it."""

    rank: tuple[int, int, int]
    key: tuple[tuple[tuple[str, str], ...], int]
    fields: dict[str, Any]
    held_since: int = 0

    @property
    def place(self) -> tuple[int, int]:
        """Slice and bucket."""
        return self.key[1] // HOUR_NS, bucket_of(series_key("cpu", dict(self.key[0])), DATABASE.buckets)

    def is_in(self, entry: SegmentEntry) -> bool:
        """Whether a segment has its place and rank."""
        in_ranks = entry.era == self.rank[0] and entry.first_version <= self.rank[1] <= entry.last_version
        return in_ranks and self.place == (entry.slice_number, entry.bucket)


Action = Callable[[Store], None]
Record = Callable[[Store, int], None]
"""What a store does at a version."""


def loading(load: Load, schema: TableSchema) -> Record:
    """A load record."""
    return lambda store, version: store.load(version, load, schema, DATABASE).run()


def merging(inputs: Sequence[str]) -> Record:
    """A merge record."""
    return lambda store, version: store.compact(version, inputs).run()


class StoreMachine(RuleBasedStateMachine):
    """Every action is a record of a log with a version.

    After a crash the store is fed the records after its frontier again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="headrace-store-", dir=memory()))
        self.homes = 0
        self.home = self.root / "home-0"
        self.store = Store.open(self.home, "n1", SETTINGS)
        self.reference = Store.open(self.root / "reference", "n1", SETTINGS)
        self.version = 0
        self.era_floor, self.era_top = 1, 2
        self.held = set(SLICES - {3, 4})
        self.exports: dict[int, tuple[Cut, list[Written]]] = {}
        self.cuts: list[tuple[int, Slots]] = []
        self.depot = self.root / "depot"
        self.depot.mkdir()
        self.schemas = {CPU.version: CPU}
        self.schema: TableSchema = CPU
        self.log: list[tuple[int, Action]] = []
        self.rows: list[Written] = []
        self.deletes: list[tuple[tuple[int, int], Callable[[Written], bool]]] = []

    def teardown(self) -> None:
        """Close both stores and remove their files."""
        self.store.close()
        self.reference.close()
        shutil.rmtree(self.root)

    def act(self, action: Record) -> None:
        """Append one record and let both stores apply it."""
        self.version += 1
        version = self.version
        self.log.append((version, lambda store: action(store, version)))
        action(self.store, version)
        action(self.reference, version)

    @initialize(data=st.data())
    def first_rows(self, data: st.DataObject) -> None:
        """A table exists from the start."""
        self.write(data)

    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        """Rows of a few series, late and repeated ones among them, some fields missing or null."""
        era = data.draw(st.integers(self.era_floor, self.era_top), "era")
        types = {name: kind for name, kind in self.schema.fields if data.draw(st.integers(0, 3), name)}
        if types.get("busy") is FieldType.FLOAT64 and data.draw(st.booleans(), "still int64"):
            types["busy"] = FieldType.INT64
        fields = st.fixed_dictionaries({name: st.none() | VALUES[kind] for name, kind in types.items()})
        tags = st.fixed_dictionaries({"host": HOST, "rack": RACK})
        if "zone" in self.schema.tags:
            tags = st.fixed_dictionaries({"host": HOST, "rack": RACK, "zone": st.sampled_from(("", "z"))})
        rows: list[Row] = data.draw(st.lists(st.tuples(tags, TIME, fields), min_size=1, max_size=12), "rows")
        # Writers send the rows of a slot to the group that holds it.
        rows = [row for row in rows if row[1] // HOUR_NS in self.held]
        if not rows:
            return
        schema, batch = self.schema, decode_rows(encode_rows(row_batch(self.schema, rows, types)))
        self.act(lambda store, version: store.write(version, era, schema, DATABASE, batch))
        for index, (row_tags, time, values) in enumerate(rows):
            key = (tuple(sorted((k, v) for k, v in row_tags.items() if v)), time)
            self.rows.append(Written((era, self.version, index), key, dict(values)))

    @rule(data=st.data())
    def change_schema(self, data: st.DataObject) -> None:
        """A new field, a new tag, or int64 widened; rows that follow may use it."""
        types = self.schema.field_types()
        change = data.draw(st.sampled_from(("field", "tag", "widen")))
        tags = self.schema.tags
        if change == "field" and len(types) < 6:
            types[f"extra{len(types)}"] = data.draw(st.sampled_from(FieldType), "type")
        elif change == "tag":
            tags = tuple(sorted({*tags, "zone"}))
        else:
            types["busy"] = FieldType.FLOAT64
        self.schema = replace(
            self.schema, version=self.schema.version + 1, tags=tags, fields=tuple(sorted(types.items()))
        )
        self.schemas[self.schema.version] = self.schema

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        """A delete by tags and time range."""
        era = data.draw(st.integers(self.era_floor, self.era_top), "era")
        tags = {} if data.draw(st.booleans()) else {"host": tuple(data.draw(st.lists(HOST, max_size=2), "hosts"))}
        start, end = data.draw(st.none() | TIME, "start"), data.draw(st.none() | TIME, "end")
        self.act(lambda store, version: store.delete(version, era, "plant", "cpu", tags, start, end))
        self.hide(era, tags, start, end)

    @rule(hours=st.integers(0, 2))
    def drop(self, hours: int) -> None:
        """Slices before a time are removed."""
        era = self.era_top

        def action(store: Store, version: int) -> None:
            job = store.drop(version, era, "plant", "cpu", hours * HOUR_NS + 17)
            if job is not None:
                job.run()

        self.act(action)
        self.hide(era, {}, None, hours * HOUR_NS)

    def hide(self, era: int, tags: dict[str, tuple[str, ...]], start: int | None, end: int | None) -> None:
        """The model's side of a delete."""

        def hits(row: Written) -> bool:
            have, time = dict(row.key[0]), row.key[1]
            in_time = (start is None or time >= start) and (end is None or time < end)
            return in_time and all(have.get(name, "") in allowed for name, allowed in tags.items())

        self.deletes.append(((era, self.version), hits))

    @rule()
    def seal(self) -> None:
        """All unsealed rows become segments."""
        self.act(self.sealing())

    def sealing(self) -> Callable[[Store, int], None]:
        """A seal as a record: it names the schema."""
        schema, floor = self.schema, self.era_floor

        def action(store: Store, version: int) -> None:
            store.freeze(version, floor, b"state %d" % version, {("plant", "cpu"): schema}).run()

        return action

    @rule(data=st.data())
    def seal_later(self, data: st.DataObject) -> None:
        """Rows and deletes that arrive between freeze and commit belong to the next seal.

        Scans see all of it meanwhile.
        """
        self.version += 1
        version, schema, floor = self.version, self.schema, self.era_floor

        def freeze(store: Store) -> Any:
            return store.freeze(version, floor, b"state %d" % version, {("plant", "cpu"): schema})

        jobs = [freeze(store) for store in (self.store, self.reference)]
        self.log.append((version, lambda store: freeze(store).run()))
        self.write(data)
        if data.draw(st.booleans(), "delete too"):
            self.delete(data)
        self.everything_is_there()
        for job in jobs:
            job.run()

    @precondition(lambda self: len(self.held) < len(SLICES))
    @rule(data=st.data(), here=st.booleans(), there=st.booleans())
    def load(self, data: st.DataObject, here: bool, there: bool) -> None:
        """A slice comes back from an export, or in files of a log whose versions are large or small.

        Each store has the files, or awaits them.
        """
        number = data.draw(st.sampled_from(sorted(SLICES - self.held)), "slice")
        since = self.era_top + 1
        self.era_floor, self.era_top = since, since + 1
        self.held.add(number)
        if number in self.exports:
            cut, rows = self.exports.pop(number)
            self.rows += [replace(row, held_since=since) for row in rows]
            loads = [file.load(LEADER, "there", since) for file in cut.files]
        else:
            loads = [*self.foreign(data, number, 1, since), *self.foreign(data, number, since - 1, since)]
        for load in loads:
            for store in [store for store, staged in ((self.store, here), (self.reference, there)) if staged]:
                self.fetch(store, load.content_digest.hex())
            schema = self.schemas[load.schema_version]
            self.act(loading(load, schema))

    def foreign(self, data: st.DataObject, number: int, era: int, since: int) -> list[Load]:
        """Files of one era of another group, and perhaps a delete that comes with them."""
        first = data.draw(st.sampled_from((1, 5_000)), "first version")
        fields = st.fixed_dictionaries({"busy": VALUES[FieldType.INT64], "note": st.none() | st.just("foreign")})
        times = st.integers(number * HOUR_NS, number * HOUR_NS + 3)
        tags = st.fixed_dictionaries({"host": HOST, "rack": RACK})
        rows: list[Row] = data.draw(st.lists(st.tuples(tags, times, fields), min_size=1, max_size=6), "foreign")
        gone = data.draw(st.none() | HOST, "deleted")
        deletes = () if gone is None else (CarriedDelete(era, first + 50, (("host", (gone,)),)),)
        for index, (row_tags, time, values) in enumerate(rows):
            key = (tuple(sorted((k, v) for k, v in row_tags.items() if v)), time)
            if row_tags["host"] != gone:
                self.rows.append(Written((era, first + 9, index), key, dict(values), since))
        files = foreign_files(rows, (era, first, first + 9), CPU, SETTINGS)
        for file in files:
            stage_in(self.depot, file)
        return [load_of(file, since, deletes) for file in files]

    def fetch(self, store: Store, digest: str) -> None:
        """A transfer has ended."""
        store.staging_directory.mkdir(parents=True, exist_ok=True)
        for name in staged_names(digest):
            if not (target := store.staging_directory / name).exists():
                os.link(self.depot / name, target)

    @rule()
    def attach(self) -> None:
        """The files that are awaited come, in an order that no log has."""
        for store in (self.store, self.reference):
            for digest in sorted({entry.content_digest for entry in store.awaited()}):
                self.fetch(store, digest)
                assert store.attach(digest) > 0
            assert [] == store.awaited()

    @precondition(lambda self: len(self.rows) > 3 and len(self.held) > 1)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        """A slice leaves: sealed, held, exported, released; both stores list the same cut."""
        self.attach()
        number = data.draw(st.sampled_from(sorted(self.held)), "slice")
        slots = slots_of_slices(number)
        self.seal()
        at = self.version
        for store in (self.store, self.reference):
            store.hold(at, slots).run()
        self.cuts.append((at, slots))
        cut = self.reference.export(at, slots, self.root / f"export-{at}")
        for path in (self.root / f"export-{at}").iterdir():
            path.replace(self.depot / path.name)
        listed = [
            [(f.entry.content_digest, f.deletes) for f in each.files] for each in (cut, self.store.cut(at, slots))
        ]
        assert listed[0] == listed[1]
        leaving = [row for row in self.rows if row.place[0] == number]
        self.exports[number] = cut, [row for row in leaving if not self.is_deleted(row)]
        self.act(lambda store, version: store.release(version, slots).run())
        self.rows = [row for row in self.rows if row.place[0] != number]
        self.held.remove(number)

    @precondition(lambda self: self.reference.plan_compaction())
    @rule()
    def compact(self) -> None:
        """Run the merges that the leader would plan."""
        self.attach()
        plans = self.reference.plan_compaction()
        assert plans == self.store.plan_compaction()
        for plan in plans:
            self.act(merging(plan.inputs))
        names = {entry.name for entry in self.store.segments()}
        assert not any(name in names for plan in plans for name in plan.inputs)

    @precondition(lambda self: len(self.log) > 4)
    @rule()
    def close_the_era(self) -> None:
        """From here on no row of an older era arrives, so deletes can be forgotten."""
        self.era_floor = self.era_top

    @rule()
    def reopen(self) -> None:
        """A clean stop and start."""
        self.store.close()
        self.store = Store.open(self.home, "n1", SETTINGS)
        self.catch_up()

    @rule(step=st.integers(0, 30), compacting=st.booleans())
    def crash(self, step: int, compacting: bool) -> None:
        """The process crashes at some durable step of a seal (and of the merges after it).

        The files of that moment are reopened.
        """
        if compacting:
            self.attach()
        self.homes += 1
        copied = self.root / f"home-{self.homes}"
        with copy_at_step(self.home, copied, step):
            self.seal()
            if compacting and self.reference.plan_compaction():
                self.compact()
        self.store.close()
        if not copied.exists():
            shutil.copytree(self.home, copied)
        shutil.rmtree(self.home)
        self.home = copied
        self.store = Store.open(self.home, "n1", SETTINGS)
        self.catch_up()

    def catch_up(self) -> None:
        """Feed the records after the committed state again."""
        frontier = self.store.frontier
        assert self.store.state == (b"state %d" % frontier if frontier else None)
        for at, slots in self.cuts:
            self.store.hold(at, slots).run()
        for version, action in self.log:
            if version > frontier:
                action(self.store)

    def model(self) -> Answer:
        """Every visible row: the highest rank of each (series, time) that no delete of higher rank hides."""
        best: dict[Any, Written] = {}
        awaited = self.store.awaited()
        for row in self.rows:
            if self.is_deleted(row) or any(row.is_in(entry) for entry in awaited):
                continue
            if row.key not in best or best[row.key].rank < row.rank:
                best[row.key] = row
        return {key: self.fields_of(row) for key, row in best.items()}

    def is_deleted(self, row: Written) -> bool:
        """Whether a delete of higher rank hides a row; those of before its slot came do not."""
        return any(rank > row.rank[:2] and rank[0] >= row.held_since and hits(row) for rank, hits in self.deletes)

    def fields_of(self, row: Written) -> dict[str, Any]:
        """The fields of a row under the newest schema."""
        wide = self.newest().field_types()
        values = {name: value for name, value in row.fields.items() if value is not None}
        return {
            name: comparable(float(value) if wide[name] is FieldType.FLOAT64 else value)
            for name, value in values.items()
        }

    def newest(self) -> TableSchema:
        """The newest schema that both stores have: one named by a write."""
        return self.reference.schema("plant", "cpu")

    @invariant()
    def everything_is_there(self) -> None:
        """A full scan is the model, with every row once."""
        if not self.rows:
            return
        with self.store.scan("plant", "cpu") as scan:
            found = scanned(scan, self.newest())
        assert self.model() == found

    @rule(start=st.none() | TIME, end=st.none() | TIME, hosts=st.none() | st.lists(HOST, min_size=1, max_size=2))
    def pruned(self, start: int | None, end: int | None, hosts: list[str] | None) -> None:
        """A pruned scan has every requested row, and the rows from memory are exact."""
        if not self.rows:
            return
        with self.store.scan(
            "plant", "cpu", columns=["host", "rack", "zone", "up"], start_ns=start, end_ns=end,
            tags=None if hosts is None else {"host": hosts},
        ) as scan:  # fmt: skip
            merged = answer_of([scan.table], self.newest().tags)
            found = scanned(scan, self.newest())

        def requested(key: Any) -> bool:
            in_time = (start is None or key[1] >= start) and (end is None or key[1] < end)
            return in_time and (hosts is None or dict(key[0]).get("host", "") in hosts)

        want = {key: {k: v for k, v in row.items() if k == "up"} for key, row in self.model().items() if requested(key)}
        assert want == {
            key: {k: v for k, v in row.items() if k == "up"} for key, row in found.items() if requested(key)
        }
        assert all(requested(key) for key in merged)

    @invariant()
    def last_rows_are_true(self) -> None:
        """The newest row of every series is known, unless deletes have made a scan necessary."""
        if not self.rows:
            return
        found = self.store.last_rows("plant", "cpu")
        with patch.object(self.store._components, "last_tables", LastTables(0)):
            anew = self.store.last_rows("plant", "cpu")
        assert (found is None) == (anew is None), "what was kept is not what follows from the rows"
        newest: Answer = {}
        for key, row in sorted(self.model().items(), key=lambda item: item[0][1]):
            newest = {k: v for k, v in newest.items() if k[0] != key[0]} | {key: row}
        if found is None:
            assert self.deletes or self.exports or self.store.awaited()
        else:
            assert newest == answer_of([found], self.newest().tags)

    @invariant()
    def replicas_agree(self) -> None:
        """A store that crashed and one that did not have the same segments with the same content, and nothing else on disk."""
        assert self.reference.digests() == self.store.digests()
        on_disk = {
            str(p.relative_to(self.store.segments_directory)) for p in self.store.segments_directory.rglob("*.parquet")
        }
        assert set(self.store.digests()) - {entry.name for entry in self.store.awaited()} == on_disk

    @rule()
    def digests_are_of_the_files(self) -> None:
        """The content digest of the catalogue follows from the file alone."""
        for entry in self.store.segments():
            assert entry.content_digest == digest_of_file(self.store.segments_directory / entry.name)


@contextmanager
def copy_at_step(source: Path, target: Path, step: int) -> Iterator[None]:
    """Copies `source` to `target` right before the durable operation number `step` on it: what a kill at that moment leaves."""
    count = 0

    def at(path: Any) -> None:
        nonlocal count
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}")
        if str(path).startswith(str(source)):
            if count == step:
                shutil.copytree(source, target)
            count += 1

    def before(function: Callable[..., Any], path_of: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            at(path_of(arguments[0]))
            return function(*arguments, **options)

        return wrapped

    with (
        patch("os.fsync", before(os.fsync, lambda fd: fd)),
        patch("os.rename", before(os.rename, lambda old: old)),
        patch("os.unlink", before(os.unlink, lambda path: path)),
        patch.object(Index, "_write", before(Index._write, lambda index: index.directory)),
    ):
        yield


class LongStoreMachine(StoreMachine):
    """The same, many more times."""


StoreMachine.TestCase.settings = settings(max_examples=6, stateful_step_count=25, deadline=None)
LongStoreMachine.TestCase.settings = settings(max_examples=1_500, stateful_step_count=40, deadline=None)
TestStore = pytest.mark.slow(19)(StoreMachine.TestCase)
TestStore.__doc__ = "Any order of writes, deletes, seals, merges, drops and crashes leaves exactly the model's rows."
TestStoreLong = pytest.mark.soak(LongStoreMachine.TestCase)
TestStoreLong.__doc__ = TestStore.__doc__
