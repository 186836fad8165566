"""The stream source of `format("headrace")`, without Spark: what it follows, and what it reads of it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from headrace.connectors.log.append import append_one
from headrace.connectors.log.memory import MemoryLog
from headrace.connectors.log.port import read_to_end
from headrace.consumers.membership.bootstrap import join_cluster
from headrace.consumers.membership.refusal import refuse_record
from headrace.consumers.membership.slot_table import SlotTable
from headrace.pipeline import log_follower, stream_source
from headrace.pipeline.checkpoint import CheckpointForeign
from headrace.pipeline.data_source import HeadraceDataSource
from headrace.pipeline.log_follower import LogTrimmed, RowsDeleted, TableAwaited
from headrace.pipeline.source_columns import ColumnUnknown, source_schema
from headrace.pipeline.source_options import OptionInvalid, StreamOptions
from headrace.pipeline.stream_source import LogRange, TableStreamReader
from headrace.producers.cluster import FixedRouting
from headrace.schemas.messages import Delete, Message, ProducerPosition, Write, decode_message, encode_message
from headrace.schemas.records import Create
from headrace.schemas.tables import FieldType, TableSchema
from tests.unit.pipeline.source_scene import TARGET, TOPICS, SourceScene, new_scene, rows

TABLE = TableSchema("db", "t", 1, ("host",), (("n", FieldType.INT64),))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle follower does not wait."""
    monkeypatch.setattr(log_follower, "IDLE_WAIT_S", 0.01)


class _Kept:
    """The log of a scene, which outlives its readers."""

    def __init__(self, log: Any) -> None:
        self._log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def close(self) -> None:
        """Nothing: the scene owns the log."""


def reader_of(scene: SourceScene, monkeypatch: pytest.MonkeyPatch, **options: Any) -> TableStreamReader:
    """A reader on the logs of a scene, in place of Kafka's."""
    monkeypatch.setattr(stream_source, "KafkaLog", lambda *_: _Kept(scene.log))
    monkeypatch.setattr(stream_source, "open_routing", lambda *_: scene.cluster.routing)
    given = StreamOptions(TARGET, **options)
    schema = source_schema(TABLE, time_as_long=given.time_as_long, metadata=given.metadata)
    return TableStreamReader(given, schema, TABLE.tags)


def read(reader: TableStreamReader, start: dict[str, Any], end: dict[str, Any]) -> pa.Table:
    """The rows of a batch as its tasks give them."""
    tasks = pickle.loads(pickle.dumps(reader))
    batches = [batch for each in reader.partitions(start, end) for batch in tasks.read(each)]
    return pa.Table.from_batches(batches, reader._schema).sort_by("time")


Make = Callable[..., TableStreamReader]


def test_rows_come_once_and_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch has what was written since the one before, and a repeated message gives its rows once."""
    scene = new_scene()
    scene.write([rows(0, 20, hosts=20)])
    reader = reader_of(scene, monkeypatch, metadata=True)
    start = reader.initialOffset()
    middle = reader.latestOffset()
    scene.write([rows(0, 20, hosts=20)])
    scene.write([rows(20, 5)], batch=1)
    end = reader.latestOffset()
    first, second = read(reader, start, middle), read(reader, middle, end)
    assert (list(range(20)), list(range(20, 25))) == (first["n"].to_pylist(), second["n"].to_pylist())
    assert [f"h{number}" for number in range(20)] == first["host"].to_pylist()
    assert {"n1", "n2"} == set(first["_group"].to_pylist())
    assert end == reader.latestOffset()
    assert [] == reader.partitions(end, end)


def test_a_restart_continues_at_the_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """It plans a batch again as it was, and knows the messages before it that are repeated behind it."""
    scene = new_scene()
    scene.write([rows(0, 20)])
    earlier = reader_of(scene, monkeypatch)
    start, middle = earlier.initialOffset(), earlier.latestOffset()
    scene.write([rows(0, 20)])
    scene.write([rows(20, 5)], batch=1)
    reader = reader_of(scene, monkeypatch)
    assert [] == reader.partitions(middle, middle)
    end = reader.latestOffset()
    assert list(range(20, 25)) == read(reader, middle, end)["n"].to_pylist()
    again = reader_of(scene, monkeypatch)
    assert list(range(20)) == read(again, start, middle)["n"].to_pylist()


def test_a_query_may_begin_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `latest` only later rows come."""
    scene = new_scene()
    scene.write([rows(0, 20)])
    reader = reader_of(scene, monkeypatch, from_latest=True)
    start = reader.initialOffset()
    assert start == reader.latestOffset()
    scene.write([rows(20, 5)], batch=1)
    assert 5 == read(reader, start, reader.latestOffset()).num_rows


