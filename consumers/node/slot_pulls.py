"""A node's part in moving slots: what it pulls, what it sends to other nodes, and what it releases."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Protocol

from headrace.connectors.log.append import append_one
from headrace.connectors.log.port import Log
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.changes import MembershipState
from headrace.consumers.membership.metadata_group import APPEND_TIMEOUT_S, MetadataGroup
from headrace.consumers.membership.schema_log import SchemaLog
from headrace.consumers.migration.copies_ahead import CopiesAhead
from headrace.consumers.migration.cut_listing import led_by
from headrace.consumers.migration.cut_source import CutSource, OwnCut, PresentFiles
from headrace.consumers.migration.peer_cut import PeerCut
from headrace.consumers.migration.puller import LISTINGS_MAX, SlotPuller
from headrace.consumers.migration.release import SlotRelease
from headrace.consumers.node.settings import ServerSettings
from headrace.consumers.recovery.file_copy import SourceFailed
from headrace.consumers.recovery.supervisor import RecoverySupervisor
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.group_registry import GroupRegistry
from headrace.consumers.replication.heartbeat import Heartbeat
from headrace.consumers.replication.leader_tasks import LeaderTasks
from headrace.consumers.replication.settings import ReplicationLimits
from headrace.consumers.serve.cut_service import CutService
from headrace.consumers.serve.sync_loads import SyncLoads
from headrace.consumers.serve.sync_service import SyncService
from headrace.consumers.serve.sync_uploads import Uploads
from headrace.schemas.group_changes import GroupKey
from headrace.schemas.membership_records import SlotDone
from headrace.schemas.messages import Load
from headrace.schemas.records import Role, encode_membership, format_of_membership


class NodePullEnvironment:
    """See PullEnvironment."""

    def __init__(
        self,
        log: Log,
        topics: Topics,
        groups: Mapping[str, Group],
        metadata: MetadataGroup,
        leader_tasks: LeaderTasks,
        heartbeat: Heartbeat,
        supervisor: RecoverySupervisor,
    ) -> None:
        self._log = log
        self._topics = topics
        self._metadata = metadata
        self._leader_tasks = leader_tasks
        self._heartbeat = heartbeat
        self._supervisor = supervisor
        self._files = PresentFiles()
        self._reports = count(1)
        self.node = heartbeat.node
        self.groups = groups
        self.stopping = threading.Event()
        """Set when the node stops: nobody waits for a node that is silent any more."""

    @property
    def state(self) -> MembershipState:
        """See PullEnvironment."""
        return self._metadata.state

    def topic(self, key: GroupKey) -> str:
        """See PullEnvironment."""
        return self._topics.forward(key.group, key.birth)

    def source(self, node: str, key: GroupKey) -> CutSource | None:
        """See PullEnvironment."""
        topic = self.topic(key)
        if node == self.node:
            group = self.groups.get(topic)
            return None if group is None else OwnCut(node, group, topic, self._files)
        http = self._address(node)
        return PeerCut(node, http, key, topic, self._check_stop) if http else None

    def _check_stop(self, _left_s: float) -> None:
        if self.stopping.is_set():
            raise SourceFailed("this node stops", retriable=True)

    def _address(self, node: str) -> str:
        """The address of a live node, empty for one that is not."""
        detector = self._heartbeat.detector
        present = (each.http for each in detector.presences() if each.node == node)
        statuses = (each.http for each in detector.online() if each.node == node)
        return next((http for http in (*present, *statuses) if http), "")

    def leads(self, topic: str) -> bool:
        """See PullEnvironment."""
        return self._leader_tasks.decision(topic).role is Role.LEADER

    def append_loads(self, topic: str, loads: Sequence[Load]) -> None:
        """See PullEnvironment."""
        self._leader_tasks.append_for(topic, lambda leadership: led_by(loads, leadership))

    def replace_data(self, topic: str, why: str, trusted: frozenset[str]) -> None:
        """See PullEnvironment."""
        self._supervisor.replace_data(topic, why, trusted)

    def report(self, done: SlotDone) -> None:
        """See PullEnvironment."""
        # Unique, as that of every record of the membership log.
        writer = f"{self.node}/{self._heartbeat.incarnation}/slots/{next(self._reports)}"
        append_one(
            self._log,
            self._topics.membership,
            encode_membership(writer, done),
            timeout_s=APPEND_TIMEOUT_S,
            needed_format=format_of_membership(done),
        )


class PullingParts(Protocol):
    """The parts of a node that moving slots needs."""

    log: Log
    topics: Topics
    groups: GroupRegistry
    metadata: MetadataGroup
    leader_tasks: LeaderTasks
    heartbeat: Heartbeat
    supervisor: RecoverySupervisor
    copies_ahead: CopiesAhead
    schema_log: SchemaLog
    settings: ServerSettings

    @property
    def limits(self) -> ReplicationLimits:
        """Its limits."""
        ...


class SlotMigration:
    """The threads of a node that move slots, the files that it gives to others, and those of senders that it takes."""

    def __init__(self, node: PullingParts) -> None:
        self._environment = environment = NodePullEnvironment(
            node.log, node.topics, node.groups, node.metadata, node.leader_tasks, node.heartbeat, node.supervisor
        )
        fetches = node.limits.migration_fetches_max + LISTINGS_MAX
        self.puller = SlotPuller(environment, node.limits, ThreadPoolExecutor(fetches, thread_name_prefix="slot-pull"))
        self.release = SlotRelease(node.groups, lambda: node.metadata.state)
        self.cuts = CutService(node.heartbeat.node, node.groups, node.copies_ahead)
        uploads = Uploads(node.heartbeat.node, node.groups, node.settings.sync)
        detector = node.heartbeat.detector
        loads = SyncLoads(
            node.groups, node.leader_tasks, uploads, node.schema_log, detector, lambda: node.metadata.state
        )
        self.synced = SyncService(uploads, loads)
        self.puller.keeps_uploads = uploads.keeps

    def start(self) -> None:
        """Begin."""
        self.puller.start()
        self.release.start()

    def stop(self) -> None:
        """Stop; what is not complete continues at the next start."""
        self._environment.stopping.set()
        self.puller.stop()
        self.release.stop()
