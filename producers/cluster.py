"""The cluster as producers see it: protocols that `consumers` implements and producers need not import."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headrace.connectors.log.port import Appender, Log
from headrace.connectors.log.topics import Topics
from headrace.schemas.group_changes import GroupKey
from headrace.schemas.receipts import WrittenRecords
from headrace.schemas.records import Status
from headrace.schemas.tables import (
    DEFAULT_BUCKETS,
    DEFAULT_SLICE_NS,
    Catalogue,
    DatabaseSchema,
    FieldType,
    TableSchema,
    TimeResolution,
)


class SlotRouting(Protocol):
    """Assigns slots to data groups; implemented by `consumers.membership.slot_table.SlotTable`."""

    @property
    def headers(self) -> tuple[str, ...]:
        """The data groups, named after their header nodes, in ring order."""
        ...

    # Indices rather than names: the router looks up all buckets of a batch as one integer array.
    @property
    def slot_headers(self) -> Sequence[int]:
        """For each slot the index of its group in `headers`."""
        ...

    @property
    def slots(self) -> int:
        """The number of slots."""
        ...

    @property
    def replication(self) -> int:
        """The number of members of a group."""
        ...

    @property
    def version(self) -> int:
        """Version of the slot table."""
        ...

    def group(self, header: str) -> tuple[str, ...]:
        """The members of a group, its header first."""
        ...

    def birth(self, header: str) -> int:
        """The version of the slot table that had a group first."""
        ...

    def donors(self, header: str) -> frozenset[str]:
        """The groups that give slots to a group by the change that this table came with."""
        ...


def groups_of(table: SlotRouting) -> tuple[GroupKey, ...]:
    """The groups of a table, each with its birth, in ring order."""
    return tuple(GroupKey(header, table.birth(header)) for header in table.headers)


@dataclass(frozen=True)
class Route:
    """What the membership log has decided for writers at one moment.

    `ending` are the groups that the newest change ends, or has ended. `electorates` has the sets of members of the
    groups whose members change: a copy of each set counts towards a quorum of its own. `pending`: a newer table counts
    already, and a group of it has no log yet. `moving`: slots are on their way to where the table has them.
    """

    table: SlotRouting
    ending: tuple[GroupKey, ...] = ()
    electorates: Mapping[GroupKey, tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    pending: bool = False
    moving: bool = False

    def holds(self, group: GroupKey) -> bool:
        """Whether the table has this very group, and not a later one of its header."""
        return group.group in self.table.headers and self.table.birth(group.group) == group.birth

    def voters(self, group: GroupKey) -> tuple[tuple[str, ...], ...]:
        """The sets of members that must each have a quorum; none for a group that is no longer known."""
        changing = self.electorates.get(group)
        if changing is not None:
            return changing
        return (self.table.group(group.group),) if self.holds(group) else ()


class Routing(Protocol):
    """Follows the membership log for writers; implemented by `consumers.membership.routing.MembershipRouting`."""

    @property
    def newest(self) -> Route:
        """The newest route that is known; never waits."""
        ...

    @property
    def route(self) -> Route:
        """The newest route for rows that are written now. Raises what keeps this build from following the log."""
        ...

    def look(self, timeout_s: float) -> Route:
        """The route after everything that was in the log when this was called.

        Raises as `route`, and LogUnavailable.
        """
        ...

    def close(self) -> None:
        """Stop following."""
        ...


class FixedRouting:
    """The routing of a cluster whose members do not change."""

    def __init__(self, table: SlotRouting) -> None:
        self.newest = self.route = Route(table)

    def look(self, timeout_s: float) -> Route:
        """See Routing."""
        del timeout_s
        return self.route

    def close(self) -> None:
        """See Routing."""


class Schemas(Protocol):
    """The schemas of a cluster's tables, as far as they are known here."""

    @property
    def catalogue(self) -> Catalogue:
        """Every schema that is known."""
        ...

    def refresh(self) -> None:
        """Learn every schema up to now. Raises LogUnavailable, NodeUnreachable."""
        ...


class SchemaChanges(Schemas, Protocol):
    """The schemas of a cluster's tables and their changes; implemented by
    `consumers.membership.schema_log.SchemaLog`.
    """

    def ensure_database(
        self, database: str, slice_ns: int = DEFAULT_SLICE_NS, buckets: int = DEFAULT_BUCKETS
    ) -> DatabaseSchema:
        """The schema of a database, which is created so if it is missing. Raises SchemaError."""
        ...

    def ensure(
        self,
        database: str,
        table: str,
        tags: Iterable[str],
        fields: Mapping[str, FieldType],
        retention_ns: int | None = None,
        *,
        resolution: TimeResolution | None = None,
    ) -> TableSchema:
        """A schema that holds these columns, and has this retention if one is given, read back from the log as
        accepted.

        `resolution` is that of a new table. Raises SchemaError, TypeClash, SchemaContended.
        """
        ...

    def drop(self, database: str, table: str) -> bool:
        """Record that a table was dropped; False when a writer changed it meanwhile."""
        ...

    def close(self) -> None:
        """Release the reader."""
        ...


class MemberStatuses(Protocol):
    """The newest status of every member of every group; implemented by
    `consumers.replication.failure_detector.FailureDetector`.
    """

    def status(self, group: str, node: str) -> Status | None:
        """The newest status of a member, alive or not."""
        ...

    def alive(self, group: str, node: str) -> bool:
        """Whether a member is online."""
        ...

    def silent_ms(self, group: str, node: str) -> int:
        """The age of a member's newest status, -1 when there is none."""
        ...

    def sends_unread(self, group: str, node: str) -> bool:
        """Whether a member sends statuses that only a newer build can read."""
        ...

    def unread_fault(self, reader: str) -> str:
        """Which nodes send such statuses, and what `reader` is to do; empty when none does."""
        ...

    def online(self) -> list[Status]:
        """The newest status of every live member of every group."""
        ...

    def durable_copies(self, group: str, members: Iterable[str], topic_id: str, written: WrittenRecords) -> int:
        """The number of live members that hold what was written durably, in the topic with that id."""
        ...

    def holds(self, group: str, node: str, topic_id: str, written: WrittenRecords) -> bool:
        """Whether a member is one of them."""
        ...


class StatusSource(Protocol):
    """Follows the status topic; implemented by `consumers.replication.heartbeat.StatusWatch`."""

    @property
    def statuses(self) -> MemberStatuses:
        """The statuses read so far."""
        ...

    @property
    def error(self) -> str:
        """Why the status topic cannot be read, empty while it can."""
        ...

    def start(self) -> None:
        """Start to follow; a second call changes nothing."""
        ...

    def wait_for(self, holds: Callable[[MemberStatuses], bool], timeout_s: float) -> bool:
        """Whether `holds` becomes true within `timeout_s`; it is called at every change, so it must be quick."""
        ...

    def close(self) -> None:
        """Stop following."""
        ...


# One appender for all: librdkafka batches records of all writers, and each producer costs threads and a queue
# of its own.
@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster connections that the producers of one process share."""

    log: Log
    topics: Topics
    routing: Routing
    tables: SchemaChanges
    watch: StatusSource
    appender: Appender

    @property
    def slot_table(self) -> SlotRouting:
        """What the membership log has decided now, as far as it was read. Raises as `Routing.route`."""
        return self.routing.route.table

    def topic_of(self, group: GroupKey) -> str:
        """The forward log of a group: another one for each birth of its header."""
        return self.topics.forward(group.group, group.birth)
