"""A node's part in sending its store's rows to centres, and when its snapshots expire."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from headrace.connectors.log.port import Log
from headrace.connectors.log.topics import Topics
from headrace.connectors.periodic import PeriodicTask
from headrace.consumers.node.readiness import Readiness
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.group_registry import GroupRegistry
from headrace.consumers.replication.heartbeat import Heartbeat
from headrace.consumers.replication.leader_tasks import LeaderTasks
from headrace.consumers.serve.snapshots import SnapshotRegistry
from headrace.consumers.sync.centres import Centres
from headrace.consumers.sync.edge_store import EdgeStore
from headrace.consumers.sync.snapshots import SyncSnapshots
from headrace.schemas.records import Role

SNAPSHOT_EXPIRY_INTERVAL_S = 1.0


class SourceParts(Protocol):
    """The parts of a node that its senders need."""

    log: Log
    topics: Topics
    groups: GroupRegistry
    heartbeat: Heartbeat
    leader_tasks: LeaderTasks
    readiness: Readiness
    snapshots: SnapshotRegistry
    edge: EdgeStore

    @property
    def cluster(self) -> str:
        """Name of the cluster."""
        ...

    @property
    def name(self) -> str:
        """Name of the node."""
        ...

    def seal(self, group_name: str) -> dict[str, Any]:
        """Seal a group that this node leads, and wait until the seal is read back."""
        ...


class NodeSyncGroups:
    """See SyncGroups."""

    def __init__(self, node: SourceParts) -> None:
        self._node = node
        self._store = ""

    @property
    def groups(self) -> Mapping[str, Group]:
        """See SyncGroups."""
        return self._node.groups

    def reason(self, topic: str) -> str:
        """See SyncGroups."""
        return self._node.readiness.reason(topic)

    def leads(self, topic: str) -> bool:
        """See SyncGroups."""
        return self._node.leader_tasks.decision(topic).role is Role.LEADER

    def unsealed_s(self, topic: str) -> float:
        """See SyncGroups."""
        return self._node.leader_tasks.unsealed_s(topic)

    def seal(self, group_name: str) -> Mapping[str, Any]:
        """See SyncGroups."""
        return self._node.seal(group_name)

    def store_identity(self) -> str:
        """See SyncGroups. Raises TopicMissing, LogUnavailable."""
        # The store id of a data directory changes when its data is replaced; the cluster's log is the same then.
        self._store = self._store or self._node.log.describe(self._node.topics.membership).topic_id
        return self._store

    def members(self) -> Mapping[str, str]:
        """See SyncGroups."""
        return {each.node: each.http for each in self._node.heartbeat.detector.online() if each.http}


def edge_store(node: SourceParts, centres: Centres) -> EdgeStore:
    """The store of a node as its senders see it; upkeep of its groups waits for their centres."""
    node.leader_tasks.centres = centres
    return EdgeStore(node.cluster, node.name, NodeSyncGroups(node), centres, SyncSnapshots(centres.directory.parent))


def snapshot_expiry(node: SourceParts) -> PeriodicTask:
    """The thread that deletes snapshots which nobody reads, not started."""

    def expire() -> None:
        node.snapshots.expire()
        node.edge.snapshots.expire()

    return PeriodicTask("snapshot-expiry", SNAPSHOT_EXPIRY_INTERVAL_S, expire)
