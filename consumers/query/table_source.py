"""What queries read: tables that can be scanned, and those of this node as one source.

A coordinator of distributed queries will be another TableSource over the same engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from headrace.connectors.clock import Moment
from headrace.connectors.deadline import Deadline
from headrace.consumers.query.query_errors import AnswerStale, NotReady
from headrace.consumers.query.stale_reads import DataState, StaleFence, not_ready
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


class ReadFence(Protocol):
    """What an answer depends on from the moment of `TableSource.fence` to its last row."""

    @property
    def confirmed(self) -> Mapping[str, int]:
        """By group, the newest log offset that the node had confirmed to anybody: an answer contains it."""
        ...

    @property
    def as_of(self) -> Moment | None:
        """The moment up to which a stale answer contains everything; None for an answer of a node that serves."""
        ...

    def check(self) -> None:
        """Raises AnswerStale unless the source has served the same data without a break.

        A stale answer must have the same data, and must not be older than was allowed.
        """
        ...


class TableSource(Protocol):
    """Tables that can be scanned. Every method may be called from several threads at once."""

    def fence(self, stale_s: float = 0.0) -> ReadFence:
        """Taken before anything else is read.

        Raises NotReady while the source does not serve, unless what it has is at most `stale_s` old.
        """
        ...

    def tables(self) -> Sequence[tuple[str, str]]:
        """Every (database, table) of the source that a user knows."""
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


class ServingState(DataState, Protocol):
    """Whether a node serves; see `consumers.node.readiness`."""

    @property
    def fencings(self) -> int:
        """How often the node was fenced; see `consumers.replication.heartbeat`."""
        ...

    def ready(self) -> tuple[bool, Sequence[str]]:
        """Whether every group serves, and the reasons why not."""
        ...


class LocalFence:
    """The ReadFence of one query at this node."""

    as_of: Moment | None = None

    def __init__(self, groups: Mapping[str, Group], state: ServingState) -> None:
        """Raises NotReady."""
        # Before the check: a node that is fenced and back between the two has another number at the end.
        self._fencings = state.fencings
        self._state = state
        self._groups = groups
        self._began_with = dict(groups)
        self.confirmed = {group.name: state.durable_offset(topic) for topic, group in self._began_with.items()}
        serves, reasons = state.ready()
        if not serves:
            raise not_ready(state, reasons)

    def check(self) -> None:
        """See ReadFence."""
        serves, reasons = self._state.ready()
        # A process that was stopped and is back may have read its heartbeat again before it came here.
        if not serves or self._state.fencings != self._fencings:
            raise AnswerStale.because("; ".join(reasons) or "it was stopped, or cut off from Kafka, for a moment")
        for topic, group in self._began_with.items():
            if self._groups[topic] is not group:
                raise AnswerStale.because(f"group {group.name} recovered, its files were replaced")


class LocalSource:
    """The tables of this node: the stores of its groups as one TableSource.

    Today every node is a member of every group, so this one has every row.
    """

    def __init__(self, groups: Mapping[str, Group], catalogue: Catalogue, state: ServingState) -> None:
        """`groups` by forward topic; a group that recovers is replaced there."""
        self._groups = groups
        self._catalogue = catalogue
        self._state = state

    def fence(self, stale_s: float = 0.0) -> ReadFence:
        """See TableSource."""
        try:
            return LocalFence(self._groups, self._state)
        except NotReady:
            if not stale_s:
                raise
        return StaleFence(self._groups, self._state, stale_s, self._state.ready()[1])

    def tables(self) -> Sequence[tuple[str, str]]:
        """See TableSource: every table of the schema log, also one without rows, unless it was dropped."""
        return [key for key in sorted(self._catalogue.tables) if not self._is_gone(*key)]

    def _is_gone(self, database: str, table: str) -> bool:
        """Whether a table was dropped and nobody has written to it since.

        By its rows and not by the table log alone: a writer that was connected all the time adds no record there.
        """
        if not self._catalogue.is_dropped(database, table):
            return False
        return all(group.store.is_empty(database, table) for group in list(self._groups.values()))

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
            for group in list(self._groups.values()):
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
        by_name = {group.name: group for group in list(self._groups.values())}
        return all(
            by_name[name].wait_for_offset(offset, deadline.left_s())
            for name, offset in offsets.items()
            if name in by_name
        )
