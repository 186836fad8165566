"""What queries read: tables that can be scanned, and those of the groups of this node as one source.

`cluster_source.py` is a TableSource of all groups: those that are in sync here, and the others over HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from headrace.connectors.clock import Moment
from headrace.connectors.deadline import Deadline
from headrace.consumers.query.query_errors import AnswerStale, NotReady, SlotNotHeld
from headrace.consumers.query.stale_reads import DataState, StaleFence, not_ready
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.group_health import State
from headrace.consumers.replication.group_registry import GroupNotHere
from headrace.consumers.store import StoreRetired, TableUnknown
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


class ReadTimer(Protocol):
    """The time of one query; see `consumers.query.result_stream.QueryTimer`."""

    timeout_ms: int

    @property
    def left_s(self) -> float:
        """Seconds left, 0 at least."""
        ...

    @property
    def expired(self) -> bool:
        """True once the time is over."""
        ...

    @property
    def cancelled(self) -> bool:
        """True once the query was cancelled."""
        ...

    def interrupts(self, end: Callable[[], None]) -> AbstractContextManager[None]:
        """While it is open, `end` is called from the end of the query's time on, also of a cancelled one."""
        ...


@dataclass(frozen=True, slots=True)
class Reading:
    """What one query's scans have in common: its fence, the log offsets by group that they contain, its time."""

    fence: ReadFence
    after: Mapping[str, int]
    timer: ReadTimer


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
        reading: Reading,
    ) -> Sequence[GroupScan]:
        """One scan per data group.

        The conditions, time as [start_ns, end_ns), may be used to return less; more is never wrong.
        """
        ...

    def wait_for(self, reading: Reading) -> bool:
        """Wait until the groups of this process have applied their logs up to `reading.after`; False when its time
        is over. Other groups are waited for by their scans.
        """
        ...


class ServingState(DataState, Protocol):
    """Whether a node serves; see `consumers.node.readiness`."""

    @property
    def fencings(self) -> int:
        """How often the node was fenced; see `consumers.replication.heartbeat`."""
        ...

    def refusals(self) -> Sequence[str]:
        """Why the node serves no group at all, whatever their states."""
        ...

    def refusal(self, topic: str) -> str:
        """Why one group does not serve while the node itself may, empty when it does."""
        ...


class LocalFence:
    """The ReadFence of one query at this node, for `groups` that are here."""

    as_of: Moment | None = None

    def __init__(self, groups: Mapping[str, Group], state: ServingState, topics: Collection[str] | None = None) -> None:
        """Of all groups, or those of `topics`. Raises NotReady."""
        # Before the check: a node that is fenced and back between the two has another number at the end.
        self._fencings = state.fencings
        self._state = state
        self._groups = groups
        try:
            self._began_with = {topic: groups[topic] for topic in (list(groups) if topics is None else topics)}
            self.confirmed = {group.name: state.durable_offset(topic) for topic, group in self._began_with.items()}
            reasons = [*state.refusals()] or [reason for topic in self._began_with if (reason := state.refusal(topic))]
        except GroupNotHere as error:
            raise NotReady.because([error.message]) from error
        if reasons:
            raise not_ready(state, reasons)

    @property
    def topics(self) -> Collection[str]:
        """The groups that it is of, by forward topic."""
        return self._began_with.keys()

    @property
    def groups(self) -> Sequence[Group]:
        """The groups that it is of, each with the data that it has now."""
        return [self._groups.get(topic, group) for topic, group in self._began_with.items()]

    def check(self) -> None:
        """See ReadFence. Rows of a group that leaves this node meanwhile are as right as when they were read."""
        stays = {topic: group for topic, group in self._began_with.items() if not group.health.leaves_sound}
        try:
            self._check(stays)
        except GroupNotHere as error:
            raise AnswerStale.because(error.message) from error

    def _check(self, stays: Mapping[str, Group]) -> None:
        reasons = [*self._state.refusals()] or [reason for topic in stays if (reason := self._state.refusal(topic))]
        # A process that was stopped and is back may have read its heartbeat again before it came here.
        if reasons or self._state.fencings != self._fencings:
            raise AnswerStale.because("; ".join(reasons) or "it was stopped, or cut off from Kafka, for a moment")
        for topic, group in stays.items():
            if self._groups[topic] is not group:
                raise AnswerStale.because(f"group {group.name} recovered, its files were replaced")


