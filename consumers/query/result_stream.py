"""The result of a query, as it is read."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Protocol

import pyarrow as pa

from headrace.consumers.query.query_output import QueryOutput
from headrace.consumers.query.query_timer import QueryTimer


class RunningQuery(Protocol):
    """What a result knows of its query."""

    id: str
    timer: QueryTimer

    def end(self) -> None:
        """Cancel it unless it has ended, and wait until it holds nothing any more."""
        ...


class ResultStream:
    """The result of one query: a schema with unique names, and batches that are computed while they are read.

    A context manager. Until it is closed it holds segment files, memory and the place of a query. `batches` is read
    once, by one thread at a time; any thread may `close` it, which ends a batch being computed.
    """

    def __init__(self, query: RunningQuery, output: QueryOutput) -> None:
        """Returns when the first rows are there, or the query has ended. Raises the QueryError that ended it."""
        self.schema, self._fence = output.wait_begun()
        self.as_of = self._fence.as_of
        """The moment up to which a stale answer contains everything; None where the node serves."""
        self.query_id = query.id
        self.timer = query.timer
        """The time of the query, which the reading of its result is part of."""
        self.rows = 0
        self._query = query
        self._output = output

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, in the order of the query.

        Raises the QueryError that ended it early, if one did, or AnswerStale behind the last batch: only then
        is it known that the rows were those of a node that serves.
        """
        while (batch := self._output.take()) is not None:
            self.rows += batch.num_rows
            yield batch
        self._fence.check()

    def read_all(self) -> pa.Table:
        """Every row as one table; closes the result."""
        with self:
            return pa.Table.from_batches(list(self.batches()), self.schema)

    def close(self) -> None:
        """Release everything that the query holds. Closing twice is fine."""
        self._output.abandon()
        self._query.end()

    def __enter__(self) -> ResultStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def unique_names(names: list[str]) -> list[str]:
    """Column names where a repeated one gets `_1`, `_2` …, as DuckDB does for the columns of a table."""
    # A name that is spelled out in the query keeps its column: `a, a, a_1` becomes `a, a_2, a_1`.
    taken = set(names)
    seen: set[str] = set()
    found: list[str] = []
    for name in names:
        number, candidate = 0, name
        while candidate in seen or (number and candidate in taken):
            number += 1
            candidate = f"{name}_{number}"
        seen.add(candidate)
        found.append(candidate)
    return found
