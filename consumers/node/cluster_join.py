"""Joins the cluster at the start of a node: creates it, or reads all that its membership log has decided.

A broker that has just started knows only some of its topics yet: that is waited for.
"""

from __future__ import annotations

import threading

import structlog

from headrace.connectors.deadline import Deadline, GracePeriod
from headrace.connectors.log.port import Log, TopicMissing
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.bootstrap import cluster_exists, join_cluster
from headrace.consumers.membership.changes import MembershipState
from headrace.consumers.membership.cluster_topics import ClusterTopics
from headrace.consumers.membership.ended_topics import EndedTopics
from headrace.consumers.membership.membership_follower import HISTORY_FILE, MembershipFollower, MembershipLogLost
from headrace.consumers.membership.placement import closable_ends, is_exiled, joining_reason, wanted_groups
from headrace.consumers.membership.schema_history import lost_error
from headrace.consumers.membership.slot_table import SlotTable
from headrace.consumers.node.data_directory import Identity
from headrace.consumers.node.exile import NodeExiled
from headrace.consumers.node.kafka_wait import RETRY_S
from headrace.consumers.node.settings import ServerSettings
from headrace.consumers.replication.failure_detector import OFFLINE_MS
from headrace.consumers.replication.founding import Founding
from headrace.consumers.replication.heartbeat import StatusReader
from headrace.schemas.errors import HeadraceError
from headrace.schemas.group_changes import GroupKey
from headrace.schemas.records import Create

STATUS_POLL_S = 0.1
ANSWER_S = 2.0
"""A broker that needs longer for its first answer has been away."""
RETURN_S = 10.0
"""How long nodes that run may need to send statuses to a broker that came back without their topic."""
_log = structlog.get_logger(__name__)


def join(
    log: Log,
    cluster_topics: ClusterTopics,
    settings: ServerSettings,
    stopping: threading.Event,
    knows_cluster: bool = False,
    log_was_away: bool = False,
) -> SlotTable:
    """The slot table of the cluster that the settings name; see `join_cluster`. Ends early when the node stops.

    It may be behind what `read_membership_log` finds. `knows_cluster`: the data directory was made by a node of the
    cluster. `log_was_away`: nodes that run may not have found the log again yet. Raises MembershipLogLost where the
    cluster existed and its log does not show it.
    """
    node, cluster = settings.node, settings.cluster
    topics, absence = Topics(cluster.name), GracePeriod()
    create = Create(node.members, node.replication_factor, cluster.slots)
    while True:
        try:
            why = _lost_cluster(log, topics, stopping, knows_cluster, log_was_away)
            if not why:
                return join_cluster(
                    log,
                    topics,
                    create,
                    cluster_topics=cluster_topics,
                    node=node.id,
                    any_replication=not node.replication,
                )
            if absence.missing(topics.membership) or stopping.is_set():
                raise MembershipLogLost.of(topics.membership, why)
        except TopicMissing as error:
            if absence.missing(topics.table) or stopping.is_set():
                raise lost_error(topics.table, "does not exist any more") from error
        stopping.wait(RETRY_S)


def _lost_cluster(log: Log, topics: Topics, stopping: threading.Event, knows_cluster: bool, log_was_away: bool) -> str:
    """Which cluster the membership log lacks; empty where it has one, or where none is known and one may be made."""
    # librdkafka waits for a broker that comes up, without an error.
    answer = Deadline(ANSWER_S)
    if cluster_exists(log, topics):
        return ""
    if knows_cluster:
        return "does not have the cluster of which this node has data"
    patience = Deadline(RETURN_S if log_was_away or answer.passed() else 0.0)
    # The nodes of a cluster that lost its topics make that of their statuses again.
    while not (cluster_exists(log, topics) or _exists(log, topics.status) or patience.passed() or stopping.is_set()):
        stopping.wait(RETRY_S)
    return _rivals(log, topics, stopping, patience)


def _exists(log: Log, topic: str) -> bool:
    try:
        log.describe(topic)
    except TopicMissing:
        return False
    return True


def _rivals(log: Log, topics: Topics, stopping: threading.Event, patience: Deadline) -> str:
    """The nodes that are alive of a cluster that the membership log does not have, empty when there is none.

    The schedule: the broker loses its disk while the nodes run, and one of them starts with an empty directory. It
    would create another cluster, count the others as its members, and answer without their rows.
    """
    try:
        reader, longest = StatusReader(log, topics.status), Deadline(patience.left_s() + OFFLINE_MS / 1_000)
    except TopicMissing:
        return ""
    try:
        while not longest.passed():
            if reader.caught_up and not reader.detector.presences() and patience.passed():
                return ""
            # Those of a node that has created the cluster meanwhile are no rival's.
            if cluster_exists(log, topics):
                return ""
            # One that is alive repeats its presence within an interval. Who stops before that creates nothing.
            if reader.senders or stopping.is_set():
                names = ", ".join(sorted(reader.senders)) or "?"
                return f"does not have the cluster of which nodes are online: {names}"
            reader.follow(STATUS_POLL_S)
    finally:
        reader.close()
    return ""


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
