"""Prepares a statement whose rows are on several nodes: fragments run where the rows are, and the rest of it here.

First the statement is bound over empty tables, as it is and as it would be divided. Only if DuckDB gives both the same
columns is it divided. Then every fragment has one answer of each group: a view over the rows of the groups here, and
the answers of the others beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack

import pyarrow as pa
from sqlglot import exp

from headrace.consumers.query.bounds_sql import bounds_sql
from headrace.consumers.query.distribution import Distribution, NamedParameters, PartialPart, distribute
from headrace.consumers.query.divisions import BoundPart, Division, StatementOver
from headrace.consumers.query.explain import Explanation
from headrace.consumers.query.file_shares import ScanShare
from headrace.consumers.query.fragment_drivers import FragmentDrivers
from headrace.consumers.query.fragment_sql import FRAGMENT_BYTES_MAX, FragmentSql
from headrace.consumers.query.fragments import Fragment, FragmentScans, FragmentSource
from headrace.consumers.query.group_scans import GroupScan, rollups_of, rows_of
from headrace.consumers.query.parameters import BoundStatement
from headrace.consumers.query.planner import ScanPlan
from headrace.consumers.query.query_errors import QueryInvalid, QueryTimeout
from headrace.consumers.query.rollup_plan import RollupPlan, plan_rollup
from headrace.consumers.query.row_fragments import RowFragment
from headrace.consumers.query.scope import column_names
from headrace.consumers.query.session import AMBIGUOUS_DATABASES, Session
from headrace.consumers.query.sql_nodes import sql_of
from headrace.consumers.query.table_names import Resolved, TableKey
from headrace.consumers.query.table_source import Reading
from headrace.consumers.query.views import quoted
from headrace.consumers.store import StoreError
from headrace.schemas.tables import TableSchema

TOP_ROWS_MAX = 10_000
"""The first rows of a table that drivers of their own look for: of more each would hold as many."""


class DistributedRun:
    """One statement over the fragments of all groups. Used by one thread, for one attempt."""

    def __init__(
        self,
        session: Session,
        resources: ExitStack,
        source: FragmentSource,
        reading: Reading,
        *,
        partial: bool = True,
        profiled: bool = False,
        drivers: FragmentDrivers | None = None,
        all_here: bool = False,
    ) -> None:
        """Scans are closed with `resources`. `partial`: aggregates are divided. `profiled`: see `explained`.

        `drivers` run large fragments over the rows of groups here. `all_here`: only what is divided is of use.
        """
        self._session = session
        self._resources = resources
        self._source = source
        self._reading = reading
        self._partial = partial
        self._drivers = drivers
        self._all_here = all_here
        self._explanation = Explanation(session, source.node) if profiled else None
        self.scans: list[GroupScan] = []
        """What it reads, in the order of its fragments."""
        self.parallel = 0
        """The fragments that ran as several drivers."""
        self.input_rows = 0
        """The rows that the statement itself reads: those of answers, where others have read the rows."""

    def prepared(
        self, bound: BoundStatement, resolved: Resolved, schemas: Mapping[TableKey, TableSchema]
    ) -> str | None:
        """SQL to run in the session, with all that it reads; None where every row must be fetched.

        Raises a QueryError.
        """
        if not resolved.tables or any(key[0].lower() in AMBIGUOUS_DATABASES for key in resolved.tables):
            return None
        over = StatementOver(bound, resolved, schemas, self._partial)
        division = self._session.divisions.get(over) or self._division(over)
        if division is None or not self._is_of_use(division.distribution):
            return None
        bare, found = resolved.bare, division.distribution
        for each in division.parts:
            self._create_part(each, bound, schemas[each.part.key])
        for key, plan in found.plans.items():
            self._create_rows(schemas[key], plan, found.rows.get(key, RowFragment()), bound, bare=key in bare)
        return division.sql

    def _division(self, over: StatementOver) -> Division | None:
        """A statement divided; None where it is not. Raises a QueryError."""
        session, bound = self._session, over.bound
        found = distribute(
            bound.statement,
            over.resolved,
            over.schemas,
            session.constant,
            bound.texts(),
            session.parsed(bound.statement),
            partial=self._partial,
        )
        if found is None or not self._is_of_use(found):
            return None
        bare = over.resolved.bare
        for key, schema in over.schemas.items():
            session.create_view(schema, ScanPlan(), [], bare=key in bare)
        try:
            division = self._divided(bound.statement.sql, found)
        except QueryInvalid:
            # Of SQL that is wrong, the error must name what the user wrote.
            return None
        if division is not None:
            session.divisions.put(over, division)
        return division

    def _is_of_use(self, found: Distribution) -> bool:
        return not self._all_here or bool(found.parts) or any(map(_is_top, found.rows.values()))

    def explained(
        self, bound: BoundStatement, resolved: Resolved, schemas: Mapping[TableKey, TableSchema]
    ) -> str | None:
        """SQL of the rows of EXPLAIN ANALYZE; None as for `prepared`. Raises a QueryError."""
        assert self._explanation is not None
        sql = self.prepared(bound, resolved, schemas)
        if sql is None:
            return None
        self._explanation.add_final(sql)
        return f"FROM {quoted(self._session.register_next(self._explanation.table()))}"

    def _divided(self, sql: str, found: Distribution) -> Division | None:
        session = self._session
        wanted, parts, texts = session.described(sql), list[BoundPart](), list[str]()
        for number, part in enumerate(found.parts):
            view = f"{session.catalog}.main.{quoted(f'__fragment_{number}')}"
            names, _ = session.described(sql[part.span.start : part.span.end])
            fragment = part.divided.fragment(f"{quoted(part.key[0])}.{quoted(part.key[1])}")
            _, types = session.described(fragment)
            parts.append(BoundPart(part, view, names, types, session.arrow_schema(fragment)))
            session.execute(f"CREATE VIEW {view} AS {fragment}")
            texts.append(part.divided.final(view, names))
        divided = found.spliced(sql, texts)
        # Whole statements are compared: names and types of the columns that the user gets.
        return Division(found, parts, divided) if session.described(divided) == wanted else None

    def _create_part(self, each: BoundPart, bound: BoundStatement, schema: TableSchema) -> None:
        """Make the view of a divided SELECT: the fragment over the groups here, and the answers of the others."""
        part, session, named = each.part, self._session, NamedParameters(bound)
        sql = part.divided.fragment(f"{quoted(schema.database)}.{quoted(schema.table)}", named.sql)
        remote = FragmentSql(sql, each.wire, named.values, session.now_us)
        rollup = plan_rollup(part.divided, schema, session.constant)
        request = None if rollup is None else rollup.request
        scans = self._scan(Fragment(schema, part.plan, remote, self._explanation is not None, request))
        if self._explanation is not None:
            self._explanation.add("partial", scans, lambda scan: self._local(each, schema, [scan], rollup))
        answers = [scan.table for scan in scans.remote if scan.table.num_rows]
        parallel = (
            None
            if self._drivers is None or not part.divided.is_coarse
            else self._parallel_part(part, schema, scans.local)
        )
        queries = [self._local(each, schema, scans.local, rollup, has_rows=parallel is None)]
        if answers := [*answers, *(parallel or ())]:
            name = session.register_next(pa.concat_tables(answers))
            casts = zip(part.divided.columns, each.types, strict=True)
            listed = ", ".join(f"CAST({quoted(column)} AS {kind}) AS {quoted(column)}" for column, kind in casts)
            queries.append(f"SELECT {listed} FROM {quoted(name)}")
        session.execute(f"CREATE OR REPLACE VIEW {each.view} AS {' UNION ALL '.join(queries)}")

    def _parallel_part(
        self, part: PartialPart, schema: TableSchema, scans: Sequence[GroupScan]
    ) -> list[pa.Table] | None:
        """The answers of the fragment over the rows of groups here, by drivers of its own; None where one driver runs it."""
        return self._answers(
            scans, part.plan, schema, lambda session, view: session.run(part.divided.fragment(view))[1]
        )

    def _local(
        self,
        each: BoundPart,
        schema: TableSchema,
        scans: Sequence[GroupScan],
        rollup: RollupPlan | None,
        *,
        has_rows: bool = True,
    ) -> str:
        """The fragment over what scans of groups here have: rollups, and those rows that these do not have.

        Without `has_rows` others have run it over the rows.
        """
        part, found = each.part, rollups_of(scans)
        queries = list[str]()
        if not found or (has_rows and any(scan.files or scan.table.num_rows for scan in scans)):
            view = self._view(schema, part.plan, scans if has_rows else ())
            queries.append(part.divided.fragment(f"({view})"))
        if found:
            assert rollup is not None
            queries.append(rollup.sql(quoted(self._session.register_next(pa.concat_tables(found))), each.types))
        return " UNION ALL ".join(queries)

    def _create_rows(
        self, schema: TableSchema, plan: ScanPlan, wanted: RowFragment, bound: BoundStatement, *, bare: bool
    ) -> None:
        path = f"{quoted(schema.database)}.{quoted(schema.table)}"
        named = NamedParameters(bound)
        sql = _rows_sql(schema, plan, wanted, path, named.sql)
        remote = FragmentSql(sql, None, named.values, self._session.now_us)
        is_sent = 0 < len(sql) <= FRAGMENT_BYTES_MAX and (wanted.conditions or wanted.limit is not None)
        found = self._scan(Fragment(schema, plan, remote if is_sent else None, self._explanation is not None))
        if self._explanation is not None:
            self._explanation.add(
                "rows",
                found,
                lambda scan: _rows_sql(schema, plan, wanted, f"({self._view(schema, plan, [scan])})", sql_of),
            )
        top = self._top(schema, plan, wanted, found.local) if self._drivers is not None and _is_top(wanted) else None
        local = found.local if top is None else [ScanShare((), 0, table) for table in top]
        self._session.create_view(schema, plan, [*local, *found.remote], bare=bare)

    def _top(
        self, schema: TableSchema, plan: ScanPlan, wanted: RowFragment, scans: Sequence[GroupScan]
    ) -> list[pa.Table] | None:
        """The first rows of groups here, by drivers of their own; None where one driver looks for them."""
        return self._answers(
            scans, plan, schema, lambda session, view: session.run(_rows_sql(schema, plan, wanted, view, sql_of))[1]
        )

    def _answers(
        self,
        scans: Sequence[GroupScan],
        plan: ScanPlan,
        schema: TableSchema,
        fragment: Callable[[Session, str], Iterator[pa.RecordBatch]],
    ) -> list[pa.Table] | None:
        """What a fragment over a table, by its SQL, gives in drivers of its own; None where one driver runs it."""
        drivers = self._drivers
        assert drivers is not None
        columns = len(plan.columns or column_names(schema))

        def over(session: Session, share: Sequence[GroupScan]) -> Iterator[pa.RecordBatch]:
            view = session.view_of(schema, plan, share, times=1, alone=drivers.alone)
            return fragment(session, f"({view})")

        found = drivers.answers(scans, columns, over)
        if found is not None:
            self.parallel += 1
            self.input_rows += sum(table.num_rows for table in found) - rows_of(scans)
        return found

    def _view(self, schema: TableSchema, plan: ScanPlan, scans: Sequence[GroupScan]) -> str:
        return self._session.view_of(schema, plan, scans)

    def _scan(self, fragment: Fragment) -> FragmentScans:
        if fragment.plan.empty:
            return FragmentScans((), ())
        try:
            scans = self._source.scan_fragment(fragment, self._reading)
        except StoreError as error:
            raise self._session.translate(error) from error
        for scan in (*scans.local, *scans.remote):
            self._resources.push(scan)
            self.scans.append(scan)
        self.input_rows += rows_of((*scans.local, *scans.remote))
        timer = self._session.timer
        if timer.expired:
            raise QueryTimeout.after(timer.timeout_ms)
        return scans


def _rows_sql(
    schema: TableSchema, plan: ScanPlan, wanted: RowFragment, table: str, write: Callable[[exp.Expression], str]
) -> str:
    """SQL of the rows that are wanted of a table, by its SQL name."""
    conditions = bounds_sql(plan.start_ns, plan.end_ns, plan.tags) + [f"({write(each)})" for each in wanted.conditions]
    sql = f"SELECT {', '.join(map(quoted, plan.columns or column_names(schema)))} FROM {table}"
    sql += f" WHERE {' AND '.join(conditions)}" if conditions else ""
    sql += f" ORDER BY {', '.join(map(write, wanted.order))}" if wanted.order else ""
    return f"{sql} LIMIT {wanted.limit}" if wanted.limit is not None else sql


def _is_top(wanted: RowFragment) -> bool:
    """Whether only the first rows in some order are wanted, and few of them."""
    return bool(wanted.order) and wanted.limit is not None and wanted.limit <= TOP_ROWS_MAX
