"""Creates or joins a cluster through its membership log.

The first valid record of `{c}.membership` creates the cluster. Every reader checks every record in the same
way (`changes.py`), and one that breaks the rules is ignored by all.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable

import structlog

from headrace.connectors.log.append import append_one
from headrace.connectors.log.port import Log, Record, TopicMissing, read_to_end
from headrace.connectors.log.topic_settings import FORWARD, MEMBERSHIP, STATUS, TABLE
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.changes import MembershipState
from headrace.consumers.membership.cluster_topics import ClusterTopics
from headrace.consumers.membership.membership_follower import MembershipLogLost
from headrace.consumers.membership.requests import SettingsDiffer
from headrace.consumers.membership.ring import ClusterInvalid
from headrace.consumers.membership.slot_table import SlotTable
from headrace.schemas.errors import HeadraceError
from headrace.schemas.framing import check_format
from headrace.schemas.records import Create, encode_membership

READ_TIMEOUT_S = 30.0
_log = structlog.get_logger(__name__)


class NoCluster(HeadraceError):
    """No cluster of that name exists on this Kafka."""


def read_membership(log: Log, topics: Topics, timeout_s: float = READ_TIMEOUT_S) -> tuple[SlotTable, MembershipState]:
    """The newest slot table, and all that the membership log has decided.

    Raises NoCluster, MembershipLogLost, FormatTooNew.
    """
    try:
        state = _replayed(log, topics.membership, timeout_s)
    except TopicMissing:
        raise _absent(log, topics, "does not exist any more") from None
    if state.table is None:
        raise _absent(log, topics, "has no record that creates a cluster")
    return state.table, state


def read_slot_table(log: Log, topics: Topics, timeout_s: float = READ_TIMEOUT_S) -> SlotTable:
    """The newest slot table. Raises as `read_membership`."""
    return read_membership(log, topics, timeout_s)[0]


def _absent(log: Log, topics: Topics, why: str) -> HeadraceError:
    """The error for a membership log without a cluster: there is none of that name, or its log is lost."""
    try:
        statuses = log.describe(topics.status).end
    except TopicMissing:
        statuses = 0
    if not statuses:
        return no_cluster(topics.cluster)
    # Nodes send statuses only once a record has created their cluster. The advice for no cluster would create another
    # one over the same data.
    return MembershipLogLost.of(topics.membership, f"{why}, and topic {topics.status} has statuses of its nodes")


def no_cluster(name: str) -> NoCluster:
    """The error for a name that no cluster on this Kafka has."""
    return NoCluster(
        f"no cluster {name!r} on this Kafka; check the name", action="the first start of its nodes creates it"
    )


def join_cluster(
    log: Log,
    topics: Topics,
    create: Create,
    timeout_s: float = READ_TIMEOUT_S,
    cluster_topics: ClusterTopics | None = None,
    *,
    node: str = "",
    any_replication: bool = False,
) -> SlotTable:
    """The slot table of the cluster that this node was started for; creates the cluster if it does not exist.

    `create` has the settings of a new cluster, with `node` among its nodes. The nodes of a cluster that exists are
    those of its table; its replication and slots must be those of `create`, the replication unless
    `any_replication`. Creates the cluster's topics, see ClusterTopics. Raises ClusterInvalid for settings no
    cluster can have, SettingsDiffer when it was created with others, TopicUnsuitable, MembershipLogLost, TopicMissing
    for a lost table log.
    """
    # Looked at before any topic is made: settings that no cluster can have must leave none behind.
    if not cluster_exists(log, topics, timeout_s):
        _check_birth(create, node)
    cluster_topics = cluster_topics or ClusterTopics(log)
    cluster_topics.ensure({topics.membership: MEMBERSHIP, topics.status: STATUS})
    table = _replayed(log, topics.membership, timeout_s).table
    if table is not None:
        # A cluster has had its table log from the beginning. One that is missing is lost: an empty one in its
        # place would give the versions that stored rows name to other schemas.
        log.describe(topics.table)
    cluster_topics.ensure({topics.table: TABLE})
    if table is None:
        _check_birth(create, node)
        # All nodes may find the log empty and append at once. The log is read again, since the first record
        # decides, and it may be another node's.
        append_one(log, topics.membership, encode_membership(uuid.uuid4().hex, create))
        table = read_slot_table(log, topics, timeout_s)
    _check_same(table, create, topics.cluster, any_replication=any_replication)
    cluster_topics.ensure({topics.forward(header, table.birth(header)): FORWARD for header in table.headers})
    cluster_topics.show()
    return table


def cluster_exists(log: Log, topics: Topics, timeout_s: float = READ_TIMEOUT_S) -> bool:
    """Whether a cluster of this name was created. Raises MembershipLogLost for a log without its first records."""
    try:
        return _replayed(log, topics.membership, timeout_s).table is not None
    except TopicMissing:
        return False


def _replayed(log: Log, topic: str, timeout_s: float) -> MembershipState:
    """What a membership log has decided. Raises MembershipLogLost for one without its first records, TopicMissing."""
    begin = log.describe(topic).begin
    # The first record is the cluster's birth. Without it the log would seem to be that of none, and a node that
    # starts would create another one over the data of this.
    if begin > 0:
        raise MembershipLogLost.trimmed(topic, begin)
    return replay(read_to_end(log, topic, timeout_s=timeout_s))


def _check_birth(create: Create, node: str) -> None:
    """Raises ClusterInvalid for settings that no new cluster can have."""
    SlotTable.create(create.nodes, create.replication, create.slots)
    if node and node not in create.nodes:
        raise ClusterInvalid(
            f"node {node!r} is not among the nodes of the new cluster, {','.join(create.nodes)}",
            action="name it in --nodes, or start it once the cluster exists",
        )


def replay(records: Iterable[Record]) -> MembershipState:
    """The state after the records of a membership log. Raises FormatTooNew."""
    state = MembershipState()
    for record in records:
        # A record of a later build is not skipped: what follows may build on it.
        check_format(record.headers, record.topic, record.offset)
        state, _ = state.apply_value(record.value)
    return state


def _check_same(table: SlotTable, create: Create, cluster: str, *, any_replication: bool) -> None:
    # Nodes are not compared: they belong to the cluster's birth, and the table has those of today.
    differing = [
        f"{name} is {have}, this node was started with {want}"
        for name, have, want in (
            ("replication", table.replication, table.replication if any_replication else create.replication),
            ("slots", table.slots, create.slots),
        )
        if have != want
    ]
    if differing:
        raise SettingsDiffer(
            f"cluster {cluster!r} was created with other settings: {'; '.join(differing)}",
            action="start this node with the cluster's settings",
        )
    if set(create.nodes) != set(table.nodes):
        _log.info("nodes of the settings ignored", settings=create.nodes, cluster=table.nodes)
