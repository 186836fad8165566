"""A statement over large tables whose rows are all here: its fragments run as several drivers.

Aggregates are divided as for groups of other nodes, and so are the first rows in some order. What only filters a table
gives its rows as the drivers find them. Everything else runs undivided.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack

import pyarrow as pa

from headrace.consumers.query.distributed_run import DistributedRun
from headrace.consumers.query.distribution import only_filters
from headrace.consumers.query.file_pauses import parts_of_driver
from headrace.consumers.query.file_shares import OpenedScans
from headrace.consumers.query.fragment_drivers import FragmentDrivers
from headrace.consumers.query.group_scans import GroupScan
from headrace.consumers.query.inlining import inlined
from headrace.consumers.query.parameters import BoundStatement
from headrace.consumers.query.planner import ScanPlan
from headrace.consumers.query.query_errors import QueryInvalid
from headrace.consumers.query.scope import column_names
from headrace.consumers.query.session import Session, file_values
from headrace.consumers.query.table_names import Resolved, TableKey
from headrace.consumers.query.table_source import Reading
from headrace.schemas.tables import TableSchema


class ParallelRun:
    """One statement over opened scans. Used by one thread, for one attempt."""

    def __init__(
        self,
        drivers: FragmentDrivers,
        bound: BoundStatement,
        resolved: Resolved,
        schemas: Mapping[TableKey, TableSchema],
        plans: Mapping[TableKey, ScanPlan],
        scans: Mapping[TableKey, Sequence[GroupScan]],
    ) -> None:
        """`scans` are those of each table by its plan."""
        self._drivers = drivers
        self._bound = bound
        self._resolved = resolved
        self._schemas = schemas
        self._plans = plans
        self._scans = scans
        self.input_rows = 0
        """The rows that the statement of `prepared` reads itself."""

    @property
    def pays(self) -> bool:
        """Whether several drivers may pay at this moment: the test that small statements fail."""
        return any(self._drivers.pays(scans, self._columns(key)) for key, scans in self._scans.items())

    def prepared(self, session: Session, resources: ExitStack, reading: Reading) -> str | None:
        """SQL to run in the session, over answers of fragments; None where none ran so. Raises a QueryError."""
        if self._bound.statement.explain or self._bound.statement.verb:
            return None
        source = OpenedScans(self._scans)
        run = DistributedRun(session, resources, source, reading, drivers=self._drivers, all_here=True)
        sql = run.prepared(self._bound, self._resolved, self._schemas)
        self.input_rows = run.input_rows
        return sql if run.parallel else None

    def filtered(self, session: Session) -> tuple[pa.Schema, Generator[pa.RecordBatch, None, None]] | None:
        """The columns and rows of a statement that only filters its table; None for any other. Raises a QueryError."""
        statement = self._bound.statement
        if len(self._plans) != 1 or not only_filters(statement, session.parsed(statement)):
            return None
        ((key, plan),) = self._plans.items()
        schema = self._schemas[key]

        def over(part: Session, share: Sequence[GroupScan]) -> str | None:
            alone = self._drivers.alone
            parts = parts_of_driver(file_values(schema, plan.columns, share), alone=alone)
            view = part.view_of(schema, plan, share, times=1, parts=parts, alone=alone)
            return inlined(statement, self._resolved, {key: view})

        empty = over(session, ())
        if empty is None:
            return None
        try:
            found, _ = session.run(empty, empty=True)
        except QueryInvalid:
            # The error must show what the user wrote.
            return None
        works = self._drivers.works(
            self._scans[key], self._columns(key), lambda part, share: part.run(over(part, share) or "")[1]
        )
        batches = self._drivers.batches(works) if len(works) > 1 else None
        return None if batches is None else (found, batches)

    def _columns(self, key: TableKey) -> int:
        return len(self._plans[key].columns or column_names(self._schemas[key]))
