"""What a query asks for, and what it needs of the engine that runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace.consumers.query.database import LockedDatabase
from headrace.consumers.query.fragment_drivers import DriverHost
from headrace.consumers.query.table_source import TableSource


@dataclass(frozen=True, slots=True)
class QueryWanted:
    """What a caller of `QueryEngine.query` asks for; see there, and `QueryEngine.parameters`."""

    sql: str
    after: Mapping[str, int] = field(default_factory=dict)
    row_limit: int | None = None
    stale_s: float = 0.0
    parameters: Mapping[str, Any] = field(default_factory=dict)
    describes_parameters: bool = False


class QueryHost(DriverHost, Protocol):
    """What a query needs of its engine."""

    source: TableSource
    database: LockedDatabase
    on_unreadable: Callable[[], None]

    def count(self, **amounts: float) -> None:
        """Add to the statistics."""
        ...

    def reserve(self, query_id: str, memory_mb: int) -> Future[None]:
        """Exchange the memory of a running query; done once it has it."""
        ...
