"""A broker that loses the end of a log: what readers get of it once it is longer than before."""

from __future__ import annotations

from contextlib import suppress

import pytest

from headrace.connectors.kafka.broker import EmbeddedBroker
from headrace.connectors.log.kafka import KafkaLog
from headrace.connectors.log.kafka_appender import KafkaAppender
from headrace.connectors.log.port import AppendUnknown, LogTruncated, LogUnavailable, Reader, Record, TopicState
from headrace.schemas.errors import HeadraceError
from tests.log_files import cut_end
from tests.waiting import eventually

HELD, KEPT = 30, 11


def append(log: KafkaLog, topic: str, text: str, records: int) -> None:
    """Append records, each in a batch of its own."""
    appender = log.appender()
    for number in range(records):
        appender.append(topic, f"{text} {number}".encode())
        assert 0 == appender.flush(20)
    appender.close()


def send(appender: KafkaAppender, topic: str, reports: list[tuple[int | None, HeadraceError | None]]) -> None:
    """Append one record and wait for its report."""
    expected = len(reports) + 1
    appender.append(topic, b"of an open appender", on_delivery=lambda *report: reports.append(report))
    appender.flush(20)
    eventually(lambda: len(reports) == expected, "the report of a record")


def described(log: KafkaLog, topic: str) -> TopicState:
    """The log, retried until this client knows its leader: a broker that has just started has none for a moment."""
    found: list[TopicState] = []

    def known() -> bool:
        with suppress(LogUnavailable):
            found.append(log.describe(topic))
        return bool(found)

    eventually(known, f"a leader of {topic}")
    return found[0]


def read(reader: Reader, count: int) -> list[Record]:
    """The next records."""
    records: list[Record] = []
    eventually(lambda: len(records.__iadd__(reader.poll(100, 0.1))) >= count, f"{count} records")
    return records


@pytest.mark.slow(20)
def test_a_log_that_lost_its_end_continues_under_a_newer_leader_epoch(
    own_broker: EmbeddedBroker, cluster_name: str
) -> None:
    """The topic keeps its id and is longer than before. A reader that is open gets an error; one that is opened at its
    old position does not, and recognises the other log by the epoch of the first record alone. An appender that is
    open loses at most what it has under way.
    """
    log = KafkaLog(own_broker.start().bootstrap)
    log.create_topic(cluster_name, {})
    open_before, reports = log.appender(), list[tuple[int | None, HeadraceError | None]]()
    send(open_before, cluster_name, reports)
    append(log, cluster_name, "first", HELD - 2)
    send(open_before, cluster_name, reports)
    reader = log.reader({cluster_name: 0}, follow=True)
    before, topic_id = read(reader, HELD), log.describe(cluster_name).topic_id
    own_broker.stop()
    cut_end(own_broker, cluster_name, KEPT)
    own_broker.start()
    append(log, cluster_name, "second", HELD - 1)
    # Its next record is lost with its place in the log, and the one behind it is taken.
    send(open_before, cluster_name, reports)
    assert isinstance(reports[2][1], AppendUnknown)
    send(open_before, cluster_name, reports)
    assert (KEPT + HELD - 1, None) == reports[3]
    open_before.close()
    found = described(log, cluster_name)
    assert (topic_id, KEPT + HELD) == (found.topic_id, found.end)
    with pytest.raises(LogTruncated):
        read(reader, 1)
    reader.close()
    reader = log.reader({cluster_name: HELD - 1})
    after = read(reader, KEPT + 1)
    assert (HELD - 1, HELD) == (after[0].offset, after[1].offset)
    assert all(record.leader_epoch > before[-1].leader_epoch >= 0 for record in after)
    reader.close()
    reader = log.reader({cluster_name: 0})
    assert before[:KEPT] == read(reader, KEPT)[:KEPT]
    reader.close()
    log.close()
