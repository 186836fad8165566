"""Ranges of time of a statement that wants the first rows by time, and what one of them gives until it is known to be enough."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass

import pyarrow as pa
from sqlglot import exp

from headrace.consumers.query.planner import plan_scans
from headrace.consumers.query.query_host import QueryHost, QueryWanted
from headrace.consumers.query.query_output import QueryOutput
from headrace.consumers.query.session import Session
from headrace.consumers.query.table_names import resolve
from headrace.consumers.query.table_source import ReadFence
from headrace.consumers.query.top_rows import bounds_ns, top_rows

HELD_BYTES_MAX = 8_000_000
"""Rows of one range that are kept: a statement that wants more bytes shows them as they come."""


class HeldTooLarge(Exception):
    """The rows of a range are too many bytes to keep. Never leaves the run of a query."""


@dataclass(frozen=True, slots=True)
class TopRange:
    """The statement over one range of time: if it gives so many rows, they are the answer."""

    sql: str
    enough: int
    analyzed: str
    """The same statement as the caller wants it explained, "" for one that wants its rows."""


def ranges_of(host: QueryHost, session: Session, wanted: QueryWanted) -> list[TopRange]:
    """The ranges to try before the whole table, the narrowest first; none for most statements. Raises QueryError."""
    if wanted.row_limit == 0:
        return []
    statement = session.check(wanted.sql)
    explains = bool(statement.explain) and not statement.analyzed
    if explains or statement.show or statement.verb or len(statement.tables) != 1 or statement.cte_names:
        return []
    bound = session.bind(statement, wanted.parameters)
    resolved = resolve(statement.tables, statement.cte_names, host.source.tables())
    (key,) = resolved.tables
    extent = host.source.extent(*key)
    if extent is None:
        return []
    schema = host.source.schema(*key)
    parsed = session.parsed(statement)
    with parsed() as tree:
        table = tree.find(exp.Table) if tree is not None else None
        if tree is None or table is None:
            return []
        top = top_rows(statement.sql, tree, table, schema, session.constant)
    if top is None:
        return []
    plan = plan_scans(statement, resolved, {key: schema}, session.constant, bound.texts(), parsed)[key]
    enough = top.limit if wanted.row_limit is None else min(top.limit, wanted.row_limit)
    found = (top.until(bound_ns) for bound_ns in bounds_ns(top, plan, extent))
    return [TopRange(sql, enough, f"{statement.explain}{sql}" if statement.analyzed else "") for sql in found]


class HeldOutput(QueryOutput):
    """Rows of one range, which nobody sees until they are known to be the answer."""

    def __init__(self, shown: QueryOutput) -> None:
        """`shown` is the output of the query."""
        # First: the initial values of an output include `lacking`.
        self._shown = shown
        super().__init__(HELD_BYTES_MAX)
        self.rows = 0
        self._held: list[pa.RecordBatch] = []

    @property
    def lacking(self) -> Mapping[str, int]:
        """See QueryOutput: of the query."""
        return self._shown.lacking

    @lacking.setter
    def lacking(self, offsets: Mapping[str, int]) -> None:
        self._shown.lacking = offsets

    def put(self, schema: pa.Schema, fence: ReadFence, batch: pa.RecordBatch) -> Future[None] | None:
        """See QueryOutput. Raises HeldTooLarge; nobody makes room here."""
        self.rows += batch.num_rows
        self._held.append(batch)
        if super().put(schema, fence, batch) is not None:
            raise HeldTooLarge
        return None

    def show(self) -> None:
        """Every row into the output of the query."""
        schema, fence = self.wait_begun()
        for batch in self._held:
            self._shown.put(schema, fence, batch)
        self._shown.end(schema, fence)
