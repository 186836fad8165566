"""Offset ranges of a raw topic on a real broker: librdkafka with transactions, gaps, trimmed logs and
recreated topics.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headrace.connectors.kafka.broker import BrokerInfo
from headrace.connectors.log.kafka_settings import consumer_settings
from headrace.pipeline.failures import RawDataLost
from headrace.pipeline.offset_ranges import READER_SETTINGS, OffsetRangeReader
from headrace.pipeline.raw_offsets import OffsetRange


@pytest.fixture
def reader(broker: BrokerInfo) -> Iterator[OffsetRangeReader]:
    """A reader with the settings of ingest and a short stall timeout."""
    settings = consumer_settings(broker.bootstrap, "offset-ranges", {}, **READER_SETTINGS)
    reader = OffsetRangeReader(lambda: Consumer(settings), stall_timeout_s=2.0, stall_timeout_s_max=2.0)
    yield reader
    reader.close()


def create_topic(bootstrap: str, topic: str, partitions: int = 1) -> None:
    """Create a raw topic."""
    with AdminClient({"bootstrap.servers": bootstrap}) as admin:
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)


def write(bootstrap: str, topic: str, values: list[bytes | None], *, commit: bool | None = None) -> None:
    """Produce messages on partition 0: without a transaction, or in one that is committed or aborted."""
    settings = {"enable.idempotence": True} if commit is None else {"transactional.id": f"{topic}-{commit}"}
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **settings})
    if commit is not None:
        producer.init_transactions(30)
        producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(30) == 0
    if commit is not None:
        producer.commit_transaction(30) if commit else producer.abort_transaction(30)


def trim(bootstrap: str, topic: str, before: int) -> None:
    """Trim the log so that it begins at an offset."""
    with AdminClient({"bootstrap.servers": bootstrap}) as admin:
        partition = TopicPartition(topic, 0, before)
        admin.delete_records([partition])[partition].result(30)


def values(batches: Iterator[pa.RecordBatch]) -> list[bytes | None]:
    """The values of all messages."""
    return [value for batch in batches for value in batch["value"].to_pylist()]


def test_transactions_show_only_what_was_committed(
    broker: BrokerInfo, reader: OffsetRangeReader, cluster_name: str
) -> None:
    """Aborted messages and markers have offsets, and the reader waits for none of them, at the end of a range
    either.
    """
    create_topic(broker.bootstrap, cluster_name)
    write(broker.bootstrap, cluster_name, [b"a", b"b"])
    write(broker.bootstrap, cluster_name, [b"lost", b"lost"], commit=False)
    write(broker.bootstrap, cluster_name, [b"c", None], commit=True)
    write(broker.bootstrap, cluster_name, [b"lost"], commit=False)
    # Offsets: a 0, b 1, lost 2 and 3, marker 4, c 5, tombstone 6, marker 7, lost 8, marker 9.
    everything = [b"a", b"b", b"c", None]
    assert everything == values(reader.read(OffsetRange(cluster_name, 0, 0, 10)))
    assert [] == values(reader.read(OffsetRange(cluster_name, 0, 7, 10)))
    assert [] == values(reader.read(OffsetRange(cluster_name, 0, 2, 5)))
    for border in range(1, 10):
        parts = (OffsetRange(cluster_name, 0, 0, border), OffsetRange(cluster_name, 0, border, 10))
        assert everything == [value for part in parts for value in values(reader.read(part))]


def test_a_log_that_was_trimmed_is_data_loss(broker: BrokerInfo, reader: OffsetRangeReader, cluster_name: str) -> None:
    """A log that was trimmed before the read, or between two fetches, is refused; the remaining offsets stay
    readable.
    """
    create_topic(broker.bootstrap, cluster_name)
    write(broker.bootstrap, cluster_name, [bytes(900_000)] * 60)
    batches = reader.read(OffsetRange(cluster_name, 0, 0, 60))
    assert next(batches).num_rows < 58
    trim(broker.bootstrap, cluster_name, 58)
    with pytest.raises(RawDataLost, match=f"topic {cluster_name} no longer holds"):
        values(batches)
    with pytest.raises(RawDataLost):
        values(reader.read(OffsetRange(cluster_name, 0, 57, 60)))
    assert 2 == len(values(reader.read(OffsetRange(cluster_name, 0, 58, 60))))


def test_a_topic_that_ends_before_the_offset_range_is_data_loss(
    broker: BrokerInfo, reader: OffsetRangeReader, cluster_name: str
) -> None:
    """A topic that was deleted and recreated is shorter than the planned range: an error, not an endless
    wait.
    """
    create_topic(broker.bootstrap, cluster_name)
    write(broker.bootstrap, cluster_name, [b"new"])
    with pytest.raises(RawDataLost):
        values(reader.read(OffsetRange(cluster_name, 0, 0, 5)))
    with pytest.raises(RawDataLost):
        values(reader.read(OffsetRange(cluster_name, 0, 3, 5)))


def test_many_offset_ranges_on_one_consumer_have_every_message_once(
    broker: BrokerInfo, reader: OffsetRangeReader, cluster_name: str
) -> None:
    """Partitions and ranges in turn, small and large, while the topic grows: every message once, none of
    another range.
    """
    create_topic(broker.bootstrap, cluster_name, partitions=2)
    # A retry of the first batch, while the topic has no leader yet, must not put it behind the second.
    settings = {"linger.ms": 5, "batch.num.messages": 700, "enable.idempotence": True}
    producer = Producer({"bootstrap.servers": broker.bootstrap, **settings})
    for number in range(20_000):
        producer.produce(cluster_name, b"%d.%d" % (number % 2, number // 2), partition=number % 2)
        producer.poll(0)
    assert producer.flush(30) == 0
    found: list[list[bytes | None]] = [[], []]
    borders = [0, 1, 2, 500, 501, 3_000, 8_999, 9_000, 10_000]
    for begin, end in itertools.pairwise(borders):
        for partition in (1, 0):
            found[partition] += values(reader.read(OffsetRange(cluster_name, partition, begin, end)))
            producer.produce(cluster_name, b"more", partition=partition)
            assert producer.flush(30) == 0
    for partition in (0, 1):
        assert [b"%d.%d" % (partition, number) for number in range(10_000)] == found[partition]