class LocalSource:
    """The tables of this node: the stores of its groups as one TableSource. It has the rows of those groups only."""

    def __init__(self, groups: Mapping[str, Group], catalogue: Catalogue, state: ServingState) -> None:
        """`groups` by forward topic; a group that recovers is replaced there."""
        self.groups = groups
        self.state = state
        self._catalogue = catalogue

    def fence(self, stale_s: float = 0.0) -> ReadFence:
        """See TableSource."""
        try:
            return LocalFence(self.groups, self.state)
        except NotReady:
            if not stale_s:
                raise
        return self.stale_fence(stale_s)

    def stale_fence(self, stale_s: float) -> ReadFence:
        """The fence of an answer that is at most `stale_s` old. Raises NotReady."""
        reasons = [refusal_of(self.state, topic) for topic in list(self.groups)]
        return StaleFence(
            self.groups, self.state, stale_s, [*self.state.refusals()] or [reason for reason in reasons if reason]
        )

    def tables(self) -> Sequence[tuple[str, str]]:
        """See TableSource: every table of the schema log, also one without rows, unless it was dropped."""
        return [key for key in sorted(self._catalogue.tables) if not self._is_gone(*key)]

    def known_tables(self) -> Sequence[tuple[str, str]]:
        """Every table of the schema log, dropped ones among them."""
        return sorted(self._catalogue.tables)

    def _is_gone(self, database: str, table: str) -> bool:
        """Whether a table was dropped and nobody has written to it since.

        By its rows and not by the table log alone: a writer that was connected all the time adds no record there.
        """
        if not self._catalogue.is_dropped(database, table):
            return False
        return all(group.store.is_empty(database, table) for group in list(self.groups.values()))

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
        reading: Reading,
    ) -> Sequence[GroupScan]:
        """See TableSource."""
        scans: list[GroupScan] = []
        with ExitStack() as opened:
            for group in self._groups_of(reading.fence):
                # Rows are routed by series, so a group that got no series of a table does not know it.
                try:
                    scan = group.store.scan(
                        database, table, columns=columns, start_ns=start_ns, end_ns=end_ns, tags=tags
                    )
                except TableUnknown:
                    continue
                except StoreRetired as error:
                    raise SlotNotHeld.left(group.name) from error
                scans.append(opened.enter_context(scan))
            # From here the caller closes them; an error before this line closes those that are open.
            opened.pop_all()
        return scans

    def wait_for(self, reading: Reading) -> bool:
        """See TableSource."""
        return self.wait(reading.fence, reading.after, reading.timer.left_s)

    def wait(self, fence: ReadFence, after: Mapping[str, int], timeout_s: float) -> bool:
        """Whether the groups of a fence reach their offsets in time. Raises SlotNotHeld for one that leaves."""
        deadline = Deadline(timeout_s)
        for group in self._groups_of(fence):
            if group.name in after and not group.wait_for_offset(after[group.name], deadline.left_s()):
                if group.health.holds(State.LEAVING):
                    raise SlotNotHeld.left(group.name)
                return False
        return True

    def _groups_of(self, fence: ReadFence) -> Sequence[Group]:
        """The groups that a fence is of: never others, whose data nobody would check at the end."""
        return fence.groups if isinstance(fence, LocalFence) else list(self.groups.values())


def refusal_of(state: ServingState, topic: str) -> str:
    """Why a group does not serve while the node itself may, also one that went a moment ago."""
    try:
        return state.refusal(topic)
    except GroupNotHere as error:
        return error.message
