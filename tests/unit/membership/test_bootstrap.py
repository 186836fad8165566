"""What belongs to the birth of a cluster, and what a later start may leave out."""

from __future__ import annotations

from functools import partial

import pytest

from headrace.connectors.log.memory import MemoryLog
from headrace.connectors.log.port import TopicMissing
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.bootstrap import NoCluster, join_cluster, read_slot_table
from headrace.consumers.membership.membership_follower import MembershipLogLost
from headrace.consumers.membership.requests import SettingsDiffer
from headrace.consumers.membership.ring import ClusterInvalid
from headrace.schemas.records import Create

TOPICS = Topics("c")
BIRTH = Create(("n1", "n2", "n3", "n4", "n5"), 3, 60)


@pytest.fixture
def log() -> MemoryLog:
    """A log with a cluster of five nodes, three of which hold each row."""
    log = MemoryLog()
    join_cluster(log, TOPICS, BIRTH, node="n1")
    return log


@pytest.mark.parametrize("nodes", [("n1",), ("n1", "n9"), ("n6",)])
def test_the_nodes_of_a_later_start_are_ignored(log: MemoryLog, nodes: tuple[str, ...]) -> None:
    """Also where they would be too few for a new cluster: the table has those of today."""
    table = join_cluster(log, TOPICS, Create(nodes, 3, 60), node="n6")
    assert (set(BIRTH.nodes), 3, 60) == (set(table.nodes), table.replication, table.slots)
    assert table == join_cluster(log, TOPICS, Create(nodes, len(nodes), 60), node="n6", any_replication=True)


@pytest.mark.parametrize(
    ("replication", "slots", "named"),
    [(5, 60, "replication is 3, this node was started with 5"), (3, 61, "slots is 60, this node was started with 61")],
)
def test_another_replication_or_slot_count_is_refused_by_name(
    log: MemoryLog, replication: int, slots: int, named: str
) -> None:
    """They belong to the birth, and never change."""
    with pytest.raises(SettingsDiffer, match=named):
        join_cluster(log, TOPICS, Create(BIRTH.nodes, replication, slots), node="n1")


@pytest.mark.parametrize(
    ("create", "node", "named"),
    [
        (Create(("n1", "n2"), 3, 60), "n1", "replication 3 does not fit 2 nodes"),
        (Create(("n1", "n2"), 2, 60), "n3", "'n3' is not among the nodes of the new cluster, n1,n2"),
        (Create(("n1", "n1"), 1, 60), "n1", "names a node twice"),
    ],
)
def test_a_birth_that_no_cluster_can_have_leaves_nothing(create: Create, node: str, named: str) -> None:
    """The error names the setting, and no topic was made."""
    log = MemoryLog()
    with pytest.raises(ClusterInvalid, match=named):
        join_cluster(log, TOPICS, create, node=node)
    with pytest.raises(TopicMissing):
        log.describe(TOPICS.membership)


def test_a_membership_log_without_its_beginning_is_no_missing_cluster(log: MemoryLog) -> None:
    """Its first record creates the cluster: without it a start would create another one over the same data."""
    end = log.describe(TOPICS.membership).end
    log.trim(TOPICS.membership, end)
    for start in (partial(join_cluster, log, TOPICS, BIRTH, node="n1"), partial(read_slot_table, log, TOPICS)):
        with pytest.raises(MembershipLogLost, match=f"begins at offset {end}") as raised:
            start()
        assert "restore" in raised.value.action
    assert end == log.describe(TOPICS.membership).end


@pytest.mark.parametrize("made_again", [False, True])
def test_a_membership_log_that_is_gone_is_no_missing_cluster(log: MemoryLog, made_again: bool) -> None:
    """Its nodes have sent statuses. Whoever starts a node for want of a cluster makes another one over the same data."""
    log.store(TOPICS.status, b"status", b"n1/n1", ())
    log.delete_topic(TOPICS.membership)
    why = "does not exist any more"
    if made_again:
        log.create_topic(TOPICS.membership, {})
        why = "has no record that creates a cluster"
    with pytest.raises(MembershipLogLost, match=f"topic c.membership {why}, and topic c.status has") as raised:
        read_slot_table(log, TOPICS)
    assert "restore all its records in their order" in raised.value.action


@pytest.mark.parametrize("topics_made", [False, True])
def test_a_name_without_a_cluster_is_named(topics_made: bool) -> None:
    """Also while its first node has made the topics and not yet created it."""
    log = MemoryLog()
    for topic in (TOPICS.membership, TOPICS.status) if topics_made else ():
        log.create_topic(topic, {})
    with pytest.raises(NoCluster, match="no cluster 'c' on this Kafka"):
        read_slot_table(log, TOPICS)
