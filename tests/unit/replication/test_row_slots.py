"""The slots of rows: the same as where writers route them, and the rows of some of them."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.consumers.membership.slot_table import SlotTable
from headrace.consumers.replication.distinct_slots import DistinctSlots
from headrace.consumers.store.slots import row_slots, rows_of_slots
from headrace.schemas.payload import decode_rows, encode_rows
from headrace.schemas.series import bucket_of, slot_of
from headrace.schemas.tables import ROW_TIME_MAX_NS, ROW_TIME_MIN_NS, DatabaseSchema
from tests.poison import row_batch

DATABASE = DatabaseSchema("db", 3_600_000_000_000, 4)
TABLE = SlotTable.create(("n1", "n2", "n3"), 1, 97)
DISTINCT = DistinctSlots()
ROWS = st.lists(st.tuples(st.integers(0, 5), st.integers(-(10**13), 10**13)), max_size=30)


@given(rows=ROWS, chosen=st.sets(st.integers(0, 96)))
@settings(max_examples=50, deadline=None)
def test_rows_have_the_slots_by_which_they_are_routed(rows: list[tuple[int, int]], chosen: set[int]) -> None:
    """Also before 1970 and for rows of many slices. Rows that are taken use all series of their batch."""
    keys = [f"t,a={number}" for number in range(6)]
    batch = row_batch(keys, [code for code, _ in rows], [time for _, time in rows], {})
    slots = row_slots(batch, DATABASE, TABLE.slots)
    routed = [TABLE.route(DATABASE, time, bucket_of(keys[code], DATABASE.buckets)) for code, time in rows]
    assert routed == [TABLE.holder(int(slot)) for slot in slots]
    assert tuple(sorted(set(slots.tolist()))) == DISTINCT.of(batch, DATABASE, TABLE.slots)
    # Half of those there are, so that some stay and some go.
    wanted = (*chosen, *np.unique(slots)[::2].tolist())
    taken = rows_of_slots(batch, DATABASE, TABLE.slots, wanted)
    expected = [(keys[code], time) for (code, time), slot in zip(rows, slots.tolist(), strict=True) if slot in wanted]
    assert expected == list(zip(taken.column(0).to_pylist(), taken.column(1).to_pylist(), strict=True))
    if len(taken) < len(batch):
        assert {key for key, _ in expected} == set(taken.column(0).dictionary.to_pylist())
    assert decode_rows(encode_rows(taken)).equals(taken)


def test_slices_shorter_than_a_new_database_may_have_give_the_slots_of_their_definition() -> None:
    """A database of an older build with more buckets than a slice has nanoseconds, and times at both ends."""
    database, keys = DatabaseSchema("db", slice_ns=1_000, buckets=4_096), ["t,a=1", "t,a=2"]
    times = [ROW_TIME_MIN_NS, -1, 0, ROW_TIME_MAX_NS]
    batch = row_batch(keys, [0, 1, 0, 1], times, {})
    expected = [
        slot_of("db", bucket_of(keys[code], 4_096), time // 1_000, 10_000)
        for code, time in zip([0, 1, 0, 1], times, strict=True)
    ]
    assert expected == row_slots(batch, database, 10_000).tolist()
