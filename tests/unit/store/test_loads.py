"""Files of other logs: how they rank, when they are here, and what a slot takes with it when it leaves."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from headrace.consumers.store import SegmentEntry, Tombstone
from headrace.consumers.store.last_rows import LastRanks, last_batch, merge_last
from headrace.schemas.tables import FieldType


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_the_newest_row_of_a_series_follows_from_ranks_not_from_arrival(order: tuple[int, ...]) -> None:
    """Files come in any order. Of rows of one time the higher era wins, then the higher version."""
    ranks = [(2, 900), (3, 5), (3, 40)]
    batches = [
        last_batch(pa.array(["s"]), np.array([7]), LastRanks(*np.array([[era], [version], [0]])), {"v": pa.array([at])})
        for at, (era, version) in enumerate(ranks)
    ]
    merged = merge_last([batches[place] for place in order], {"v": FieldType.INT64})
    assert [2] == merged.column("v").to_pylist()


def test_a_file_is_subject_to_deletes_since_its_slot_came() -> None:
    """Those of lower eras were for other slots, whatever their version is."""
    loaded = SegmentEntry("x", "d", "t", 0, 0, 3, 500, 600, 0, 9, 0, 99, 1, "", "", 1, 0, held_since=4)
    assert not loaded.is_subject_to(Tombstone("d", "t", 3, 900))
    assert loaded.is_subject_to(Tombstone("d", "t", 4, 1))
