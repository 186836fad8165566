"""Bytes that change in a broker's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.connectors.kafka.broker import EmbeddedBroker
from headrace.connectors.log.kafka import KafkaLog
from headrace.connectors.log.port import Reader, Record, RecordUndeliverable

pytestmark = pytest.mark.broker
VALUES = [b"first value", b"second value", b"third value"]


def poll_until(reader: Reader, count: int) -> list[Record]:
    """The next records, as many as are wanted or an error."""
    records: list[Record] = []
    for _ in range(300):
        records += reader.poll(10, 0.1)
        if len(records) >= count:
            return records
    raise AssertionError(f"only {len(records)} of {count} records arrived")


def change_byte(directory: Path, topic: str, value: bytes) -> None:
    """Change one byte of a value in the files of a stopped broker."""
    [segment] = directory.rglob(f"{topic}-0/*.log")
    content = bytearray(segment.read_bytes())
    assert 1 == content.count(value)
    content[content.index(value)] ^= 0xFF
    segment.write_bytes(content)


@pytest.mark.slow(10)
def test_a_record_whose_bytes_changed_is_neither_delivered_nor_skipped(
    own_broker: EmbeddedBroker, cluster_name: str
) -> None:
    """The error names it at every try, and a reader behind it gets the next record."""
    log = KafkaLog(own_broker.start().bootstrap)
    log.create_topic(cluster_name, {})
    for value in VALUES:
        appender = log.appender()
        appender.append(cluster_name, value)
        appender.close()
    own_broker.stop()
    change_byte(own_broker.directory, cluster_name, VALUES[1])
    own_broker.start()
    reader = log.reader({cluster_name: 0})
    assert [VALUES[0]] == [record.value for record in poll_until(reader, 1)]
    for _ in range(2):
        with pytest.raises(RecordUndeliverable) as raised:
            poll_until(reader, 1)
        assert (cluster_name, 1, 1) == (raised.value.topic, raised.value.offset, reader.position(cluster_name))
    reader.seek(cluster_name, 2)
    assert [VALUES[2]] == [record.value for record in poll_until(reader, 1)]
    reader.close()
    log.close()
