"""What stays in memory after a seal: nothing of the rows, whoever has queried them before."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from headrace.consumers.store import Store
from headrace.schemas.payload import SERIES_COLUMN
from tests.unit.store.builders import CPU, DATABASE, seal

ROWS = 1_000


def write_tracked(store: Store, version: int) -> weakref.ref[np.ndarray]:
    """Write rows whose `load` column is memory that can be watched."""
    values = np.linspace(0.0, 1.0, ROWS)
    series = pa.DictionaryArray.from_arrays(pa.array(np.zeros(ROWS, np.int32)), pa.array(["cpu,host=a"]))
    times = pa.array(np.arange(ROWS) + version * ROWS)
    rows = pa.RecordBatch.from_arrays([series, times, pa.array(values)], names=[SERIES_COLUMN, "time", "load"])
    store.write(version, 1, CPU, DATABASE, rows)
    return weakref.ref(values)


def scan(store: Store) -> None:
    """A scan of all columns, closed afterwards."""
    with store.scan("plant", "cpu") as found:
        assert found.table.num_rows


def last_rows(store: Store) -> None:
    """The newest row of each series."""
    assert store.last_rows("plant", "cpu") is not None


@pytest.mark.parametrize("query", [scan, last_rows])
def test_a_seal_frees_rows_that_were_queried(store: Store, query: Callable[[Store], None]) -> None:
    """The summary of unsealed rows, which a query leaves behind, keeps none of them."""
    tracked = write_tracked(store, 1)
    query(store)
    assert tracked() is not None
    seal(store, 2)
    gc.collect()
    assert tracked() is None


def test_a_query_that_ends_after_the_seal_keeps_nothing(store: Store) -> None:
    """A summary of a view that was taken before the seal, and stored after it, keeps no rows."""
    tracked = write_tracked(store, 1)
    view = store._components.view.table("plant", "cpu")
    seal(store, 2)
    assert store._components.live.of(view).unique
    del view
    gc.collect()
    assert tracked() is None


def test_later_rows_are_summarised_without_the_sealed_ones(store: Store) -> None:
    """After a seal the summary begins anew, and rows that repeat sealed ones are still unique among the unsealed."""
    write_tracked(store, 1)
    scan(store)
    seal(store, 2)
    write_tracked(store, 3)
    assert store._components.live.of(store._components.view.table("plant", "cpu")).unique
    with store.scan("plant", "cpu") as found:
        assert (ROWS, 1) == (found.table.num_rows, len(found.files))
