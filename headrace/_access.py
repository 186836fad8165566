"""What the client and commands need of a cluster to write: over its logs, or through one of its nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import TracebackType
from typing import Protocol, Self

import pyarrow as pa

from headrace._connection import ClusterConnection
from headrace.producers.cluster import Schemas
from headrace.producers.deletes import delete_rows, drop_table, set_retention
from headrace.producers.writer import TableWriter, WriterSettings, Written


class RowWriter(Protocol):
    """Writes rows of one table, see `TableWriter`. A context manager, and safe to share between threads."""

    @property
    def database(self) -> str:
        """The database of the table."""
        ...

    @property
    def table(self) -> str:
        """The table."""
        ...

    @property
    def written(self) -> Written:
        """What was written so far."""
        ...

    def write(self, rows: pa.Table, tags: Collection[str] | None) -> None:
        """Write rows; an empty table writes none, but its columns extend the schema. `tags`: None if none were named."""
        ...

    def flush(self) -> dict[str, int]:
        """Wait for everything written so far; the newest offset in each log, by its topic."""
        ...

    def newest(self) -> dict[str, int]:
        """The newest offset in each log that is known to hold rows of this writer, by its topic."""
        ...

    @property
    def is_settled(self) -> bool:
        """Whether everything written has its report, and no error of one is left to raise."""
        ...

    def close(self) -> dict[str, int]:
        """Flush and take no more rows; a second call flushes what the first one did not."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class ClusterAccess(Protocol):
    """A way to a cluster. Any thread may call every method."""

    @property
    def tables(self) -> Schemas:
        """The schemas of its tables."""
        ...

    def writer(self, database: str, table: str, settings: WriterSettings) -> RowWriter:
        """A writer of one table. Raises QuorumTooLarge."""
        ...

    def delete(
        self,
        database: str,
        table: str,
        tags: Mapping[str, str | Iterable[str]],
        start_ns: int | None,
        end_ns: int | None,
        settings: WriterSettings,
    ) -> Mapping[str, int]:
        """See `producers.deletes.delete_rows`."""
        ...

    def drop(self, database: str, table: str, settings: WriterSettings) -> Mapping[str, int]:
        """See `producers.deletes.drop_table`."""
        ...

    def set_retention(self, database: str, table: str, keep_ns: int | None) -> None:
        """See `producers.deletes.set_retention`."""
        ...

    def close(self) -> None:
        """Release its connections."""
        ...


class LogAccess:
    """See ClusterAccess: over the logs of the cluster, in Kafka."""

    def __init__(self, connection: ClusterConnection) -> None:
        self._connection = connection

    @property
    def tables(self) -> Schemas:
        """See ClusterAccess."""
        return self._connection.cluster.tables

    def writer(self, database: str, table: str, settings: WriterSettings) -> RowWriter:
        """See ClusterAccess."""
        return TableWriter(self._connection.cluster, database, table, settings)

    def delete(
        self,
        database: str,
        table: str,
        tags: Mapping[str, str | Iterable[str]],
        start_ns: int | None,
        end_ns: int | None,
        settings: WriterSettings,
    ) -> Mapping[str, int]:
        """See ClusterAccess."""
        return delete_rows(self._connection.cluster, database, table, tags, start_ns, end_ns, settings)

    def drop(self, database: str, table: str, settings: WriterSettings) -> Mapping[str, int]:
        """See ClusterAccess."""
        return drop_table(self._connection.cluster, database, table, settings)

    def set_retention(self, database: str, table: str, keep_ns: int | None) -> None:
        """See ClusterAccess."""
        set_retention(self._connection.cluster, database, table, keep_ns)

    def close(self) -> None:
        """See ClusterAccess."""
        self._connection.close()
