"""The node as its HTTP surface sees it: one protocol, and the values that it returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypedDict

from headrace.consumers.membership.metadata_group import MetadataGroup
from headrace.consumers.migration.pull_figures import PullFigures
from headrace.consumers.query.engine import QueryEngine
from headrace.consumers.query.group_scanner import GroupScanner
from headrace.consumers.query.remote_rows import RemoteStatistics
from headrace.consumers.recovery.file_copy import Snapshot
from headrace.consumers.serve.cut_service import CutService
from headrace.consumers.serve.snapshots import SnapshotRegistry
from headrace.consumers.serve.sync_service import SyncService
from headrace.consumers.serve.write_api import WriteApi
from headrace.consumers.sync.edge_store import CentreFigures, EdgeStore

UNKNOWN = -1
"""How an unknown number is shown, in `lag_seconds` above all. Never 0: that would read as no lag."""


class GroupStatus(TypedDict):
    """One data group at this node. Sizes are those of this node.

    `reason` says why the group does not serve here, and `recovery` holds the fields of `Progress` while it
    recovers. Offsets have gaps, so `lag_records` is an upper bound. It is UNKNOWN while the log does not answer, unless
    the group was behind already. `ignored` counts records without effect by cause.
    """

    group: str
    topic: str
    role: str
    reason: str
    recovery: dict[str, Any] | None
    held_back: int
    epoch: int
    leader: str
    version: int
    offset: int
    chain: str
    log_end: int
    durable_offset: int
    lag_records: int
    lag_seconds: float
    sealed_version: int
    frontier: int
    live_rows: int
    live_bytes: int
    segments: int
    segment_rows: int
    segment_bytes: int
    block_bytes: int
    last_row_bytes: int
    ignored: dict[str, int]
    members: list[str]
    slots: int


class MemberStatus(TypedDict):
    """The newest status of a member of a group of this node; numbers are UNKNOWN before the first one.

    `role` is "offline" for one that is silent, and "unknown" where this node itself receives no statuses.
    """

    node: str
    group: str
    online: bool
    role: str
    version: int
    durable_offset: int
    sealed_version: int
    http: str
    silent_ms: int
    reason: str


class RemoteGroup(TypedDict):
    """A group that this node does not hold: queries read it from `in_sync`, those of its members that may answer.

    `http` are their addresses.
    """

    group: str
    members: list[str]
    in_sync: list[str]
    http: list[str]
    slots: int


class NodeStatus(TypedDict):
    """One node. `joining`: it is not in the slot table, and holds no group.

    `reasons` names why it is not ready, `warnings` what an operator must do.

    `data_age_s`: seconds since it knew that it was at the end of every log, UNKNOWN before the first time.

    `flight` is the URL for Arrow Flight, empty where the node does not serve it. `started_at` is ISO-8601 in UTC.
    """

    cluster: str
    node: str
    incarnation: str
    software: str
    started_at: str
    http: str
    flight: str
    ready: bool
    joining: bool
    reasons: list[str]
    data_age_s: float
    warnings: list[str]
    replication: int
    nodes: list[str]
    slot_table_version: int
    slots: int
    journal_fault: str
    log_fault: str
    groups: list[GroupStatus]
    members: list[MemberStatus]
    remote_groups: list[RemoteGroup]


@dataclass(frozen=True, slots=True)
class NodeFigures:
    """Figures that are in the metrics and not in the status.

    `apply_queue_bytes` is by group; `journal` has the figures of the write-ahead log and `limits` every
    limit, by name. `remote` counts what queries of this node have read from others. `disk_*` is the disk of the data
    directory, UNKNOWN where it cannot be asked. `metadata_leads`: this node leads the metadata group.
    `migration` is what it pulls of slots that moved to its groups. `cluster` is what `headrace cluster show` shows, as
    this node knows it. `hand_over_due` has, by group, the records that other groups must still accept from it.
    `flight_calls` are the calls of Arrow Flight that are open.
    """

    consumed_bytes: int
    apply_queue_bytes: Mapping[str, int]
    files_checked: int
    files_rotted: int
    journal: Mapping[str, float]
    limits: Mapping[str, float]
    disk_free_bytes: int = UNKNOWN
    disk_size_bytes: int = UNKNOWN
    remote: RemoteStatistics = field(default_factory=RemoteStatistics)
    metadata_leads: bool = False
    metadata_epoch: int = 0
    migration: PullFigures = field(default_factory=PullFigures)
    cluster: Mapping[str, Any] = field(default_factory=dict)
    hand_over_due: Mapping[str, int] = field(default_factory=dict)
    flight_calls: int = 0
    centres: Sequence[CentreFigures] = ()


class OperatorRequests(Protocol):
    """What commands ask of a node to judge its cluster."""

    def members(self) -> Mapping[str, Any]:
        """Every group with its members and its log, and the statuses of the nodes that are online."""
        ...

    def evidence(
        self, group_name: str, version: int, sealed_version: int, *, read_files: bool = False
    ) -> Mapping[str, Any]:
        """The hash chain after a record, and the digests of segments up to a version.

        With `read_files` also what reading them, and the log, has shown.
        """
        ...


class MigrationApi(Protocol):
    """A node's part in moving slots, and other files of other stores."""

    @property
    def cuts(self) -> CutService:
        """The files that its groups give to others."""
        ...

    @property
    def synced(self) -> SyncService:
        """The files of senders that receivers bring."""
        ...


