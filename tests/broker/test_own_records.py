"""Records of an own log are read again from a real broker, with offsets that no record has."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import Producer

from headrace.connectors.kafka.broker import BrokerInfo
from headrace.connectors.log.kafka import KafkaLog
from headrace.connectors.log.port import read_to_end
from headrace.consumers.migration.own_records import OwnRecords
from tests.waiting import eventually

TRANSACTIONS, RECORDS = 8, 300


def test_records_between_the_ends_of_transactions_are_found(broker: BrokerInfo, cluster_name: str) -> None:
    """Near and far, forward and backward: committed records by their offsets, with aborted ones between them."""
    log = KafkaLog(broker.bootstrap)
    log.create_topic(cluster_name, {})
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": cluster_name})
    producer.init_transactions(30)
    for transaction in range(TRANSACTIONS):
        producer.begin_transaction()
        for number in range(RECORDS):
            producer.produce(cluster_name, b"%d/%d" % (transaction, number), partition=0)
        producer.flush(20)
        producer.abort_transaction(20) if transaction % 3 == 1 else producer.commit_transaction(20)
    records = {each.offset: each.value for each in read_to_end(log, cluster_name, timeout_s=20)}
    known = list(records)
    assert len(known) < known[-1] + 1
    own = OwnRecords(log, cluster_name)

    def found(offsets: Sequence[int]) -> bool:
        # A first answer of Kafka may take longer than one call waits.
        return {offset: each.value for offset, each in own.read(offsets, 1 << 20).items()} == {
            offset: records[offset] for offset in offsets
        }

    for offsets in ([known[3], known[4], known[290], known[-1]], [known[0]], known[250:700:50], [known[-1], known[7]]):
        eventually(lambda offsets=offsets: found(offsets), f"the records at {offsets}")
    own.close()
    log.close()
