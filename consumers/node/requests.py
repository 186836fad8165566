"""Requests of operators and other members for one group of a node.

Each is refused unless the group is in a state to serve it.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any, Protocol

from headrace.connectors.log.port import Log
from headrace.connectors.log.topics import Topics
from headrace.consumers.integrity.own_evidence import own_evidence
from headrace.consumers.integrity.scrubber import Scrubber
from headrace.consumers.membership.metadata_group import MetadataGroup
from headrace.consumers.membership.schema_log import SchemaLog
from headrace.consumers.membership.slot_table import SlotTable
from headrace.consumers.node.data_directory import Identity
from headrace.consumers.node.readiness import Readiness
from headrace.consumers.query.query_errors import SlotNotHeld
from headrace.consumers.recovery.file_copy import Snapshot
from headrace.consumers.recovery.log_gap import GapRefused, gap_document
from headrace.consumers.recovery.supervisor import RecoverySupervisor
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.group_health import State
from headrace.consumers.replication.group_registry import GroupRegistry
from headrace.consumers.replication.leader_tasks import LeaderTasks, NotLeader
from headrace.consumers.serve.snapshots import SnapshotRefused, SnapshotRegistry
from headrace.schemas.errors import StateUnknown
from headrace.schemas.records import encode_status
from headrace.schemas.tables import DEFAULT_SLICE_NS

SEAL_TIMEOUT_S = 30.0


class SealUnconfirmed(StateUnknown):
    """A seal that was appended and not read back in time."""


class RequestParts(Protocol):
    """The parts of a node that its requests need."""

    log: Log
    topics: Topics
    identity: Identity
    groups: GroupRegistry
    readiness: Readiness
    leader_tasks: LeaderTasks
    supervisor: RecoverySupervisor
    snapshots: SnapshotRegistry
    schema_log: SchemaLog
    metadata: MetadataGroup
    scrubber: Scrubber


class GroupRequests:
    """Safe to share between threads: each request looks at the group that is there when it begins."""

    def __init__(self, node: RequestParts) -> None:
        self._groups = node.groups
        self._identity = node.identity
        self._readiness = node.readiness
        self._leader_tasks = node.leader_tasks
        self._supervisor = node.supervisor
        self._snapshots = node.snapshots
        self._schema_log = node.schema_log
        self._log = node.log
        self._topics = node.topics
        self._metadata = node.metadata
        self._scrubber = node.scrubber

    def topic_of(self, group_name: str) -> str | None:
        """The forward topic of one of this node's groups."""
        return next((topic for topic, group in self._groups.items() if group.name == group_name), None)

    def _here(self, topic: str, group_name: str) -> Group:
        group = self._groups.get(topic)
        if group is None:
            raise SlotNotHeld.left(group_name)
        return group

    def seal(self, group_name: str) -> dict[str, Any]:
        """Seal a group that this node leads, and wait until the seal is read back.

        Raises NotLeader, SealUnconfirmed, SlotNotHeld for a group that leaves meanwhile.
        """
        topic = self.topic_of(group_name)
        if topic is None:
            raise NotLeader(f"group {group_name!r} is not at node {self._identity.node}")
        group = self._here(topic, group_name)
        before = group.applied
        self._leader_tasks.seal(topic)
        if not group.wait_for(
            lambda: group.applied.frontier > before.frontier or group.applied.epoch > before.epoch, SEAL_TIMEOUT_S
        ):
            if group.health.holds(State.LEAVING):
                raise SlotNotHeld.left(group_name)
            raise SealUnconfirmed(
                f"the seal of group {group_name} was not read back in {SEAL_TIMEOUT_S:g} s", action="seal again"
            )
        # A claim of another node before the seal makes the seal void on every replica. It is read first, so
        # it is an answer at once, where waiting for the frontier would end in a timeout.
        if group.applied.epoch > before.epoch:
            raise NotLeader(
                f"another claim came into the log of group {group_name} before this seal, which does not count",
                action="ask the new leader",
                retriable=True,
            )
        return {"group": group_name, "version": group.applied.frontier}

    def members(self) -> dict[str, Any]:
        """This node, every group with its members and its log, and the newest status of each node that is online.

        Statuses are in base64, as they are in the status topic. Raises TopicMissing, LogUnavailable.
        """
        table = self._metadata.state.table
        headers = () if table is None else table.headers
        return {
            "node": self._identity.node,
            "groups": [_group_document(self._log, self._topics, table, header) for header in headers if table],
            "online": [b64encode(encode_status(each)).decode() for each in self._metadata.statuses.online()],
        }

    def evidence(
        self, group_name: str, version: int, sealed_version: int, *, read_files: bool = False
    ) -> dict[str, Any]:
        """The chain after a record, and the digests of the segments that end at or below a version.

        `stored_version` is the newest version whose jobs are done. `read_files`: every one of these segments is read,
        and the newest records of the log; `wrong` says which are not what they were, and where there are other members
        the scrubber looks at once, so that the group recovers. Raises SlotNotHeld.
        """
        topic = self.topic_of(group_name)
        if topic is None:
            raise SlotNotHeld.of(group_name, self._identity.node)
        group = self._here(topic, group_name)
        chain, stored_version = group.chain_at(version), group.store_jobs.version
        digests = {
            entry.name: entry.content_digest for entry in group.store.segments() if entry.last_version <= sealed_version
        }
        read = own_evidence(self._log, topic, group, digests) if read_files else {}
        table = self._metadata.state.table
        if read.get("wrong") and table is not None and len(table.group(group_name)) > 1:
            self._scrubber.scrub_now()
        return {
            "chain": chain.hex() if chain is not None else f"not remembered (at version {group.version})",
            "digests": digests,
            # A job that ended between the two looks changed the set: these digests belong to neither version.
            "stored_version": stored_version if stored_version == group.store_jobs.version else -1,
            **read,
        }

    def files(self, database: str, table: str) -> dict[str, Any]:
        """The segments of a table at this node, of all its groups."""
        # Not from the stores: the groups here need not have a row of every table.
        known = self._schema_log.database(database)
        return {
            "slice_ns": DEFAULT_SLICE_NS if known is None else known.slice_ns,
            "files": [
                {
                    "group": group.name,
                    "rows": entry.rows,
                    "bytes": entry.size_bytes,
                    "min_time_ns": entry.min_time_ns,
                    "max_time_ns": entry.max_time_ns,
                }
                for group in self._groups.values()
                for entry in group.store.segments()
                if (entry.database, entry.table) == (database, table)
            ],
        }

    def accept_gap(self, group_name: str, resume_offset: int | None) -> dict[str, Any]:
        """Accept that the log of a group lost records for good. Raises GapRefused."""
        topic = self.topic_of(group_name)
        if topic is None:
            raise GapRefused(f"group {group_name!r} is not at node {self._identity.node}")
        return {"group": group_name, **gap_document(self._supervisor.accept_gap(topic, resume_offset))}

    def make_snapshot(self, group_name: str) -> Snapshot:
        """The files of a group that is in sync here, for another member. Raises SnapshotRefused."""
        topic = self.topic_of(group_name)
        if topic is None:
            raise SnapshotRefused(f"group {group_name!r} is not at node {self._identity.node}")
        if reason := self._readiness.reason(topic):
            raise SnapshotRefused(
                f"group {group_name} is not in sync at node {self._identity.node}: {reason}", retriable=True
            )
        group = self._here(topic, group_name)
        if group.sealed_for_others[0] < 1:
            raise SnapshotRefused(
                f"group {group_name} has not sealed what a copy needs to join its log", retriable=True
            )
        # The group may go at any moment, and what is known of its log with it.
        if (topic_id := self._identity.topics.get(topic)) is None:
            raise SlotNotHeld.left(group_name)
        return self._snapshots.make(group_name, topic_id, group.era, group.store)


def _group_document(log: Log, topics: Topics, table: SlotTable, header: str) -> dict[str, Any]:
    state = log.describe(topics.forward(header, table.birth(header)))
    members = list(table.group(header))
    return {"group": header, "members": members, "log": [state.topic_id, state.begin, state.end]}