class NodeApi(Protocol):
    """Everything that the HTTP surface needs of a node. Any thread may call every method.

    Only the methods of operators' commands (`seal`, `accept_gap`, and the requests of `metadata`) wait for other processes.
    """

    @property
    def engine(self) -> QueryEngine:
        """Runs SQL."""
        ...

    @property
    def writes(self) -> WriteApi:
        """Writes rows of HTTP requests."""
        ...

    @property
    def scanner(self) -> GroupScanner:
        """Reads groups of this node for queries of others."""
        ...

    @property
    def snapshots(self) -> SnapshotRegistry:
        """Snapshots that other members copy."""
        ...

    @property
    def requests(self) -> OperatorRequests:
        """Requests of operators' commands."""
        ...

    @property
    def edge(self) -> EdgeStore:
        """Its store as senders to centres see it."""
        ...

    @property
    def migration(self) -> MigrationApi:
        """Its part in moving slots."""
        ...

    @property
    def metadata(self) -> MetadataGroup:
        """Its part in the metadata group: who leads, and operators' requests."""
        ...

    def startup_done(self) -> bool:
        """True from the moment the node has its data open and consumes its logs, ready or not."""
        ...

    def live(self) -> bool:
        """False when only a restart can help."""
        ...

    def ready(self) -> tuple[bool, Sequence[str]]:
        """Whether the node may answer queries now, and the reasons why not."""
        ...

    def status(self) -> NodeStatus:
        """The status document."""
        ...

    def figures(self) -> NodeFigures:
        """What the metrics show beyond the status."""
        ...

    def seal(self, group_name: str) -> Mapping[str, Any]:
        """Seal a group that this node leads, and wait until its log confirms it; `{"group", "version"}`.

        Raises NotLeader, SealUnconfirmed.
        """
        ...

    def files(self, database: str, table: str) -> Mapping[str, Any]:
        """The segments of a table, `{"slice_ns", "files": [{"group", "rows", "bytes", "min_time_ns",
        "max_time_ns"}]}`.
        """
        ...

    def accept_gap(self, group_name: str, resume_offset: int | None) -> Mapping[str, Any]:
        """Let a group continue behind records that its log has lost for good. Raises GapRefused."""
        ...

    def make_snapshot(self, group_name: str) -> Snapshot:
        """A snapshot of a group that is in sync here. Raises SnapshotRefused."""
        ...
