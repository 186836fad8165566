"""Answers a statement of few series from rows that are in memory, without an instance of DuckDB.

Only a statement whose template is known is looked at: DuckDB has run an earlier one, and has given the names and types
of all answers. Whatever is not as expected leaves the statement to DuckDB, which also finds the error of a scan.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from headrace.consumers.query.group_scans import exact_rows, rows_of
from headrace.consumers.query.planner import series_of
from headrace.consumers.query.query_errors import UnknownTable
from headrace.consumers.query.query_host import QueryHost, QueryWanted
from headrace.consumers.query.query_output import QueryOutput
from headrace.consumers.query.series_answers import answer_of
from headrace.consumers.query.series_plan import SeriesAggregates
from headrace.consumers.query.table_names import resolve
from headrace.consumers.query.table_source import Reading
from headrace.consumers.store import StoreError
from headrace.schemas.tables import TableSchema


@dataclass(frozen=True, slots=True)
class SeriesRun:
    """One such statement: what it wants of which table, and the schema of its answer."""

    host: QueryHost
    wanted: SeriesAggregates
    table: TableSchema
    schema: pa.Schema

    @classmethod
    def of(cls, host: QueryHost, wanted: QueryWanted) -> Self | None:
        """The statement that is wanted, None for one that is DuckDB's."""
        checked = host.database.checked
        if wanted.row_limit is not None or wanted.parameters:
            return None
        statement = checked.get(wanted.sql)
        if statement is None or not statement.is_plain:
            return None
        # First: few statements have one, and to resolve names is done once more for all others.
        if (known := checked.answer_schema(statement)) is None:
            return None
        table, schema = known
        try:
            resolved = resolve(statement.tables, statement.cte_names, host.source.tables())
            schemas = {key: host.source.schema(*key) for key in resolved.tables}
        except UnknownTable:
            return None
        if [table] != [*schemas.values()]:
            # The names and types of the answer may be others now.
            return None
        # Operators that are chained a thousand times make a tree that is as deep.
        with suppress(RecursionError), checked.tree(statement) as tree:
            series = None if tree is None else series_of(tree, resolved, schemas)
            return None if series is None else cls(host, series, table, schema)
        return None

    def answered(self, reading: Reading, output: QueryOutput) -> bool:
        """Whether the rows of these series, all of them in memory, gave the answer. Nothing is shown if not."""
        if self.host.source.fragments(reading.fence) is not None:
            return False
        with ExitStack() as opened:
            try:
                batch = self._batch(reading, opened)
            except StoreError:
                return False
            if batch is None:
                return False
            output.put(self.schema, reading.fence, batch)
            output.end(self.schema, reading.fence)
        return True

    def _batch(self, reading: Reading, opened: ExitStack) -> pa.RecordBatch | None:
        wanted, table = self.wanted, self.table
        scans = self.host.source.scan(
            table.database,
            table.table,
            columns=wanted.columns,
            start_ns=wanted.start_ns,
            end_ns=wanted.end_ns,
            tags=wanted.tags,
            reading=reading,
        )
        for scan in scans:
            opened.push(scan)
        rows = exact_rows(scans)
        batch = None if rows is None else answer_of(rows, wanted, self.schema)
        if batch is not None:
            self.host.count(live_rows_scanned=rows_of(scans))
        return batch
