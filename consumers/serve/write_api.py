"""What the HTTP surface needs of a node to write."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from headrace.consumers.serve.request_bodies import BodyRoom
from headrace.producers.group_writer import GroupWriterStatistics
from headrace.producers.line_requests import LineAnswer, LineRequest
from headrace.producers.settings import WriteSettings
from headrace.schemas.tables import Catalogue, TableSchema, TimeResolution


@dataclass(frozen=True, slots=True)
class WrittenRows:
    """What one request wrote: rows, field values that are not null, and the newest offset of each log."""

    rows: int
    points: int
    offsets: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What one request may choose; None is the setting of the node. `resolution` is that of a table that it makes.

    `resolution_required`: a table with another one is refused.
    """

    quorum: int | None = None
    quorum_timeout_ms: int | None = None
    resolution: TimeResolution | None = None
    resolution_required: bool = False


@dataclass(slots=True)
class WriteFigures:
    """Requests to write over HTTP: open now, and refused because too many were open; the bodies of those that are."""

    open_requests: int = 0
    refused_requests: int = 0
    bodies: BodyRoom = field(default_factory=BodyRoom)


class WriteApi(Protocol):
    """Writes rows of HTTP requests. Any thread may call every method."""

    @property
    def settings(self) -> WriteSettings:
        """Limits and the quorum."""
        ...

    @property
    def figures(self) -> WriteFigures:
        """Counted by the surface."""
        ...

    @property
    def statistics(self) -> GroupWriterStatistics:
        """Counted by the writer."""
        ...

    def submit(self, request: LineRequest) -> Future[LineAnswer]:
        """Queue lines, see `GroupWriter.submit`."""
        ...

    def write(
        self, database: str, table: str, rows: pa.Table, tags: Collection[str] | None, options: WriteOptions
    ) -> WrittenRows:
        """Write rows of one table and wait for their quorum. `tags`: None when none were named, which is refused for
        rows of a new table that share a time. Raises RowsRepeat, and as TableWriter.
        """
        ...

    def delete(
        self,
        database: str,
        table: str,
        tags: Mapping[str, str | list[str]],
        start: int | str | None,
        end: int | str | None,
        quorum: int | None,
    ) -> Mapping[str, int]:
        """Delete rows, see `delete_rows`; times are ISO 8601, or integers of ns."""
        ...

    def drop(self, database: str, table: str, quorum: int | None) -> Mapping[str, int]:
        """Drop a table, see `drop_table`."""
        ...

    def set_retention(self, database: str, table: str, keep_ns: int | None) -> TableSchema:
        """Keep the rows of a table for so long, see `producers.deletes.set_retention`."""
        ...

    def create_database(self, database: str) -> None:
        """Make a database; one that exists is left as it is. Raises SchemaError."""
        ...

    def schemas(self) -> Catalogue:
        """Every schema of the cluster up to now."""
        ...
