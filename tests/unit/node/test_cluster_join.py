"""A node that starts where the membership log is gone makes no second cluster over the data of the first."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.connectors import deadline
from headrace.connectors.log.memory import MemoryLog
from headrace.consumers.membership.cluster_topics import ClusterTopics
from headrace.consumers.membership.membership_follower import MembershipLogLost
from headrace.consumers.node.cluster_join import join
from tests.unit.nodes import Nodes, running_nodes
from tests.waiting import eventually


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    """Three nodes with rows, whose topics are gone for good a second after they are deleted."""
    monkeypatch.setattr(deadline, "GONE_AFTER_S", 1.0)
    with running_nodes(tmp_path, monkeypatch, ("n1", "n2", "n3")) as nodes:
        nodes.write()
        nodes.ready()
        yield nodes


def lose_everything(log: MemoryLog) -> None:
    """As a broker that lost its disk."""
    for topic in log.topic_names(""):
        log.delete_topic(topic)


def test_a_node_with_data_creates_nothing(three: Nodes) -> None:
    """It knows that there was a cluster. The log stays empty, so that its topics can be restored into it."""
    three.stop("n1", "n2", "n3")
    lose_everything(three.log)
    for name in three.names:
        with pytest.raises(MembershipLogLost, match="of which this node has data") as lost:
            three.start(name)
        assert "restore" in lost.value.action
    assert [] == three.log.topic_names("")


def test_a_node_without_data_creates_nothing_while_others_are_online(three: Nodes) -> None:
    """It would count them as members of its own cluster, and answer without their rows."""
    three.wipe("n1")
    lose_everything(three.log)
    status = three.topics.status
    eventually(lambda: status in three.log.topic_names(""), "statuses again")
    eventually(lambda: three.log.describe(status).end > 0, "statuses again")
    with pytest.raises(MembershipLogLost, match=r"nodes are online: n2|nodes are online: n3"):
        three.start("n1")
    assert three.topics.membership not in three.log.topic_names("")
    assert not any(node.ready()[0] for name, node in three.running.items() if name != "n1")


def test_a_node_that_waited_for_the_log_waits_for_the_statuses_of_others(three: Nodes) -> None:
    """A broker came back without its disk, and the nodes that run have not made the topic of their statuses again."""
    three.wipe("n1")
    lose_everything(three.log)
    topics, stopping = ClusterTopics(three.log), threading.Event()
    with pytest.raises(MembershipLogLost, match="nodes are online"):
        join(three.log, topics, three.settings("n1"), stopping, log_was_away=True)
    assert three.topics.membership not in three.log.topic_names("")


def test_a_cluster_whose_nodes_are_all_gone_may_be_made_again(three: Nodes) -> None:
    """With empty directories, and old statuses on its topic: nobody is there who has anything."""
    for name in three.names:
        three.wipe(name)
    status = three.topics.status
    for topic in three.log.topic_names(""):
        if topic != status:
            three.log.delete_topic(topic)
    assert three.log.describe(status).end
    three.written = 0
    three.start("n1", "n2", "n3")
    three.ready()
