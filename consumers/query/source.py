"""What a node gives the query engine. Where queries become distributed, a coordinator stands behind the same protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from schemas.tables import TableSchema


class Scan(AbstractContextManager[Any], Protocol):
    """Rows of one table at one data group, as they are at one instant; its files stay on disk until it is closed.

    `files` are Parquet segments whose rows are valid and unique as they are; `table` holds all other rows, merged: tags as string or dictionary
    columns, `time` as int64 or timestamp in ns, fields. A column that no row here has may be missing from either.
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
        """Every (database, table) there is."""
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
    ) -> Sequence[Scan]:
        """One scan a data group. The conditions may be used to return less, time as [start_ns, end_ns); more is never wrong."""
        ...


@runtime_checkable
class WaitingSource(Protocol):
    """A source that can wait until it has applied given log offsets, so that clients read their own writes."""

    def wait_for(self, offsets: Mapping[str, int], timeout_s: float) -> bool:
        """Wait until every named group has applied its log up to the offset; False when the time is over first."""
        ...
