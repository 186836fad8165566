"""Joins the cluster at the start of a node: creates it, or reads all that its membership log has decided.

A broker that has just started knows only some of its topics yet: that is waited for.
"""

from __future__ import annotations

import threading

import structlog

from headrace.connectors.deadline import GracePeriod
from headrace.connectors.log.port import Log, TopicMissing
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.bootstrap import join_cluster
from headrace.consumers.membership.changes import MembershipState
from headrace.consumers.membership.cluster_topics import ClusterTopics
from headrace.consumers.membership.ended_topics import EndedTopics
from headrace.consumers.membership.membership_follower import HISTORY_FILE, MembershipFollower
from headrace.consumers.membership.placement import closable_ends, is_exiled, joining_reason, wanted_groups
from headrace.consumers.membership.ring import ClusterInvalid
from headrace.consumers.membership.schema_history import lost_error
from headrace.consumers.membership.slot_table import SlotTable
from headrace.consumers.node.data_directory import Identity
from headrace.consumers.node.exile import NodeExiled
from headrace.consumers.node.kafka_wait import RETRY_S
from headrace.consumers.node.settings import ServerSettings
from headrace.consumers.replication.founding import Founding
from headrace.schemas.errors import HeadraceError
from headrace.schemas.group_changes import GroupKey
from headrace.schemas.records import Create

_log = structlog.get_logger(__name__)


def join(
    log: Log, cluster_topics: ClusterTopics, settings: ServerSettings, stopping: threading.Event, *, has_data: bool
) -> SlotTable:
    """The slot table of the cluster that the settings name; see `join_cluster`. Ends early when the node stops.

    It may be behind what `read_membership_log` finds.
    """
    node, cluster = settings.node, settings.cluster
    topics, absence = Topics(cluster.name), GracePeriod()
    create = Create(node.members, node.replication_factor, cluster.slots)
    while True:
        try:
            return join_cluster(
                log,
                topics,
                create,
                cluster_topics=cluster_topics,
                node=node.id,
                any_replication=not node.replication,
            )
        except ClusterInvalid:
            # A node with data knows that there is a cluster.
            if not has_data or absence.missing(topics.membership) or stopping.is_set():
                raise
        except TopicMissing as error:
            if absence.missing(topics.table) or stopping.is_set():
                raise lost_error(topics.table, "does not exist any more") from error
        stopping.wait(RETRY_S)


def read_membership_log(log: Log, settings: ServerSettings, identity: Identity) -> MembershipFollower:
    """A follower that has read the membership log to its end.

    Raises NodeExiled, MembershipLogLost, FormatTooNew, TopicMissing, LogUnavailable.
    """
    node, directory = settings.node.id, settings.node.data_directory
    follower = MembershipFollower(log, Topics(settings.cluster.name).membership, directory / HISTORY_FILE)
    try:
        state = follower.read_all()
        if identity.born < 0:
            identity.born = state.records
        if is_exiled(state, node, identity.born):
            raise NodeExiled.of(settings.cluster.name, node, directory)
    except HeadraceError:
        follower.close()
        raise
    if reason := joining_reason(state, node):
        _log.warning("joining", reason=reason)
    return follower


def groups_at_start(log: Log, topics: Topics, state: MembershipState, node: str) -> dict[GroupKey, Founding]:
    """The groups that a node opens at its start. Raises LogUnavailable."""
    # The topic of a group that has ended may be deleted. Should the broker just not know it yet, the group is opened
    # as soon as it does.
    return wanted_groups(state, node, EndedTopics(log, topics).missing(closable_ends(state)))