def test_a_limit_bounds_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """`maxRecordsPerBatch` counts records of the logs, and the next batch has the others."""
    scene = new_scene()
    for batch in range(10):
        scene.write([rows(batch, 1)], batch=batch)
    reader = reader_of(scene, monkeypatch, records_per_batch_max=3)
    offsets = [reader.initialOffset()]
    counts: list[int] = []
    while sum(counts) < 10:
        offsets.append(reader.latestOffset())
        counts.append(read(reader, *offsets[-2:]).num_rows)
    assert [3, 3, 3, 1] == counts


def test_a_limit_bounds_the_batch_behind_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new reader reads up to the end of the batch that it is given, in some logs further: that counts as read."""
    scene = new_scene()
    for batch in range(10):
        scene.write([rows(batch * 20, 20, hosts=20)], batch=batch)
    earlier = reader_of(scene, monkeypatch, records_per_batch_max=3)
    offsets = [earlier.initialOffset()]
    offsets.append(earlier.latestOffset())
    reader = reader_of(scene, monkeypatch, records_per_batch_max=3)
    found = read(reader, *offsets)["n"].to_pylist()
    while sum(each["offset"] for each in offsets[-1].values()) < 20:
        offsets.append(reader.latestOffset())
        assert 1 <= sum(offsets[-1][topic]["offset"] - offsets[-2][topic]["offset"] for topic in offsets[-1]) <= 3
        found += read(reader, *offsets[-2:])["n"].to_pylist()
    assert list(range(200)) == sorted(found)
    assert offsets[-1] == reader.latestOffset()


def test_a_log_may_have_several_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `minPartitions` the tasks have the same rows together, each record in one of them and repeats in none."""
    scene = new_scene()
    for batch in (0, 1, 2, 3, 3, 4, 5):
        scene.write([rows(batch * 20, 20, hosts=20)], batch=batch)
    reader = reader_of(scene, monkeypatch, tasks_min=8, metadata=True)
    start, end = reader.initialOffset(), reader.latestOffset()
    tasks = reader.partitions(start, end)
    assert len(scene.topics()) < len(tasks)
    assert list(range(120)) == read(reader, start, end)["n"].to_pylist()
    ranges = [task for task in tasks if isinstance(task, LogRange)]
    assert len(tasks) == len(ranges)
    assert all(offset in range(task.begin, task.end) for task in ranges for offset in task.dropped)


def delete(scene: SourceScene, table: str) -> None:
    """Delete rows of a table in every log."""
    message = Message(ProducerPosition(table, 1, 0), Delete("db", table, {"host": ("h1",)}, None, None))
    for topic in scene.topics():
        append_one(scene.log, topic, encode_message(message))


def test_a_delete_ends_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless it is of another table, or deletes are ignored."""
    scene = new_scene()
    scene.write([rows(0, 20)])
    delete(scene, "other")
    reader = reader_of(scene, monkeypatch)
    start = reader.initialOffset()
    # A fence of a receiver of files deletes nothing.
    fence = Message(ProducerPosition("fence", 1, 0), Delete("db", "t", {}, 0, 0))
    for topic in scene.topics():
        append_one(scene.log, topic, encode_message(fence))
    middle = reader.latestOffset()
    delete(scene, "t")
    with pytest.raises(RowsDeleted, match="ignoreDeletes"):
        reader.latestOffset()
    lenient = reader_of(scene, monkeypatch, ignore_deletes=True)
    assert [] == lenient.partitions(middle, middle)
    assert 20 == read(lenient, start, lenient.latestOffset()).num_rows


def test_a_trimmed_log_is_never_jumped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records below the checkpoint that are gone, and a log that was made again, are errors with choices."""
    scene = new_scene()
    scene.write([rows(0, 20, hosts=20)])
    start = reader_of(scene, monkeypatch).initialOffset()
    topic = scene.topics()[0]
    scene.log.trim(topic, 1)
    with pytest.raises(LogTrimmed, match="new checkpoint"):
        reader_of(scene, monkeypatch).partitions(start, start)
    other = {name: {**each, "offset": 1} for name, each in start.items()}
    assert [] == reader_of(scene, monkeypatch).partitions(other, other)
    for wrong, named in ({"id": "another", "offset": 1}, "made again"), ({**other[topic], "offset": 9}, "it was cut"):
        with pytest.raises(LogTrimmed, match=named):
            reader_of(scene, monkeypatch).partitions({**other, topic: wrong}, {**other, topic: wrong})


