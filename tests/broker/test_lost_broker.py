"""A stop beside a broker that has died: what is published of progress is shown to lag tools, and never waited for."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

from confluent_kafka import Consumer, TopicPartition

from headrace.connectors.kafka.broker import BrokerInfo, EmbeddedBroker
from headrace.connectors.log.kafka import KafkaLog
from headrace.connectors.log.kafka_group import KafkaGroupConsumer, Partition
from tests.waiting import eventually

END_S = 30.0
# By then a client has noticed: what it is asked for now waits for a connection, and not for an answer.
NOTICED_S = 2.0


def ends(work: Callable[[], object], what: str) -> None:
    """Fails when it does not end by itself."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(END_S)
    assert not thread.is_alive(), f"{what} still waits after {END_S:g} s"


def test_committed_offsets_are_those_that_lag_tools_see(broker: BrokerInfo, cluster_name: str) -> None:
    """Of several topics, also where one of them is gone."""
    log, first, second = KafkaLog(broker.bootstrap), f"{cluster_name}.first", f"{cluster_name}.second"
    for topic in (first, second):
        log.create_topic(topic, {})
    log.commit(cluster_name, {first: 3, second: 0})
    log.commit(cluster_name, {first: 5, second: 7, f"{cluster_name}.gone": 9})
    log.close()
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": cluster_name})
    try:
        committed = consumer.committed([TopicPartition(topic, 0) for topic in (first, second)], 20)
    finally:
        consumer.close()
    assert [5, 7] == [each.offset for each in committed]


def test_a_commit_without_a_broker_ends(own_broker: EmbeddedBroker, cluster_name: str) -> None:
    """A node commits when it stops. It waited for the broker, for as long as that was away, and so did its end.

    A consumer's commit ends with the session at best.
    """
    info = own_broker.start()
    log = KafkaLog(info.bootstrap, {"session.timeout.ms": str(int(1_000 * 10 * END_S))})
    log.create_topic(cluster_name, {})
    log.commit(cluster_name, {cluster_name: 0})
    os.kill(info.pid, signal.SIGKILL)
    time.sleep(NOTICED_S)
    ends(lambda: log.commit(cluster_name, {cluster_name: 0}), "the commit")
    ends(log.close, "the end of the log")


def test_a_group_consumer_without_a_broker_is_closed(own_broker: EmbeddedBroker, cluster_name: str) -> None:
    """A receiver commits when it stops: the consumer waits for the answer, and the stop does not."""
    info = own_broker.start()
    KafkaLog(info.bootstrap).create_topic(cluster_name, {})
    assigned = list[Partition]()
    consumer = KafkaGroupConsumer(
        info.bootstrap, cluster_name, "member", [cluster_name], assigned.extend, lambda _found: None
    )

    def joined() -> bool:
        consumer.poll(1, 0.1)
        return bool(assigned)

    eventually(joined, "a partition")
    consumer.commit({assigned[0]: 0})
    consumer.poll(1, 0.5)
    os.kill(info.pid, signal.SIGKILL)
    consumer.commit({assigned[0]: 0})
    ends(consumer.close, "the end of the consumer")
