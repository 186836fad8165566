"""The store against a dict model: random writes, deletes, seals, merges, drops and crashes, with a second store that never crashes beside it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.consumers.store import Store, StoreSettings, digest_of_file
from headrace.consumers.store.index import Index
from headrace.schemas.payload import decode_rows, encode_rows
from headrace.schemas.tables import FieldType, TableSchema
from tests.unit.store.builders import CPU, DATABASE, HOUR_NS, Answer, Row, answer_of, comparable, row_batch, scanned

SETTINGS = StoreSettings(row_group_rows=4, encode_threads=1, compaction_files_min=2, compaction_rows_max=60)
HOSTS = ("a", "b", "c,d", "e=\\ f", "")
HOST = st.sampled_from(HOSTS)
RACK = st.sampled_from(("", "r1", "r 2"))
TIME = st.one_of(st.integers(-3, 40).map(lambda n: n * HOUR_NS // 10), st.integers(0, 3 * HOUR_NS))
VALUES: dict[FieldType, st.SearchStrategy[Any]] = {
    FieldType.INT64: st.integers(-(2**40), 2**40),
    FieldType.FLOAT64: st.sampled_from((0.0, -0.0, 1.5, float("nan"), float("inf"), -2.25)),
    FieldType.STRING: st.sampled_from(("", "x", "größer", "y" * 30)),
    FieldType.BOOL: st.booleans(),
}


@dataclass(frozen=True)
class Written:
    """One row as the model keeps it."""

    rank: tuple[int, int, int]
    key: tuple[tuple[tuple[str, str], ...], int]
    fields: dict[str, Any]


Action = Callable[[Store], None]


class StoreMachine(RuleBasedStateMachine):
    """Every action is a record of a log with a version.

    After a crash the store is fed the records after its frontier again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="headrace-store-"))
        self.homes = 0
        self.home = self.root / "home-0"
        self.store = Store.open(self.home, "n1", SETTINGS)
        self.reference = Store.open(self.root / "reference", "n1", SETTINGS)
        self.version = 0
        self.era_floor = 1
        self.schema: TableSchema = CPU
        self.log: list[tuple[int, Action]] = []
        self.rows: list[Written] = []
        self.deletes: list[tuple[tuple[int, int], Callable[[Written], bool]]] = []

    def teardown(self) -> None:
        """Close both stores and remove their files."""
        self.store.close()
        self.reference.close()
        shutil.rmtree(self.root)

    def act(self, action: Callable[[Store, int], None]) -> None:
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
        era = data.draw(st.integers(self.era_floor, 2), "era")
        types = {name: kind for name, kind in self.schema.fields if data.draw(st.integers(0, 3), name)}
        if types.get("busy") is FieldType.FLOAT64 and data.draw(st.booleans(), "still int64"):
            types["busy"] = FieldType.INT64
        fields = st.fixed_dictionaries({name: st.none() | VALUES[kind] for name, kind in types.items()})
        tags = st.fixed_dictionaries({"host": HOST, "rack": RACK})
        if "zone" in self.schema.tags:
            tags = st.fixed_dictionaries({"host": HOST, "rack": RACK, "zone": st.sampled_from(("", "z"))})
        rows: list[Row] = data.draw(st.lists(st.tuples(tags, TIME, fields), min_size=1, max_size=12), "rows")
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

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        """A delete by tags and time range."""
        era = data.draw(st.integers(self.era_floor, 2), "era")
        tags = {} if data.draw(st.booleans()) else {"host": tuple(data.draw(st.lists(HOST, max_size=2), "hosts"))}
        start, end = data.draw(st.none() | TIME, "start"), data.draw(st.none() | TIME, "end")
        self.act(lambda store, version: store.delete(version, era, "plant", "cpu", tags, start, end))
        self.hide(era, tags, start, end)

    @rule(hours=st.integers(0, 2))
    def drop(self, hours: int) -> None:
        """Slices before a time are removed."""

        def action(store: Store, version: int) -> None:
            job = store.drop(version, 2, "plant", "cpu", hours * HOUR_NS + 17)
            assert job is not None
            job.run()

        self.act(action)
        self.hide(2, {}, None, hours * HOUR_NS)

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

    @precondition(lambda self: self.reference.plan_compaction())
    @rule()
    def compact(self) -> None:
        """Run the merges that the leader would plan."""
        plans = self.reference.plan_compaction()
        assert plans == self.store.plan_compaction()
        for plan in plans:
            self.act(lambda store, version, inputs=plan.inputs: store.compact(version, inputs).run())
        names = {entry.name for entry in self.store.segments()}
        assert not any(name in names for plan in plans for name in plan.inputs)

    @precondition(lambda self: len(self.log) > 4)
    @rule()
    def close_the_era(self) -> None:
        """From here on no row of an older era arrives, so deletes can be forgotten."""
        self.era_floor = 2

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
        for version, action in self.log:
            if version > frontier:
                action(self.store)

    def model(self) -> Answer:
        """Every visible row: the highest rank of each (series, time) that no delete of higher rank hides."""
        best: dict[Any, Written] = {}
        for row in self.rows:
            if any(rank > row.rank[:2] and hits(row) for rank, hits in self.deletes):
                continue
            if row.key not in best or best[row.key].rank < row.rank:
                best[row.key] = row
        return {key: self.fields_of(row) for key, row in best.items()}

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
        newest: Answer = {}
        for key, row in sorted(self.model().items(), key=lambda item: item[0][1]):
            newest = {k: v for k, v in newest.items() if k[0] != key[0]} | {key: row}
        if found is None:
            assert self.deletes
        else:
            assert newest == answer_of([found], self.newest().tags)

    @invariant()
    def replicas_agree(self) -> None:
        """A store that crashed and one that did not have the same segments with the same content, and nothing else on disk."""
        assert self.reference.digests() == self.store.digests()
        on_disk = {
            str(p.relative_to(self.store.segments_directory)) for p in self.store.segments_directory.rglob("*.parquet")
        }
        assert set(self.store.digests()) == on_disk

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


StoreMachine.TestCase.settings = settings(max_examples=12, stateful_step_count=25, deadline=None)
LongStoreMachine.TestCase.settings = settings(max_examples=1_500, stateful_step_count=40, deadline=None)
TestStore = pytest.mark.slow(8)(StoreMachine.TestCase)
TestStore.__doc__ = "Any order of writes, deletes, seals, merges, drops and crashes leaves exactly the model's rows."
TestStoreLong = pytest.mark.soak(LongStoreMachine.TestCase)
TestStoreLong.__doc__ = TestStore.__doc__
