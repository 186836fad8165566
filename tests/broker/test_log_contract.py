"""The contract of the log port, tested with each adapter: in memory, in a directory, and on a real broker."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.connectors.kafka.broker import BrokerInfo, EmbeddedBroker
from headrace.connectors.log.closing import SIZE_SETTING, is_closed
from headrace.connectors.log.kafka import KafkaLog
from headrace.connectors.log.kafka_settings import RECORD_BYTES_MAX
from headrace.connectors.log.memory import MemoryLog
from headrace.connectors.log.port import (
    Log,
    LogTruncated,
    LogUnavailable,
    Reader,
    Record,
    RecordTooLarge,
    TopicMissing,
    read_to_end,
)
from headrace.consumers.local_log import LocalLog
from headrace.schemas.errors import HeadraceError
from tests.waiting import eventually


@pytest.fixture(params=["memory", "local", pytest.param("kafka", marks=pytest.mark.broker)])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Log]:
    """The adapters in turn."""
    if request.param == "memory":
        adapter: Log = MemoryLog(record_bytes_max=16 * 1024 * 1024)
    elif request.param == "local":
        adapter = LocalLog(tmp_path / "log")
    else:
        info: BrokerInfo = request.getfixturevalue("broker")
        adapter = KafkaLog(info.bootstrap)
    yield adapter
    adapter.close()


def append(log: Log, topic: str, values: list[bytes]) -> list[int]:
    """Append values in order; returns their offsets."""
    appender, offsets, errors = log.appender(), [], []

    def report(offset: int | None, error: HeadraceError | None) -> None:
        if error is not None:
            errors.append(error)
        elif offset is not None:
            offsets.append(offset)

    for value in values:
        appender.append(topic, value, key=b"k", headers=[("format", b"1")], on_delivery=report)
    assert appender.flush(20) == 0
    appender.close()
    if errors:
        raise errors[0]
    return offsets


def take(reader: Reader, count: int) -> list[Record]:
    """Poll until `count` records have arrived."""
    records: list[Record] = []
    for _ in range(200):
        records += reader.poll(1_000, 0.1)
        if len(records) >= count:
            return records
    raise AssertionError(f"only {len(records)} of {count} records arrived")


def test_records_are_read_in_order_with_key_value_and_headers(log: Log, cluster_name: str) -> None:
    """A reader gets every record in the order of append, with key, value, headers and rising offsets."""
    log.create_topic(cluster_name, {})
    offsets = append(log, cluster_name, [b"%d" % number for number in range(500)])
    reader = log.reader({cluster_name: 0})
    records = take(reader, 500)
    reader.close()
    assert [b"%d" % number for number in range(500)] == [record.value for record in records]
    assert offsets == [record.offset for record in records]
    assert {(b"k", (("format", b"1"),))} == {(record.key, record.headers) for record in records}


def test_position_reaches_the_end_when_all_is_read(log: Log, cluster_name: str) -> None:
    """Position >= end means caught up, also for an empty topic."""
    log.create_topic(cluster_name, {})
    reader = log.reader({cluster_name: 0})
    reader.poll(10, 0.2)
    assert reader.position(cluster_name) >= log.describe(cluster_name).end == 0
    append(log, cluster_name, [b"a", b"b"])
    take(reader, 2)
    assert log.describe(cluster_name).end == 2 == reader.position(cluster_name)
    reader.close()


def test_a_reader_starts_at_its_offset_and_can_seek(log: Log, cluster_name: str) -> None:
    """Start offset and seek are exact."""
    log.create_topic(cluster_name, {})
    append(log, cluster_name, [b"%d" % number for number in range(10)])
    reader = log.reader({cluster_name: 7})
    assert [b"7", b"8", b"9"] == [record.value for record in take(reader, 3)]
    reader.seek(cluster_name, 4)
    assert b"4" == take(reader, 6)[0].value
    reader.close()


def test_a_paused_topic_delivers_nothing_and_loses_nothing(log: Log, cluster_name: str) -> None:
    """Pause stops one topic, resume continues where it stopped."""
    first, second = f"{cluster_name}.a", f"{cluster_name}.b"
    for topic in (first, second):
        log.create_topic(topic, {})
    reader = log.reader({first: 0, second: 0})
    reader.pause([first])
    append(log, first, [b"1", b"2"])
    append(log, second, [b"3"])
    assert [second] == [record.topic for record in take(reader, 1)]
    assert [] == reader.poll(10, 0.3)
    reader.resume([first])
    assert [b"1", b"2"] == [record.value for record in take(reader, 2)]
    reader.close()


def test_an_offset_beyond_the_log_is_an_error_not_a_jump(log: Log, cluster_name: str) -> None:
    """A reader at an offset that the log does not hold gets an error, and is never moved elsewhere."""
    log.create_topic(cluster_name, {})
    append(log, cluster_name, [b"a"])
    reader = log.reader({cluster_name: 100})
    with pytest.raises(LogTruncated):
        take(reader, 1)
    reader.close()


def test_a_missing_topic_is_named(log: Log, cluster_name: str) -> None:
    """An error of describe or append names the missing topic."""
    with pytest.raises(TopicMissing, match=cluster_name):
        log.describe(cluster_name)
    with pytest.raises(TopicMissing, match=cluster_name):
        append(log, cluster_name, [b"a"])


def test_a_record_above_the_limit_is_refused_and_nothing_else_is(log: Log, cluster_name: str) -> None:
    """A 50 MB record raises a typed error; later records arrive."""
    log.create_topic(cluster_name, {})
    with pytest.raises(RecordTooLarge):
        append(log, cluster_name, [bytes(50 * 1024 * 1024)])
    append(log, cluster_name, [b"after"])
    assert [b"after"] == [record.value for record in read_to_end(log, cluster_name, timeout_s=20)]


def test_creating_a_topic_twice_keeps_it(log: Log, cluster_name: str) -> None:
    """A second creation changes neither identity nor content."""
    log.create_topic(cluster_name, {})
    append(log, cluster_name, [b"a"])
    before = log.describe(cluster_name)
    log.create_topic(cluster_name, {})
    assert before == log.describe(cluster_name)


def test_a_closed_topic_has_all_that_was_acknowledged_and_takes_nothing_more(log: Log, cluster_name: str) -> None:
    """Writers run while it is closed. Its end is final, until it is opened again; a topic created after its deletion
    is another one.
    """
    log.create_topic(cluster_name, {})
    acknowledged: list[int] = []
    refused = threading.Event()

    def write_until_refused() -> None:
        try:
            while True:
                acknowledged.extend(append(log, cluster_name, [b"a", b"b"]))
        except RecordTooLarge:
            refused.set()

    writers = [threading.Thread(target=write_until_refused, daemon=True) for _ in range(2)]
    for writer in writers:
        writer.start()
    eventually(lambda: len(acknowledged) > 4, "acknowledged records")
    end = log.close_topic(cluster_name)
    assert refused.wait(20)
    for writer in writers:
        writer.join(20)
    read = [record.offset for record in read_to_end(log, cluster_name, timeout_s=20)]
    assert (set(), end) == (set(acknowledged) - set(read), log.describe(cluster_name).end)
    assert (end, True) == (log.close_topic(cluster_name), is_closed(log, cluster_name))

    log.configure(cluster_name, {SIZE_SETTING: str(RECORD_BYTES_MAX)})
    eventually(lambda: accepts(log, cluster_name), "a topic that is open again")
    assert log.close_topic(cluster_name) > end
    topic_id = log.describe(cluster_name).topic_id
    log.delete_topic(cluster_name)
    eventually(lambda: is_missing(log, cluster_name), "a deleted topic")
    log.delete_topic(cluster_name)
    with pytest.raises(TopicMissing):
        log.close_topic(cluster_name)
    log.create_topic(cluster_name, {})
    assert topic_id != log.describe(cluster_name).topic_id


def accepts(log: Log, topic: str) -> bool:
    """Whether a topic takes a record."""
    try:
        return bool(append(log, topic, [b"again"]))
    except RecordTooLarge:
        return False


def is_missing(log: Log, topic: str) -> bool:
    """Whether a topic does not exist."""
    try:
        log.describe(topic)
    except TopicMissing:
        return True
    return False


def test_gaps_in_offsets_leave_no_gap_in_the_records() -> None:
    """Transaction markers use up offsets: a reader skips them and still reaches the end."""
    log = MemoryLog()
    log.create_topic("t", {})
    append(log, "t", [b"a"])
    log.gap("t", 2)
    append(log, "t", [b"b"])
    log.gap("t")
    reader = log.reader({"t": 0})
    records = reader.poll(10, 0)
    assert [(0, b"a"), (3, b"b")] == [(record.offset, record.value) for record in records]
    assert log.describe("t").end == 5 == reader.position("t")


@pytest.mark.broker
def test_transaction_markers_on_a_real_broker_do_not_hide_the_end(broker: BrokerInfo, cluster_name: str) -> None:
    """Committed and aborted transactions leave markers: the reader sees committed records only, and its
    position reaches the end.
    """
    from confluent_kafka import Producer

    log = KafkaLog(broker.bootstrap)
    log.create_topic(cluster_name, {})
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": cluster_name})
    producer.init_transactions(30)
    for value, commit in ((b"kept", True), (b"dropped", False)):
        producer.begin_transaction()
        producer.produce(cluster_name, value, partition=0)
        producer.flush(20)
        producer.commit_transaction(20) if commit else producer.abort_transaction(20)
    records = read_to_end(log, cluster_name, timeout_s=20)
    assert [b"kept"] == [record.value for record in records]
    assert log.describe(cluster_name).end == 4
    log.close()


@pytest.mark.broker
def test_an_open_transaction_counts_as_written_after_the_end(broker: BrokerInfo, cluster_name: str) -> None:
    """Records of an open transaction, and all records after them, are unreadable; the log reports how many
    they are.
    """
    from confluent_kafka import Producer

    log = KafkaLog(broker.bootstrap)
    log.create_topic(cluster_name, {})
    append(log, cluster_name, [b"before"])
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": cluster_name})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(cluster_name, b"held", partition=0)
    producer.flush(20)
    append(log, cluster_name, [b"behind"])
    assert (1, 3) == (log.describe(cluster_name).end, log.written_end(cluster_name))
    producer.abort_transaction(20)
    # The broker completes the abort some time after its answer.
    eventually(lambda: log.describe(cluster_name).end == log.written_end(cluster_name), "an ended transaction")
    assert [b"before", b"behind"] == [record.value for record in read_to_end(log, cluster_name, timeout_s=20)]
    log.close()


@pytest.mark.slow(10)
@pytest.mark.broker
def test_a_broker_restart_in_the_middle_loses_and_repeats_nothing(
    own_broker: EmbeddedBroker, cluster_name: str
) -> None:
    """Appender and reader continue after a stop and a start of the broker."""
    log = KafkaLog(own_broker.start().bootstrap)
    log.create_topic(cluster_name, {})
    reader = log.reader({cluster_name: 0})
    append(log, cluster_name, [b"before"])
    assert [b"before"] == [record.value for record in take(reader, 1)]
    own_broker.stop()
    appender = log.appender()
    for number in range(20):
        appender.append(cluster_name, b"%d" % number)
    own_broker.start()
    assert appender.flush(60) == 0
    assert [b"%d" % number for number in range(20)] == [record.value for record in take(reader, 20)]
    for closable in (appender, reader, log):
        closable.close()


@pytest.mark.slow(10)
@pytest.mark.broker
def test_no_broker_is_a_retriable_error() -> None:
    """An address without a listener gives LogUnavailable, which is retriable."""
    log = KafkaLog("127.0.0.1:9", {"socket.connection.setup.timeout.ms": "1000"})
    with pytest.raises(LogUnavailable) as raised:
        log.describe("any")
    assert raised.value.retriable


def test_a_trimmed_log_begins_at_the_trim_offset(log: Log, cluster_name: str) -> None:
    """Records below the trim are gone for every reader, later ones stay; a lower trim changes nothing; a
    missing topic is named.
    """
    topic = f"{cluster_name}.trimmed"
    log.create_topic(topic, {})
    append(log, topic, [b"a", b"b", b"c"])
    log.trim(topic, 2)
    state = log.describe(topic)
    assert (2, 3) == (state.begin, state.end)
    reader = log.reader({topic: 2})
    assert [b"c"] == [record.value for record in take(reader, 1)]
    reader.close()
    lost = log.reader({topic: 1})
    with pytest.raises(LogTruncated):
        take(lost, 1)
    lost.close()
    log.trim(topic, 3)
    assert 3 == log.describe(topic).begin
    with pytest.raises((TopicMissing, LogUnavailable)):
        log.trim(f"{cluster_name}.missing", 1)
