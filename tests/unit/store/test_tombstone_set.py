"""Tombstones applied all at once, against a model that asks each tombstone about each row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.consumers.store import SegmentEntry, Store
from headrace.consumers.store import batch_columns as columns
from headrace.consumers.store.last_rows import (
    CLEANED_COLUMN,
    ORDER_COLUMN,
    SINCE_COLUMN,
    VERSION_COLUMN,
    LastRanks,
    apply_tombstones,
    decode_last,
    last_batch,
)
from headrace.consumers.store.memtable import live_batch
from headrace.consumers.store.tombstone_set import TombstoneSet, visible
from headrace.consumers.store.tombstones import Tombstone, tombstone
from headrace.schemas.series import slot_of
from tests.unit.store.builders import CPU, Row, contents, expected, row_batch, seal, write

EARLIEST, LATEST = -(2**63), 2**63 - 1
HOSTS, RACKS = ("", "a", "b", "c,=\\ "), ("", "r", "s")
TIMES = st.sampled_from([EARLIEST, EARLIEST + 1, -5, 0, 1, 2, 3, 7, LATEST - 1, LATEST])
ROWS = st.lists(st.tuples(st.sampled_from(HOSTS), st.sampled_from(RACKS), TIMES), min_size=1, max_size=8)
BATCHES = st.lists(st.tuples(st.integers(1, 2), ROWS), max_size=6)
TAGS = st.dictionaries(
    st.sampled_from(["host", "rack", "none"]),
    st.lists(st.sampled_from([*HOSTS, *RACKS, "x"]), max_size=4).map(tuple),
    max_size=3,
)
DELETES = st.lists(
    st.tuples(st.integers(1, 8), st.integers(1, 2), TAGS, st.none() | TIMES, st.none() | TIMES), max_size=12
)
GivenRow = tuple[str, str, int]
GivenDelete = tuple[int, int, dict[str, tuple[str, ...]], int | None, int | None]


def set_of(deletes: list[GivenDelete]) -> TombstoneSet:
    """The set of generated deletes."""
    return TombstoneSet(
        tombstone(version, era, ("plant", "cpu"), tags, start, end) for version, era, tags, start, end in deletes
    )


def deletes_row(each: Tombstone, rank: tuple[int, int], host: str, rack: str, at: int) -> bool:
    """The model: one tombstone, one row."""
    have = {"host": host, "rack": rack}
    return (
        rank < (each.era, each.version)
        and all(have.get(name, "") in allowed for name, allowed in each.tags)
        and (each.start_ns is None or at >= each.start_ns)
        and (each.end_ns is None or at < each.end_ns)
    )


@given(batches=BATCHES, deletes=DELETES)
def test_rows_that_no_tombstone_deletes_stay(
    batches: list[tuple[int, list[GivenRow]]], deletes: list[GivenDelete]
) -> None:
    """Batches keep exactly the rows that no tombstone of higher rank matches, in their order."""
    tombstones = set_of(deletes)
    live = [
        live_batch(version, era, CPU, row_batch(CPU, [({"host": h, "rack": r}, at, {"busy": 1}) for h, r, at in rows]))
        for version, (era, rows) in enumerate(batches, 1)
    ]
    for batch, rows, (era, given_rows) in zip(live, visible(live, tombstones), batches, strict=True):
        want = [
            at
            for host, rack, at in given_rows
            if not any(deletes_row(each, (era, batch.version), host, rack, at) for each in tombstones)
        ]
        assert want == rows.column(1).to_pylist()


RANKS = st.lists(
    st.tuples(st.integers(1, 2), st.sampled_from([-1, 3, 6]), st.sampled_from([0, 0, 2, 3])), min_size=8, max_size=8
)


@given(rows=ROWS, ranks=RANKS, deletes=DELETES)
def test_last_rows_are_removed_or_stale(
    rows: list[GivenRow], ranks: list[tuple[int, int, int]], deletes: list[GivenDelete]
) -> None:
    """A last row under a tombstone without start, of the highest era, is removed; under any other it is stale.

    A tombstone of an era before the group held the slot of the row changes nothing, nor does a second time.
    """
    tombstones, era_max = set_of(deletes), 2
    batch = row_batch(CPU, [({"host": host, "rack": rack}, at, {"busy": 1}) for host, rack, at in rows])
    keys = batch.column(0).cast(pa.string())
    eras, versions, since = (np.array(column, np.int64) for column in zip(*ranks[: len(rows)], strict=True))
    given_last = last_batch(keys, batch.column(1).to_numpy(), LastRanks(eras, versions, since), {})
    found = apply_tombstones(given_last, tombstones, era_max)
    assert found.equals(apply_tombstones(found, tombstones, era_max))
    want = []
    for (host, rack, at), (era, version, held) in zip(rows, ranks, strict=False):
        hit = [each for each in tombstones if each.era >= held and deletes_row(each, (era, version), host, rack, at)]
        if not any(each.start_ns is None and each.era >= era_max for each in hit):
            want.append((at, bool(hit)))
    assert want == list(zip(found.column(1).to_pylist(), found.column(3).to_pylist(), strict=True))


SLOTS_TOTAL = 4
SLOTS = st.sampled_from([(), (), (0, 2), (1,), (0, 1, 2, 3)])
FILES = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 4), st.integers(-6, 8), st.integers(0, 4), st.integers(0, 9)),
    max_size=5,
)


def times_of(each: Tombstone) -> tuple[int, int]:
    """The times of a tombstone that has both."""
    assert each.start_ns is not None
    assert each.end_ns is not None
    return each.start_ns, each.end_ns


@given(FILES, st.lists(st.tuples(st.integers(1, 9), st.integers(1, 3), SLOTS, TIMES, TIMES), max_size=8))
def test_a_file_awaits_the_deletes_that_may_concern_it(
    files: list[tuple[int, int, int, int, int]], deletes: list[tuple[int, int, tuple[int, ...], int, int]]
) -> None:
    """By rank, times and slot of the file, whatever other deletes there are; one that is applied is not applied again."""
    found = [
        replace(Tombstone("d", "t", era, at, (), start, end), place=at if slots else 0, slots=slots, slots_total=4)
        for at, era, slots, start, end in deletes
    ]
    several = TombstoneSet(found)
    for number, (slice_number, bucket, start, length, cleaned) in enumerate(files):
        last = 2 * bucket
        entry = SegmentEntry(
            f"file {number}",
            "d",
            "t",
            slice_number,
            bucket,
            slice_number,
            1,
            last,
            0,
            9,
            start,
            start + length,
            1,
            "",
            "",
            1,
            cleaned,
        )
        slot = slot_of("d", bucket, slice_number, SLOTS_TOTAL)
        want = [
            each
            for each in several.items
            if each.came_at > cleaned
            and (not each.slots or slot in each.slots)
            and (each.era, each.version) > (slice_number, last)
            and times_of(each)[0] <= start + length
            and max(times_of(each)[1] - 1, EARLIEST) >= start
        ]
        # The second time it is remembered.
        assert want == list(several.unapplied(entry)) == list(several.unapplied(entry))
        assert want == list(several.select(several.unapplied_mask(entry)))
        # A merge gives the name again, with all of them applied.
        newest = max((each.came_at for each in found), default=0)
        assert [] == list(several.unapplied(replace(entry, cleaned_version=newest)))


def test_slots_are_kept_once_for_all_that_came_together() -> None:
    """Their columns do not grow with the deletes that were handed over with one change."""
    slots = tuple(range(0, 10_000, 6))
    handed = TombstoneSet(
        Tombstone("d", "t", 1, version, place=1, slots=slots, slots_total=10_000) for version in range(1, 1_000)
    )
    of_slots = [len(column) for column in handed._by_slot]
    assert [len(slots)] * 3 == of_slots


def test_a_file_of_another_log_is_deleted_from_by_eras_and_by_what_came_with_it() -> None:
    """The versions of its rows count another log: they are compared with those of its earlier holders alone."""
    of_its_time, since, later = (Tombstone("d", "t", era, version) for era, version in ((3, 900), (4, 5), (5, 1)))
    own = TombstoneSet([of_its_time, since, later])
    carried = Tombstone("d", "t", 3, 700, end_ns=50)
    loaded = SegmentEntry(
        "x", "d", "t", 0, 0, 3, 500, 600, 0, 9, 0, 99, 1, "", "", 1, 0,
        loaded_version=7, held_since=4, carried=(carried,),
    )  # fmt: skip
    assert [carried, since, later] == list(own.unapplied(loaded))
    assert [carried] == list(TombstoneSet().unapplied(loaded))
    assert [carried, later] == list(TombstoneSet([replace(since, era=3), later]).unapplied(loaded))
    own_file = replace(loaded, held_since=0, carried=())
    assert [of_its_time, since, later] == list(own.unapplied(own_file))
    assert loaded == SegmentEntry.from_json(loaded.to_json())
    assert b"held_since" not in replace(own_file, loaded_version=0).to_json()


def test_last_rows_of_an_earlier_build_are_read() -> None:
    """They have no version, and rank below every delete that is not applied to them."""
    batch = last_batch(
        pa.array(["cpu,host=a"]), np.array([5]), LastRanks(*np.array([[1], [9], [0]])), {"busy": pa.array([7])}
    )
    old = batch.drop_columns([VERSION_COLUMN, SINCE_COLUMN, ORDER_COLUMN, CLEANED_COLUMN])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, old.schema) as writer:
        writer.write_batch(old)
    read = decode_last(sink.getvalue().to_pybytes())
    assert batch.schema.names == read.schema.names
    assert [[-1], [0], [""], [0], [7]] == [read.column(place).to_pylist() for place in range(4, 9)]
    assert [True] == apply_tombstones(read, TombstoneSet([Tombstone("d", "t", 1, 3, start_ns=0)]), 1)[3].to_pylist()
    assert [False] == apply_tombstones(batch, TombstoneSet([Tombstone("d", "t", 1, 3, start_ns=0)]), 1)[3].to_pylist()


@pytest.mark.parametrize("sealed", [False, True])
def test_the_work_of_deletes_does_not_multiply_with_messages(
    store: Store, monkeypatch: pytest.MonkeyPatch, sealed: bool
) -> None:
    """Tags of series are evaluated once for all messages and deletes of one scan or seal."""
    calls = 0
    evaluate = columns.tag_values

    def counted(keys: pa.StringArray, tag: str) -> pa.StringArray:
        nonlocal calls
        calls += 1
        return evaluate(keys, tag)

    for module in ("batch_columns", "tombstone_match"):
        monkeypatch.setattr(f"headrace.consumers.store.{module}.tag_values", counted)
    messages, deletes = 30, 20
    rows: list[list[Row]] = [
        [({"host": f"h{n}"}, at, {"busy": at}) for n in range(deletes + 1)] for at in range(messages)
    ]
    for version, message in enumerate(rows, 1):
        write(store, version, message)
    for number in range(deletes):
        store.delete(messages + 1 + number, 1, "plant", "cpu", {"host": (f"h{number}",)})
    if sealed:
        seal(store, 100)
    else:
        assert expected(message[-1] for message in rows) == contents(store)
    # One for every pair of message and delete would be 600.
    assert calls < 60
