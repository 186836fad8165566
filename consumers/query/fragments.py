"""Fragments: the parts of a statement that run where the rows of a group are, and the protocol that runs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.consumers.query.fragment_sql import FragmentSql
from headrace.consumers.query.group_scans import GroupScan
from headrace.consumers.query.planner import ScanPlan
from headrace.consumers.query.table_source import Reading
from headrace.consumers.store.rollup_columns import RollupRequest
from headrace.schemas.tables import TableSchema


@dataclass(frozen=True, slots=True)
class Fragment:
    """One fragment of a statement, for every group: what is read of a table, and what members of others run over it.

    `remote` is None where they send rows as they are. `profiled`: with the figures of EXPLAIN ANALYZE. `rollup` is what
    the groups here may give instead of rows.
    """

    schema: TableSchema
    plan: ScanPlan
    remote: FragmentSql | None = None
    profiled: bool = False
    rollup: RollupRequest | None = None


@dataclass(frozen=True, slots=True)
class FragmentScans:
    """A fragment by group: scans of rows of the groups here, and what members of other groups have answered."""

    local: Sequence[GroupScan]
    remote: Sequence[GroupScan]


class FragmentSource(Protocol):
    """Runs fragments where the rows are. Every method may be called from several threads at once."""

    @property
    def node(self) -> str:
        """The name of this node."""
        ...

    def scan_fragment(self, fragment: Fragment, reading: Reading) -> FragmentScans:
        """One answer of each group. The caller closes all of them.

        Groups that are served here give scans of rows, over which the caller runs the fragment itself. Raises
        SlotNotHeld for a query that must be planned again, and GroupUnavailable.
        """
        ...
