"""What a query reads of one table: as scans of the groups here, and as requests to members of the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from headrace.consumers.query.fragment_sql import FragmentSql
from headrace.consumers.query.fragments import Fragment
from headrace.consumers.query.group_scans import GroupScan
from headrace.consumers.query.hand_overs import Positions
from headrace.consumers.query.local_source import LocalSource
from headrace.consumers.query.planner import ScanPlan
from headrace.consumers.query.scan_request import RemoteScanRequest, wire_schema
from headrace.consumers.query.scope import column_names
from headrace.consumers.query.table_source import Reading
from headrace.consumers.store.rollup_columns import RollupRequest
from headrace.schemas.group_changes import GroupKey
from headrace.schemas.tables import TableSchema


@dataclass(frozen=True)
class TableRead:
    """What a query reads of one table, and what members of other groups compute of it."""

    schema: TableSchema
    plan: ScanPlan
    remote: FragmentSql | None = None
    profiled: bool = False
    rollup: RollupRequest | None = None

    @classmethod
    def of(cls, fragment: Fragment) -> TableRead:
        """What a fragment reads."""
        return cls(fragment.schema, fragment.plan, fragment.remote, fragment.profiled, fragment.rollup)

    def scanned(self, source: LocalSource, reading: Reading) -> Sequence[GroupScan]:
        """Scans of the groups here."""
        plan = self.plan
        return source.scan(
            self.schema.database,
            self.schema.table,
            columns=plan.columns,
            start_ns=plan.start_ns,
            end_ns=plan.end_ns,
            tags=plan.tags or None,
            newest=plan.newest,
            rollup=self.rollup,
            reading=reading,
        )

    def request(self, key: GroupKey, table_version: int, after: int, accepted: Positions) -> RemoteScanRequest:
        """The scan of one group of other nodes."""
        schema, plan = self.schema, self.plan
        return RemoteScanRequest(
            *(key.group, schema.database, schema.table, schema.version, self.names, plan.start_ns, plan.end_ns),
            {tag: tuple(values) for tag, values in plan.tags.items()},
            after=after,
            birth=key.birth,
            table_version=table_version,
            accepted=accepted,
            fragment=self.remote,
            newest=plan.newest,
            profiled=self.profiled,
        )

    def wire(self) -> pa.Schema:
        """The Arrow schema of an answer."""
        given = None if self.remote is None else self.remote.schema
        return wire_schema(self.schema, self.names) if given is None else given

    @property
    def names(self) -> tuple[str, ...]:
        """The columns by name."""
        return tuple(self.plan.columns) if self.plan.columns is not None else column_names(self.schema)