def test_a_new_group_is_followed_from_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that comes while the query runs is in the next batch."""
    scene = new_scene()
    reader = reader_of(scene, monkeypatch)
    start = {name: each for name, each in reader.initialOffset().items() if name == scene.topics()[0]}
    again = reader_of(scene, monkeypatch)
    assert [] == again.partitions(start, start)
    scene.write([rows(0, 20)])
    end = again.latestOffset()
    assert 20 == read(again, start, end).num_rows
    restarted = reader_of(scene, monkeypatch)
    assert 20 == read(restarted, start, end).num_rows, "the batch that brought the log is planned again"
    with pytest.raises(LogTrimmed, match="no longer exists"):
        reader_of(scene, monkeypatch).partitions(start, {**end, "gone": {"id": "x", "offset": 1}})


def asked_again(reader: TableStreamReader, end: dict[str, Any]) -> dict[str, Any]:
    """The beginning of the first batch of a query that has not finished it, asked for as Spark does at a restart."""
    assert [] == reader.partitions(end, end)
    return reader.initialOffset()


def test_a_group_is_added_while_the_first_batch_is_unfinished(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log is in the next batch from its first record on, also when that one is planned again."""
    scene = new_scene()
    both = scene.cluster.routing
    scene.cluster = replace(scene.cluster, routing=FixedRouting(without(table_of(scene), "n2")))
    scene.write([rows(0, 20, hosts=20)])
    before = reader_of(scene, monkeypatch)
    first = before.latestOffset()
    assert [TOPICS.forward("n1")] == list(first) == list(before.initialOffset())
    scene.cluster = replace(scene.cluster, routing=both)
    scene.write([rows(20, 20, hosts=20)], batch=1)
    again = reader_of(scene, monkeypatch)
    start = asked_again(again, first)
    assert set(start) > set(first)
    assert list(range(20)) == read(again, start, first)["n"].to_pylist()
    second = again.latestOffset()
    assert list(range(20, 40)) == read(again, first, second)["n"].to_pylist()
    last = reader_of(scene, monkeypatch)
    assert [] == last.partitions(second, second)
    assert list(range(20, 40)) == read(last, first, second)["n"].to_pylist()


def test_a_query_from_the_end_loses_nothing_with_its_first_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was empty, and rows that came before it was finished are in the next one: each once, and no delete unseen."""
    monkeypatch.setattr(log_follower, "LOOK_BACK_RECORDS", 0)
    scene = new_scene()
    scene.write([rows(0, 20)])
    first = reader_of(scene, monkeypatch, from_latest=True).latestOffset()
    for _ in range(2):
        scene.write([rows(20, 20, hosts=20)], batch=1)
    again = reader_of(scene, monkeypatch, from_latest=True)
    start = asked_again(again, first)
    assert [] == again.partitions(start, first)
    assert list(range(20, 40)) == read(again, first, again.latestOffset())["n"].to_pylist()
    delete(scene, "t")
    other = reader_of(scene, monkeypatch, from_latest=True)
    assert [] == other.partitions(asked_again(other, first), first)
    with pytest.raises(RowsDeleted):
        other.latestOffset()


def test_new_columns_wait_for_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A column that the query does not know is left out; one that became wider is an error and not rounded."""
    scene = new_scene()
    reader = reader_of(scene, monkeypatch)
    start = reader.initialOffset()
    scene.write([rows(0, 2, more=pa.array([1.0, 2.0]))])
    middle = reader.latestOffset()
    assert ["host", "time", "n"] == read(reader, start, middle).column_names
    scene.write([rows(2, 2, n=pa.array([0.5, 1.5]))], batch=1)
    with pytest.raises(ColumnUnknown, match="restart the query"):
        read(reader, middle, reader.latestOffset())


def test_a_follower_reads_nothing_that_is_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that no build could have written are passed over, as by replicas."""
    scene = new_scene()
    append_one(scene.log, scene.topics()[0], b"probe")
    scene.write([rows(0, 4)])
    reader = reader_of(scene, monkeypatch)
    start = reader.initialOffset()
    assert 4 == read(reader, start, reader.latestOffset()).num_rows


def write_of_missing_version(scene: SourceScene, topic: str, position: ProducerPosition) -> int:
    """Append a write of table `t` that names a version that nobody has made; its offset."""
    value = next(each.value for each in read_to_end(scene.log, topic, timeout_s=5))
    body = decode_message(value).body
    assert isinstance(body, Write)
    message = Message(position, replace(body, schema_version=9))
    return append_one(scene.log, topic, encode_message(message))


def test_a_refused_record_gives_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The query waits at a record of an unknown version. Once it is refused, the records behind it count."""
    monkeypatch.setattr(log_follower, "TABLE_WAIT_S", 0.0)
    scene = new_scene()
    scene.write([rows(0, 20, hosts=20)])
    topic = TOPICS.forward("n1")
    reader = reader_of(scene, monkeypatch)
    start = reader.initialOffset()
    first = reader.latestOffset()
    before = read(reader, start, first)["n"].to_pylist()
    # Newer than the batches of the same producer that follow: a record that does not count makes none of them old.
    offset = write_of_missing_version(scene, topic, ProducerPosition("q", 7, 0))
    with pytest.raises(TableAwaited, match="version 9 of db.t") as raised:
        reader.latestOffset()
    assert f"headrace refuse-record --group n1 --offset {offset}" in raised.value.action
    refuse_record(scene.log, TOPICS, "n1", offset)
    scene.write([rows(20, 20, hosts=20)], batch=1)
    again = reader_of(scene, monkeypatch)
    assert [] == again.partitions(first, first)
    assert list(range(20, 40)) == read(again, first, again.latestOffset())["n"].to_pylist()
    assert list(range(20)) == before


