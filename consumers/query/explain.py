"""EXPLAIN ANALYZE: what each fragment of a statement has read, by group and by node.

DuckDB profiles a statement only as it explains it, so a fragment runs twice: for its figures, and for its rows.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from headrace.consumers.query.fragments import FragmentScans
from headrace.consumers.query.group_scans import GroupScan
from headrace.consumers.query.scan_figures import ScanFigures
from headrace.consumers.query.session import Session

_COUNTS = ("segments_read", "segments_skipped", "row_groups_read", "rows")
_SCHEMA = pa.schema(
    [("fragment", pa.int64()), ("node", pa.string()), ("group", pa.string()), ("driver", pa.string())]
    + [(name, pa.int64()) for name in _COUNTS]
    + [("ms", pa.float64())]
)
_FILE_SCANS = ("READ_PARQUET", "PARQUET_SCAN")
VECTOR_ROWS = 2_048
"""Rows that DuckDB reads at a time."""


def profiled(session: Session, sql: str, scans: Sequence[GroupScan], group: str) -> ScanFigures:
    """Runs a statement over scans of one group for its figures. Raises a QueryError."""
    began_s = time.perf_counter()
    ((_, text),) = session.execute(f"EXPLAIN (ANALYZE, FORMAT json) {sql}")
    milliseconds = (time.perf_counter() - began_s) * 1_000
    profile = json.loads(text)
    opened = [scan.figures for scan in scans]
    return ScanFigures(
        group=group,
        segments_read=sum(each.segments_read for each in opened),
        segments_skipped=sum(each.segments_skipped for each in opened),
        row_groups_read=sum(map(_row_groups, _operators(profile))) + sum(each.row_groups_read for each in opened),
        rows=_rows(profile),
        milliseconds=milliseconds,
        from_index=bool(opened) and all(each.from_index for each in opened),
        rolled_up=sum(each.rolled_up for each in opened),
    )


def _operators(profile: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    stack = list(profile.get("operator", ()))
    while stack:
        found = stack.pop()
        yield found
        stack.extend(found.get("children", ()))


def _row_groups(operator: Mapping[str, Any]) -> int:
    """The row groups that a scan of files has taken rows from."""
    # DuckDB counts those that it has begun with, of which a LIMIT leaves most before their first row. Row groups of
    # a store have far more rows than a vector, so that the rows bound how many were read.
    vectors = math.ceil(operator.get("rows_scanned", 0) / VECTOR_ROWS)
    is_of_files = str(operator.get("extra_info", {}).get("Function", "")).upper() in _FILE_SCANS
    return min(int(operator.get("row_groups_scanned", 0)), vectors) if is_of_files else 0


def _rows(profile: Mapping[str, Any]) -> int:
    """The rows of the statement: those of the operator below the collector of the explanation."""
    for operator in _operators(profile):
        if operator.get("type") == "EXPLAIN_ANALYZE":
            return sum(map(_rows_of, operator.get("children", ())))
    return 0


def _rows_of(operator: Mapping[str, Any]) -> int:
    """The rows that an operator gives."""
    children = operator.get("children", ())
    # DuckDB counts none where rows pass through: its parts give those of a UNION ALL, the last one those of a CTE.
    if operator.get("type") in ("UNION", "CTE") and children:
        return sum(map(_rows_of, children if operator["type"] == "UNION" else children[-1:]))
    return int(operator.get("intermediate_rows", 0))


class Explanation:
    """The rows of one EXPLAIN ANALYZE: one for each fragment and group, and the final statement."""

    def __init__(self, session: Session, node: str) -> None:
        """`node` is this one."""
        self._session = session
        self._node = node
        self._rows: list[dict[str, Any]] = []
        self._fragments = 0

    def add(self, driver: str, scans: FragmentScans, sql_over: Callable[[GroupScan], str]) -> None:
        """One fragment; `sql_over` gives its SQL over the rows of one group here. Raises a QueryError."""
        for scan in scans.local:
            figures = profiled(self._session, sql_over(scan), [scan], scan.figures.group)
            self._add(driver, replace(figures, node=self._node))
        for scan in scans.remote:
            self._add(driver, scan.figures)
        self._fragments += 1

    def add_final(self, sql: str) -> None:
        """The statement over the answers of all fragments. Raises a QueryError."""
        figures = profiled(self._session, sql, [], "")
        # What it reads of groups here is that of their fragments.
        self._add("final", replace(figures, node=self._node, row_groups_read=0))

    def _add(self, driver: str, figures: ScanFigures) -> None:
        row = {"fragment": self._fragments, "node": figures.node, "group": figures.group}
        row["driver"] = "last" if figures.from_index else "rollup" if figures.rolled_up else driver
        row |= {name: getattr(figures, name) for name in _COUNTS}
        self._rows.append(row | {"ms": round(figures.milliseconds, 3)})

    def table(self) -> pa.Table:
        """All rows."""
        return pa.Table.from_pylist(self._rows, schema=_SCHEMA)
