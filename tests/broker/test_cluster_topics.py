"""The topics of a cluster on a real broker."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headrace.connectors.kafka.broker import BrokerInfo
from headrace.connectors.log.kafka import KafkaLog
from headrace.connectors.log.port import LogUnavailable, TopicMissing, TopicSettingsRefused
from headrace.connectors.log.topic_settings import FORWARD, MEMBERSHIP, STATUS, TABLE, created_with, wrong_settings
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.bootstrap import join_cluster
from headrace.consumers.membership.cluster_topics import ClusterTopics, TopicCopies, TopicUnsuitable
from headrace.schemas.records import Create
from tests.waiting import eventually

pytestmark = pytest.mark.broker
UNFIT = {
    "retention.ms": "604800000",
    "cleanup.policy": "compact",
    "message.timestamp.type": "CreateTime",
    "max.message.bytes": "1000",
}


def make_topic(broker: BrokerInfo, topic: str, partitions: int, settings: dict[str, str]) -> None:
    """Create a topic as an administrator does."""
    with AdminClient({"bootstrap.servers": broker.bootstrap}) as client:
        client.create_topics([NewTopic(topic, partitions, 1, config=settings)])[topic].result(30)


def test_topics_made_before_are_corrected(broker: BrokerInfo, cluster_name: str) -> None:
    """A join makes every setting of every topic what the table demands, and leaves the others alone."""
    topics = Topics(cluster_name)
    kinds = {topics.forward("n1"): FORWARD, topics.table: TABLE, topics.membership: MEMBERSHIP, topics.status: STATUS}
    for topic in kinds:
        make_topic(broker, topic, 1, {**UNFIT, "segment.bytes": "2000000"})
    log = KafkaLog(broker.bootstrap)
    before = wrong_settings(FORWARD, log.configuration(topics.forward("n1")).settings or {})
    assert set(UNFIT) == set(before)
    cluster_topics = ClusterTopics(log)
    join_cluster(log, topics, Create(("n1",), 1, 60), cluster_topics=cluster_topics)

    def wrong() -> list[str]:
        return [topic for topic, kind in kinds.items() if wrong_settings(kind, log.configuration(topic).settings or {})]

    eventually(lambda: wrong() == [], "corrected topics")
    found = log.configuration(topics.forward("n1"))
    assert (1, 1, "2000000") == (found.partitions, found.replication_factor, (found.settings or {})["segment.bytes"])
    assert () == cluster_topics.warnings
    log.close()


def test_new_topics_have_the_settings_of_the_table(broker: BrokerInfo, cluster_name: str) -> None:
    """Also the minimum of copies that is set, and one partition."""
    topics, log = Topics(cluster_name), KafkaLog(broker.bootstrap)
    join_cluster(
        log, topics, Create(("n1",), 1, 60), cluster_topics=ClusterTopics(log, TopicCopies(count=1, min_insync=1))
    )
    for topic, kind in ((topics.forward("n1"), FORWARD), (topics.status, STATUS), (topics.table, TABLE)):
        found = log.configuration(topic).settings or {}
        assert created_with(kind).items() <= found.items()
    log.close()


def test_an_empty_topic_with_several_partitions_is_refused(broker: BrokerInfo, cluster_name: str) -> None:
    """It is named."""
    topics, log = Topics(cluster_name), KafkaLog(broker.bootstrap)
    make_topic(broker, topics.forward("n1"), 3, {})
    with pytest.raises(TopicUnsuitable, match=rf"{cluster_name}\.forward\.n1\.1 has 3 partitions"):
        join_cluster(log, topics, Create(("n1",), 1, 60))
    log.close()


def test_more_copies_than_brokers_are_an_error_by_name(broker: BrokerInfo, cluster_name: str) -> None:
    """Retriable, since the brokers of a cluster that starts appear one after the other."""
    log = KafkaLog(broker.bootstrap)
    with pytest.raises(LogUnavailable, match="3 copies") as raised:
        join_cluster(
            log, Topics(cluster_name), Create(("n1",), 1, 60), cluster_topics=ClusterTopics(log, TopicCopies(3))
        )
    assert raised.value.retriable
    log.close()


def test_impossible_settings_and_missing_topics_are_named(broker: BrokerInfo, cluster_name: str) -> None:
    """The errors of the port."""
    log = KafkaLog(broker.bootstrap)
    with pytest.raises(TopicMissing, match=cluster_name):
        log.configuration(cluster_name)
    log.create_topic(cluster_name, {})
    with pytest.raises(TopicSettingsRefused, match=r"retention\.ms=soon"):
        log.configure(cluster_name, {"retention.ms": "soon"})
    log.close()