def ended(scene: SourceScene, log: str) -> None:
    """A change of members has removed the group of this log: it is closed, and no slot is its own."""
    scene.log.close_topic(log)
    scene.cluster = replace(scene.cluster, routing=FixedRouting(without(table_of(scene), "n2")))


def table_of(scene: SourceScene) -> SlotTable:
    """The slot table of a scene."""
    table = scene.cluster.routing.route.table
    assert isinstance(table, SlotTable)
    return table


def without(table: SlotTable, node: str) -> SlotTable:
    """The table of a cluster that never had this node."""
    others = tuple(each for each in table.nodes if each != node)
    log = MemoryLog()
    return join_cluster(log, TOPICS, Create(others, 1, 100))


def test_a_log_that_was_read_to_its_end_may_be_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The query continues without it; the same end is seen twice before it is taken for the last one."""
    scene = new_scene()
    scene.write([rows(0, 20, hosts=20)])
    log = TOPICS.forward("n2")
    ended(scene, log)
    reader = reader_of(scene, monkeypatch)
    offsets = scene_offsets(scene)
    assert [] == reader.partitions(offsets, offsets)
    end = [reader.latestOffset() for _ in range(3)][-1]
    assert scene.log.describe(log).end == end[log]["offset"]
    scene.log.delete_topic(log)
    assert [TOPICS.forward("n1")] == list(reader.latestOffset())


def test_a_log_that_was_deleted_too_early_ends_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that were never read must not be missed in silence."""
    scene = new_scene()
    scene.write([rows(0, 20, hosts=20)])
    log = TOPICS.forward("n2")
    ended(scene, log)
    reader = reader_of(scene, monkeypatch, records_per_batch_max=1)
    offsets = scene_offsets(scene)
    assert [] == reader.partitions(offsets, offsets)
    scene.log.delete_topic(log)
    with pytest.raises(LogTrimmed, match="before the query had read it to its end"):
        reader.latestOffset()


def scene_offsets(scene: SourceScene) -> dict[str, Any]:
    """The beginnings of both logs, as in the checkpoint of a query that has started with them."""
    states = {topic: scene.log.describe(topic) for topic in (TOPICS.forward("n1"), TOPICS.forward("n2"))}
    return {topic: {"id": state.topic_id, "offset": state.begin} for topic, state in states.items()}


def test_a_checkpoint_of_another_table_or_source_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """To go on from it would skip rows. One of a build that named no table continues."""
    scene = new_scene()
    scene.write([rows(0, 3)])
    own = reader_of(scene, monkeypatch).initialOffset()
    assert {TARGET.name} == {each["table"] for each in own.values()}
    older = {topic: {"id": each["id"], "offset": each["offset"]} for topic, each in own.items()}
    assert [] == reader_of(scene, monkeypatch).partitions(older, older)
    other = {topic: {**each, "table": "db.other"} for topic, each in own.items()}
    for wrong, named in ((other, "of table db.other, not of db.t"), ({"raw": {"0": 17}}, "of another source")):
        with pytest.raises(CheckpointForeign, match=named):
            reader_of(scene, monkeypatch).partitions(wrong, wrong)


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        ("maxRecordsPerBatch", "0", "maxRecordsPerBatch"),
        ("startingOffsets", "newest", "newest"),
        ("start", "1", "start"),
    ],
)
def test_a_stream_source_with_a_wrong_option_says_so_when_it_is_asked(option: str, value: str, named: str) -> None:
    """PySpark stops a reader behind every error, and fails itself where there is none: nobody would see the option."""
    options = {"bootstrap": "nowhere", "table": "db.t", option: value}
    reader = HeadraceDataSource(options).streamReader(StructType())
    for ask in (reader.initialOffset, reader.latestOffset, lambda: reader.partitions({}, {})):
        with pytest.raises(OptionInvalid, match=named):
            ask()
    reader.stop()
