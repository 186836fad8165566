"""What queries read: tables that can be scanned, and those of this node as one source.

A coordinator of distributed queries will be another TableSource over the same engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from headrace.connectors.deadline import Deadline
from headrace.consumers.replication.group import Group
from headrace.consumers.store import TableUnknown
from headrace.schemas.tables import Catalogue, TableSchema


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
    def table(self) -> pa.Table:
        """All other rows."""
        ...


class TableSource(Protocol):
    """Tables that can be scanned. Every method may be called from several threads at once."""

    def tables(self) -> Sequence[tuple[str, str]]:
        """Every (database, table) of the source."""
        ...

    def schema(self, database: str, table: str) -> TableSchema:
        """The newest schema of a table."""
        ...

    def scan(
        self,
        database: str,
        table: str,
        *,
        columns: Sequence[str] | None,
        start_ns: int | None,
        end_ns: int | None,
        tags: Mapping[str, Sequence[str]] | None,
    ) -> Sequence[GroupScan]:
        """One scan per data group.

        The conditions, time as [start_ns, end_ns), may be used to return less; more is never wrong.
        """
        ...

    def wait_for(self, offsets: Mapping[str, int], timeout_s: float) -> bool:
        """Wait until every named group has applied its log up to the offset; False after `timeout_s`."""
        ...


class LocalSource:
    """The tables of this node: the stores of its groups as one TableSource.

    Today every node is a member of every group, so this one has every row.
    """

    def __init__(self, groups: Callable[[], Sequence[Group]], catalogue: Catalogue) -> None:
        self._groups = groups
        self._catalogue = catalogue

    def tables(self) -> Sequence[tuple[str, str]]:
        """See TableSource: every table of the schema log, also one without rows."""
        return sorted(self._catalogue.tables)

    def schema(self, database: str, table: str) -> TableSchema:
        """See TableSource."""
        return self._catalogue.newest(database, table)

    def scan(
        self,
        database: str,
        table: str,
        *,
        columns: Sequence[str] | None,
        start_ns: int | None,
        end_ns: int | None,
        tags: Mapping[str, Sequence[str]] | None,
    ) -> Sequence[GroupScan]:
        """See TableSource."""
        scans: list[GroupScan] = []
        with ExitStack() as opened:
            for group in self._groups():
                # Rows are routed by series, so a group that got no series of a table does not know it.
                with suppress(TableUnknown):
                    scan = group.store.scan(
                        database, table, columns=columns, start_ns=start_ns, end_ns=end_ns, tags=tags
                    )
                    scans.append(opened.enter_context(scan))
            # From here the caller closes them; an error before this line closes those that are open.
            opened.pop_all()
        return scans

    def wait_for(self, offsets: Mapping[str, int], timeout_s: float) -> bool:
        """See TableSource. Groups of other nodes are left out."""
        deadline = Deadline(timeout_s)
        by_name = {group.name: group for group in self._groups()}
        return all(
            by_name[name].wait_for_offset(offset, deadline.left_s())
            for name, offset in offsets.items()
            if name in by_name
        )
