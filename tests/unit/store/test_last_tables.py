"""The newest rows that are kept as query results: they are those of the state at each query, and bounded."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace.consumers.store import Store, batch_columns
from headrace.consumers.store.batch_columns import tag_columns, tag_values
from headrace.consumers.store.last_rows import LastRanks, last_batch, merge_last
from headrace.consumers.store.last_tables import LastSource, LastTable, LastTables
from headrace.consumers.store.tombstone_set import NO_TOMBSTONES, TombstoneSet
from headrace.consumers.store.tombstones import tombstone
from headrace.schemas.series import series_key
from headrace.schemas.tables import FieldType, TableSchema
from tests.unit.store.builders import CPU, DATABASE, HOUR_NS, Row, expected, seal, write
from tests.unit.store.conftest import SETTINGS
from tests.unit.store.foreign import foreign_files, load_of, slots_of_slices, stage
from tests.unit.store.test_deletes import last

A, B, C = {"host": "a"}, {"host": "b", "rack": "r 2"}, {"host": "c"}
VALUE = {"v": FieldType.INT64}
SCHEMA = TableSchema("plant", "cpu", 1, ("host",), (("v", FieldType.INT64),))


def row(tags: dict[str, str], at: int) -> Row:
    """One row, whose value is its time."""
    return tags, at, {"busy": at}


def last_of(times: dict[str, int], version: int = 1) -> pa.RecordBatch:
    """Last rows of hosts, whose values are their times and the version."""
    keys = pa.array([series_key("cpu", {"host": host}) for host in times], pa.string())
    at = np.fromiter(times.values(), np.int64, len(times))
    ranks = LastRanks(*(np.full(len(at), value, np.int64) for value in (1, version, 0)))
    return last_batch(keys, at, ranks, {"v": pa.array(at * 10 + version)})


def source_of(*batches: pa.RecordBatch, deletes: TombstoneSet = NO_TOMBSTONES) -> LastSource:
    """The state of a table with some last rows."""
    return LastSource(batches, deletes, 1, SCHEMA)


def shown(table: pa.Table | None) -> dict[str, int]:
    """The values by host."""
    assert table is not None
    hosts, values = (table.column(name).to_pylist() for name in ("host", "v"))
    assert len(hosts) == len(set(hosts))
    return dict(zip(hosts, values, strict=True))


@pytest.fixture
def filled(store: Store) -> Store:
    """Three sealed series in two slices, of which a query has kept the last rows."""
    write(store, 1, [row(A, 1), row(A, HOUR_NS), row(B, 2), row(C, 3)])
    seal(store, 2)
    assert expected([row(A, HOUR_NS), row(B, 2), row(C, 3)]) == last(store) == last(store)
    assert store.last_row_bytes > 0
    return store


def test_unsealed_rows_are_seen(filled: Store) -> None:
    """Newer ones, older ones, those of a new series, and again once they are sealed."""
    write(filled, 3, [row(B, 1), row(C, 9), row({}, 5)])
    want = expected([row(A, HOUR_NS), row(B, 2), row(C, 9), row({}, 5)])
    assert want == last(filled) == last(filled)
    seal(filled, 4)
    assert want == last(filled)
    write(filled, 5, [row({}, 6)])
    assert expected([row(A, HOUR_NS), row(B, 2), row(C, 9), row({}, 6)]) == last(filled)


def test_deletes_are_seen(filled: Store) -> None:
    """A delete of a series, sealed or not; and one that leaves a newest row unknown until a newer one comes."""
    filled.delete(3, 1, "plant", "cpu", {"host": ("c",)})
    assert expected([row(A, HOUR_NS), row(B, 2)]) == last(filled) == last(filled)
    filled.delete(4, 1, "plant", "cpu", {"host": ("b",)})
    assert expected([row(A, HOUR_NS)]) == last(filled)
    seal(filled, 5)
    assert expected([row(A, HOUR_NS)]) == last(filled)
    filled.delete(6, 1, "plant", "cpu", {}, HOUR_NS, None)
    assert filled.last_rows("plant", "cpu") is None
    write(filled, 7, [row(A, HOUR_NS + 7)])
    assert expected([row(A, HOUR_NS + 7)]) == last(filled)


def test_drops_and_merges_are_seen(filled: Store) -> None:
    """A drop takes the rows of its slices at once; a merge of files changes no row."""
    write(filled, 3, [row(B, 4)])
    seal(filled, 4)
    for version, plan in enumerate(filled.plan_compaction(), 5):
        filled.compact(version, plan.inputs).run()
    assert expected([row(A, HOUR_NS), row(B, 4), row(C, 3)]) == last(filled)
    job = filled.drop(50, 1, "plant", "cpu", HOUR_NS)
    assert job is not None
    assert expected([row(A, HOUR_NS)]) == last(filled)
    job.run()
    assert expected([row(A, HOUR_NS)]) == last(filled)


def test_loads_and_cuts_are_seen(filled: Store) -> None:
    """Nothing is known while a file is awaited or a slot leaves; then there are the rows that came or stayed."""
    files = foreign_files([row(C, 2 * HOUR_NS)], (3, 500, 600))
    for version, file in enumerate(files, 3):
        filled.load(version, load_of(file, 4), CPU, DATABASE).run()
    assert filled.last_rows("plant", "cpu") is None
    for file in files:
        stage(filled, file)
        filled.attach(file.entry.content_digest)
    assert expected([row(A, HOUR_NS), row(B, 2), row(C, 2 * HOUR_NS)]) == last(filled)
    seal(filled, 20, era=4)
    job = filled.hold(20, slots_of_slices(1))
    assert filled.last_rows("plant", "cpu") is None
    job.run()
    assert expected([row(A, 1), row(B, 2), row(C, 2 * HOUR_NS)]) == last(filled)


def test_a_new_column_is_seen(filled: Store) -> None:
    """Rows that lack it have null there, and a wider type is that of all of them."""
    names = [*CPU.tags, "zone"]
    wide = replace(CPU, version=2, tags=tuple(names), fields=(("busy", FieldType.FLOAT64), *CPU.fields[1:]))
    write(filled, 3, [({"zone": "z"}, 5, {"busy": 0.5})], schema=wide)
    table = filled.last_rows("plant", "cpu")
    assert table is not None
    assert [None, None, None, "z"] == sorted(table.column("zone").to_pylist(), key=lambda each: each or "")
    assert pa.float64() == table.column("busy").type


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("texts_from", [1, 1 << 16])
def test_parts_and_unsealed_rows_are_merged_as_all_at_once(
    seed: int, texts_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever series have unsealed rows, equal times and other ranks among them; tags may be plain text."""
    monkeypatch.setattr(batch_columns, "TEXT_ROWS_MIN", texts_from)
    chance = random.Random(seed)
    hosts = [f"h{number}" for number in range(chance.choice([1, 5, 40]))]
    chosen = [(host, chance.randrange(3)) for host in hosts if chance.random() < 0.8]
    parts = [last_of({host: at for host, at in chosen if int(host[1:]) % 3 == part}, 2) for part in range(3)]
    live = last_of({host: chance.randrange(3) for host in hosts if chance.random() < 0.4}, chance.choice([1, 3]))
    cache = LastTables(1 << 20)
    for _ in range(2):
        found = shown(cache.newest(("plant", "cpu"), source_of(*parts), live))
        assert shown(LastTable.of(source_of(merge_last([*parts, live], VALUE))).with_live(live.slice(0, 0))) == found


