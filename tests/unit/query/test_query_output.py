"""The buffer between a query and its reader: who is called when something can be taken."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa
import pytest

from headrace.consumers.query.query_errors import QueryFailed
from headrace.consumers.query.query_output import QueryOutput

ROWS = pa.record_batch({"x": pa.array(range(100), pa.int64())})
FENCE = cast(Any, object())


def called(output: QueryOutput, ready_bytes: int) -> list[int | None]:
    """The size of the whole output at each call."""
    calls = list[int | None]()
    output.when_ready(lambda: calls.append(output.whole_bytes), ready_bytes)
    return calls


def test_a_reader_is_called_once_every_row_is_there() -> None:
    """Once, and it may look at the output meanwhile."""
    output = QueryOutput()
    calls = called(output, 10_000)
    output.put(ROWS.schema, FENCE, ROWS)
    assert ([], None) == (calls, output.whole_bytes)
    output.end(ROWS.schema, FENCE)
    output.fail(QueryFailed("late"))
    assert [800] == calls
    assert [800] == called(output, 10_000)


@pytest.mark.parametrize("buffer_bytes", [1_000, 4_000_000])
def test_a_reader_is_called_once_enough_rows_are_there(buffer_bytes: int) -> None:
    """More may come, so the size of the whole is not known. A full buffer still has a future for its room."""
    output = QueryOutput(buffer_bytes)
    calls = called(output, 1_600)
    assert output.put(ROWS.schema, FENCE, ROWS) is None
    room = output.put(ROWS.schema, FENCE, ROWS)
    assert [None] == calls
    assert (room is not None) == (buffer_bytes == 1_000)
    assert 100 == cast(pa.RecordBatch, output.take()).num_rows
    assert 100 == cast(pa.RecordBatch, output.take()).num_rows
    assert room is None or room.done()


def test_a_reader_is_called_when_the_query_fails() -> None:
    """Also by one that had failed before."""
    output = QueryOutput()
    calls = called(output, 10_000)
    output.fail(QueryFailed("no"))
    assert [None] == calls
    assert [None] == called(output, 10_000)
