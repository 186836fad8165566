"""Scans of the rows of a group: the protocol, and the scan of a group of this node, of its files or its newest rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import pyarrow as pa

from headrace.consumers.query.scan_figures import ScanFigures
from headrace.consumers.replication.group import Group
from headrace.consumers.store import FormerRows, ScanRequest
from headrace.consumers.store.rollup_columns import RollupRequest
from headrace.consumers.store.scan import TableScan


class GroupScan(AbstractContextManager[Any], Protocol):
    """Rows of one table in one data group at one instant. Its files stay on disk until it is closed.

    `files` are Parquet segments whose rows are valid and unique as they are. `table` holds all other rows,
    merged: tags as string or dictionary columns, `time` as int64 or as timestamp in ns, then the fields. A
    column that no row here has may be missing from either.
    """

    @property
    def files(self) -> Sequence[Path]:
        """Parquet segments to read whole."""
        ...

    @property
    def file_rows(self) -> int:
        """The rows of all files together."""
        ...

    @property
    def table(self) -> pa.Table:
        """All other rows."""
        ...

    @property
    def figures(self) -> ScanFigures:
        """What it has read, as far as that is known when it is opened."""
        ...


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a query reads of one table; see `TableSource.scan`."""

    database: str
    table: str
    columns: Sequence[str] | None = None
    start_ns: int | None = None
    end_ns: int | None = None
    tags: Mapping[str, Sequence[str]] | None = None
    newest: Sequence[str] | None = None
    rollup: RollupRequest | None = None

    @property
    def request(self) -> ScanRequest:
        """The rows as a store is asked for them."""
        columns = None if self.columns is None else frozenset(self.columns)
        return ScanRequest(columns, self.start_ns, self.end_ns, self.tags)


class LocalScan:
    """See GroupScan: rows of a group of this node."""

    def __init__(self, group: str, scan: TableScan) -> None:
        self.files: Sequence[Path] = scan.files
        self.file_rows = scan.file_rows
        self.near_rows = scan.near_rows
        self.table = scan.table
        self.rollup = scan.rollup
        read, skipped = len(scan.files) + scan.merged.segments, scan.segments - len(scan.files) - scan.merged.segments
        rolled_up = 0 if scan.rollup is None else scan.rollup.column(0).num_chunks
        self.figures = ScanFigures("", group, read, skipped, scan.merged.row_groups, rolled_up=rolled_up)
        self._scan = scan

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._scan.close()


class NewestScan:
    """See GroupScan: the newest row of each series of a group, from its index and its unsealed rows."""

    files: Sequence[Path] = ()
    file_rows = 0

    def __init__(self, group: str, segments: int, table: pa.Table) -> None:
        self.table = table
        self.figures = ScanFigures(group=group, segments_skipped=segments, from_index=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


def rows_of(scans: Iterable[GroupScan]) -> int:
    """The rows of scans, of files and others."""
    return sum(scan.file_rows + scan.table.num_rows for scan in scans)


def rows_near(scans: Sequence[GroupScan]) -> int:
    """The rows that a statement may have to look at: of files those near the series that it wants, where it names tags."""
    return sum(
        (scan.near_rows if isinstance(scan, LocalScan) else scan.file_rows) + scan.table.num_rows for scan in scans
    )


def rollups_of(scans: Sequence[GroupScan]) -> list[pa.Table]:
    """The rollups that scans of groups here have in the place of files."""
    return [scan.rollup for scan in scans if isinstance(scan, LocalScan) and scan.rollup is not None]


def exact_rows(scans: Sequence[GroupScan]) -> list[pa.Table] | None:
    """The rows of scans, where these are just the rows that were asked for; None where files or others are to be read."""
    if not all(isinstance(scan, LocalScan) and not scan.files for scan in scans):
        return None
    return [scan.table for scan in scans]


def open_scan(group: Group, wanted: Conditions, former: FormerRows | None = None) -> GroupScan:
    """The rows that a query reads in one group, with those that former holders have of its slots.

    Raises TableUnknown (not with `former`), StoreRetired, StoreDamaged.
    """
    # Which row is the newest is known once all files are here.
    if former is None and wanted.newest is not None and (rows := _newest(group, wanted, wanted.newest)) is not None:
        return rows
    scan = group.store.scan(
        wanted.database,
        wanted.table,
        columns=wanted.columns,
        start_ns=wanted.start_ns,
        end_ns=wanted.end_ns,
        tags=wanted.tags,
        rollup=wanted.rollup,
        former=former,
    )
    return LocalScan(group.name, scan)


def _newest(group: Group, wanted: Conditions, needed: Sequence[str]) -> NewestScan | None:
    """The newest rows, None where they do not suffice: the index does not know one, or a value is null there."""
    rows = group.store.last_rows(wanted.database, wanted.table, wanted.tags)
    # An aggregate ignores nulls: an older row of the series may have a value.
    if rows is None or any(name not in rows.column_names or rows.column(name).null_count for name in needed):
        return None
    return NewestScan(group.name, len(group.store.segments_of(wanted.database, wanted.table)), rows)
