"""What the queries of a node read."""

from __future__ import annotations

from headrace.connectors.log.port import Log
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.membership_follower import MembershipFollower
from headrace.consumers.query.cluster_source import ClusterSource
from headrace.consumers.query.ended_groups import EndedLogs, LogTopics
from headrace.consumers.query.local_source import LocalSource
from headrace.consumers.query.log_names import LogNames
from headrace.consumers.query.remote_rows import RemoteRows


def cluster_source(
    local: LocalSource, remote: RemoteRows, log: Log, topics: Topics, follower: MembershipFollower
) -> ClusterSource:
    """Every row of the cluster. Logs are named by their topics, also those of groups that have ended."""
    group_topics = LogTopics(log, topics)
    names = LogNames(topics, EndedLogs(lambda: follower.state, group_topics.is_deleted))
    source = ClusterSource(local, remote, group_topics, follower.look_soon, names)
    source.note_ended(follower.state.ended)
    follower.subscribe(lambda state: source.note_ended(state.ended))
    return source