@pytest.mark.parametrize("seed", range(30))
def test_the_highest_of_each_series_wins(seed: int) -> None:
    """By time, era, version, order and place, as a look at each row finds."""
    chance = random.Random(seed)
    batches, known = [], dict[str, tuple[tuple[object, ...], int]]()
    for _ in range(chance.randrange(1, 5)):
        keys = chance.sample("abcdefgh", chance.randrange(9))
        numbers = [[chance.randrange(2) for _ in keys] for _ in range(3)]
        orders = [chance.choice(["", "b", "a"]) for _ in keys]
        values = [chance.randrange(1_000) for _ in keys]
        times, eras, versions = (np.array(each, np.int64) for each in numbers)
        none = np.zeros(len(keys), np.int64)
        ranks = LastRanks(eras, versions, none, pa.array(orders, pa.string()), none)
        batches.append(last_batch(pa.array(keys, pa.string()), times, ranks, {"v": pa.array(values, pa.int64())}))
        for place, key in enumerate(keys):
            rank = (*(each[place] for each in numbers), orders[place])
            if key not in known or rank >= known[key][0]:
                known[key] = rank, values[place]
    merged = merge_last(batches, VALUE)
    found = dict(zip(merged.column(0).to_pylist(), merged.column("v").to_pylist(), strict=True))
    assert (len(merged), {key: value for key, (_, value) in known.items()}) == (len(found), found)


