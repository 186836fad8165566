"""Answers scans of other nodes: the merged rows of one group that is in sync here, batch by batch.

The group must serve before the first row and behind the last one, as for a query of this node. The rows pass
through DuckDB in batches, so a scan holds no table in memory but the unsealed rows that are there anyway. A scan is
a query of the driver scheduler, with permits and memory of its own: nodes that wait for each other's rows would
otherwise hold the places of queries that the other one needs.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

from headrace.consumers.query.engine import QueryEngine
from headrace.consumers.query.local_fence import LocalFence
from headrace.consumers.query.local_source import LocalSource
from headrace.consumers.query.query_errors import NotCaughtUp, QueryError, SlotNotHeld, TooManyScans
from headrace.consumers.query.running_scan import RunningScan
from headrace.consumers.query.scan_memory import ScanMemory
from headrace.consumers.query.scan_request import RemoteScanRequest
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.group_health import State
from headrace.schemas.tables import TableSchema

SCHEMA_WAIT_S = 1.0
"""How long a scan waits for a version of the schema that the asker knows already."""


class SchemaSource(Protocol):
    """The schemas of tables; implemented by `consumers.membership.schema_log.SchemaLog`."""

    def wait_for(self, database: str, table: str, version: int, timeout_s: float) -> TableSchema | None:
        """The table at exactly this version; None when it was not read in time."""
        ...


@dataclass(slots=True)
class ScanStatistics:
    """Counters since the start; `running` is a gauge."""

    running: int = 0
    answered: int = 0
    failed: int = 0
    refused: int = 0
    rows: int = 0
    seconds: float = 0.0


class GroupScanner:
    """Opens scans for other nodes. Every method may be called from any thread."""

    def __init__(self, node: str, source: LocalSource, schemas: SchemaSource, engine: QueryEngine) -> None:
        """`engine` lends its DuckDB instances, its scheduler and its limits of memory and time."""
        self.statistics = ScanStatistics()
        self.scans_max = engine.settings.scans_max
        self._node = node
        self._source = source
        self._schemas = schemas
        self._engine = engine
        self._memory = ScanMemory(node, engine.settings)
        self._permits = threading.BoundedSemaphore(self.scans_max)
        self._lock = threading.Lock()

    def open(self, request: RemoteScanRequest) -> RunningScan:
        """A scan that may begin. Raises SlotNotHeld, NotReady, TooManyScans, ScanInvalid, NotCaughtUp."""
        try:
            return self._open(request)
        except QueryError:
            self._count(refused=1)
            raise

    def _open(self, request: RemoteScanRequest) -> RunningScan:
        present = list(self._source.groups.items())
        topic = next((key for key, group in present if _is_wanted(group, request)), None)
        if topic is None:
            raise SlotNotHeld.of(request.group, self._node)
        if not self._permits.acquire(blocking=False):
            raise TooManyScans(
                f"{self.scans_max} scans for other nodes are running already", action="retry", retriable=True
            )
        self._count(running=1)
        resources = ExitStack()
        resources.callback(self._release, time.monotonic())
        try:
            fence = LocalFence(self._source.groups, self._source.state, [topic], request.table_version)
            schema = self._schema(request)
            return RunningScan(resources, self._engine, request, schema, fence, self._source, self._memory, self._end)
        except BaseException:
            resources.close()
            raise

    def _schema(self, request: RemoteScanRequest) -> TableSchema:
        # Everything from the asker's version on has the columns that it names.
        if self._schemas.wait_for(request.database, request.table, request.version, SCHEMA_WAIT_S) is None:
            raise NotCaughtUp(
                f"it has not read version {request.version} of the schema of {request.database}.{request.table}",
                action="retry, or ask another node",
                retriable=True,
            )
        return self._source.schema(request.database, request.table)

    def _release(self, began_s: float) -> None:
        self._count(running=-1, seconds=time.monotonic() - began_s)
        self._permits.release()

    def _end(self, rows: int | None) -> None:
        self._count(failed=1) if rows is None else self._count(answered=1, rows=rows)

    def _count(self, **amounts: float) -> None:
        with self._lock:
            for name, amount in amounts.items():
                setattr(self.statistics, name, getattr(self.statistics, name) + amount)


def _is_wanted(group: Group, request: RemoteScanRequest) -> bool:
    """Whether a group is the one that a scan asks for; an asker that names no birth means the one there is."""
    wanted = group.key == request.name if request.birth else group.name == request.group
    return wanted and not group.health.holds(State.LEAVING)
