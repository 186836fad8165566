"""Makes a node a member of the metadata group: what it reports of itself, and what keeps it from being ready."""

from __future__ import annotations

from headrace.connectors.log.port import Log
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.membership_follower import HISTORY_FILE, MembershipFollower
from headrace.consumers.membership.metadata_group import MetadataGroup, StartSettings
from headrace.consumers.membership.slot_table import SlotTable
from headrace.consumers.node.data_directory import Identity
from headrace.consumers.node.readiness import Readiness
from headrace.consumers.node.settings import ServerSettings
from headrace.consumers.replication.heartbeat import Heartbeat


def metadata_group(
    log: Log,
    topics: Topics,
    settings: ServerSettings,
    identity: Identity,
    slot_table: SlotTable,
    heartbeat: Heartbeat,
    readiness: Readiness,
) -> MetadataGroup:
    """The node's part in the metadata group, not started."""
    directory = settings.node.data_directory
    # A node that was started without a number of copies takes that of the cluster.
    replication = settings.node.replication or slot_table.replication
    started = StartSettings(identity.store, replication, settings.cluster.slots)
    follower = MembershipFollower(log, topics.membership, directory / HISTORY_FILE)
    group = MetadataGroup(log, topics.membership, follower, heartbeat, started)
    heartbeat.presence = lambda: group.presence(readiness.http_address)
    readiness.membership_failure = lambda: group.failure
    return group