@pytest.mark.parametrize("rows_min", [1, 1 << 16])
def test_tags_are_the_same_as_text(rows_min: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain text or a dictionary, with series that lack the tag, for each series once or for given rows."""
    monkeypatch.setattr(batch_columns, "TEXT_ROWS_MIN", rows_min)
    keys = pa.array([series_key("cpu", {"host": f"h{n}", "rack": "r" if n % 2 else ""}) for n in range(20)])
    for codes in (np.arange(20)[::-1], np.array([3, 3, 4]), np.arange(40) % 20):
        for tag, column in tag_columns(keys, ["host", "rack", "none"], codes).items():
            assert tag_values(keys, tag).take(pa.array(codes)).to_pylist() == column.to_pylist()
    every = tag_columns(keys, ["host", "rack"])
    assert tag_values(keys, "rack").to_pylist() == every["rack"].to_pylist()
    assert (pa.types.is_string(every["host"].type), pa.types.is_dictionary(every["rack"].type)) == (rows_min == 1, True)
    assert pa.types.is_dictionary(tag_columns(keys, ["host"], np.arange(20), texts=False)["host"].type)


def test_the_tables_used_last_are_kept() -> None:
    """Up to the limit, in bytes; a table that is larger is not kept, and takes the place of no other."""
    batches = {name: last_of({f"{name}{number}": 1 for number in range(50)}) for name in "abc"}
    none = batches["a"].slice(0, 0)
    size = LastTable.of(source_of(batches["a"])).size_bytes
    cache = LastTables(2 * size)

    def ask(name: str, *more: pa.RecordBatch) -> pa.Table | None:
        return cache.newest(("plant", name), source_of(batches[name], *more), none)

    first, second = ask("a"), ask("b")
    assert (ask("a") is first, ask("b") is second, cache.cached_bytes) == (True, True, 2 * size)
    ask("a")
    ask("c")
    assert (ask("a") is first, cache.cached_bytes) == (True, 2 * size)
    assert ask("b") is not second
    ask("b", last_of({f"x{number}": 1 for number in range(500)}))
    assert (ask("a") is first, cache.cached_bytes) == (True, size)


def test_rows_under_deletes_count_too() -> None:
    """The rows that a delete leaves are a copy."""
    batch = last_of({"a": 1, "b": 2})
    deletes = TombstoneSet([tombstone(5, 1, ("plant", "cpu"), {"host": ("a",)}, None, None)])
    found = LastTable.of(source_of(batch, deletes=deletes))
    assert {"b": 21} == shown(found.with_live(batch.slice(0, 0)))
    assert found.size_bytes == found.table.nbytes + sum(part.nbytes for part in found.parts)


def test_without_a_limit_nothing_is_kept(home: Path) -> None:
    """The answers stay the same."""
    store = Store.open(home, "n1", SETTINGS.model_copy(update={"last_tables_cache_bytes": 0}))
    write(store, 1, [row(A, 1)])
    seal(store, 2)
    assert expected([row(A, 1)]) == last(store) == last(store)
    assert 0 == store.last_row_bytes
    store.close()


def test_threads_get_what_their_state_has() -> None:
    """Queries of several states of several tables at a time."""
    cache = LastTables(20_000)
    states = [last_of({f"h{number}": number % 7 for number in range(size)}) for size in range(1, 30)]

    def ask(seed: int) -> bool:
        chance = random.Random(seed)
        batch = chance.choice(states)
        table = cache.newest(("plant", chance.choice("ab")), source_of(batch), batch.slice(0, 0))
        return table is not None and len(batch) == table.num_rows

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(ask, range(2_000)))
    assert 0 <= cache.cached_bytes <= 20_000
