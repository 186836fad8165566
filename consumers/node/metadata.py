"""Makes a node a member of the metadata group: what it reports of itself."""

from __future__ import annotations

from headrace.connectors.log.port import Log
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.ended_topics import EndedTopics
from headrace.consumers.membership.membership_follower import MembershipFollower
from headrace.consumers.membership.metadata_group import MetadataGroup, StartSettings
from headrace.consumers.node.data_directory import Identity
from headrace.consumers.node.group_statuses import GroupStatuses
from headrace.consumers.node.settings import ServerSettings
from headrace.consumers.replication.heartbeat import Heartbeat


def metadata_group(
    log: Log,
    topics: Topics,
    settings: ServerSettings,
    identity: Identity,
    follower: MembershipFollower,
    heartbeat: Heartbeat,
    statuses: GroupStatuses,
) -> MetadataGroup:
    """The node's part in the metadata group, not started; `follower` has read the log to its end."""
    table = follower.state.table
    assert table is not None, "a node without a cluster"
    # A node that was started without a number of copies takes that of the cluster.
    replication = settings.node.replication or table.replication
    started = StartSettings(identity.store, replication, settings.cluster.slots)
    ended = EndedTopics(log, topics)
    group = MetadataGroup(log, topics.membership, follower, heartbeat, started, ended=ended)
    heartbeat.presence = lambda: group.presence(statuses.http_address)
    return group
