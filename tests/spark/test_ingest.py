"""Ingest from raw topics of a real broker through Spark into forward logs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from headrace.bench.spark_ingest import kafka_messages
from headrace.connectors.formats import kernel
from headrace.connectors.formats.interface import FormatOptions
from headrace.connectors.kafka.broker import BrokerInfo
from headrace.connectors.log.append import append_one
from headrace.connectors.log.port import read_to_end
from headrace.connectors.log.topics import dlq
from headrace.consumers.membership.schema_log import SchemaLog
from headrace.consumers.replication.actions import Ignored
from headrace.pipeline.cluster_access import ClusterAccess
from headrace.pipeline.failures import RawDataLost, TooManyRejected
from headrace.pipeline.ingest import RunOptions, SpeculationRefused, prepare, sink_options, start_query
from headrace.pipeline.ingest_run import run_ingest
from headrace.pipeline.ingest_task import SEQUENCE_BITS
from headrace.schemas.tables import FieldType
from headrace.workload import iot
from headrace.workload.checksum import checksums, compare, workload_checksums
from headrace.workload.encode import to_json_lines, to_line_protocol
from headrace.workload.workload import Workload
from tests.spark.conftest import IngestCluster, add_partitions, new_ingest_cluster
from tests.spark.stored import forward_logs, messages, stored_tables, tables_of
from tests.unit.membership.growing import SLOTS, TOPICS, Growing
from tests.waiting import eventually

FLEET = iot(trucks=40, duration_s=1_500, disorder=True)
ENDED_TOPIC_WAIT_S = 10.0
"""Every task of the micro-batch waits as long for a topic that is gone."""


def lines_of(workload: Workload, form: str, table: str) -> list[bytes]:
    """The rows of a table as text, one line each."""
    rows = workload.read(table)
    lines = to_line_protocol(table, rows) if form == "influx" else to_json_lines(rows)
    return [line.encode() for line in lines.to_pylist()]


def in_messages(lines: list[bytes], lines_per_message: int) -> list[bytes]:
    """Lines joined to messages of several lines."""
    return [b"\n".join(lines[at : at + lines_per_message]) for at in range(0, len(lines), lines_per_message)]


def assert_same(workload: Workload, cluster: IngestCluster, tables: tuple[str, ...], *, as_float: bool = False) -> None:
    """The content of the replicas equals the generated rows, by row counts and a checksum for each series."""
    expected = workload_checksums(workload, integers_as_float64=as_float)
    stored = stored_tables(cluster.log, cluster.topics)
    assert set(tables) == set(stored)
    for table in tables:
        found = checksums(stored[table], workload.tags, integers_as_float64=as_float)
        assert [] == compare(expected[table], found)


@pytest.mark.slow(8)
@pytest.mark.parametrize("lines_per_message", [1, 250])
def test_line_protocol_becomes_the_generated_rows(
    spark: SparkSession, cluster: IngestCluster, lines_per_message: int
) -> None:
    """Two disordered tables over several partitions and micro-batches: exact rows and points, and none
    rejected.
    """
    cluster.create_raw(partitions=3)
    lines = lines_of(FLEET, "influx", "readings") + lines_of(FLEET, "influx", "diagnostics")
    messages = in_messages(lines, lines_per_message)
    cluster.produce(messages, partitions=3)
    done = cluster.run(spark, cluster.job(), messages_per_batch_max=len(messages) // 2 + 1)
    counts = done.counts
    assert (FLEET.rows, FLEET.points, 0) == (counts.rows, counts.points, counts.rejected)
    assert done.batches > 1
    assert sum(map(len, messages)) == done.counts.bytes
    assert 0 == done.lag_records
    assert_same(FLEET, cluster, ("readings", "diagnostics"))
    assert [] == cluster.dead_letters()


def test_json_becomes_the_generated_rows(spark: SparkSession, cluster: IngestCluster) -> None:
    """JSON objects of one table, several in each message; numbers are floats."""
    cluster.create_raw(partitions=2)
    cluster.produce(in_messages(lines_of(FLEET, "json", "readings"), 3), partitions=2)
    job = cluster.job("json", FormatOptions(table="readings", tags=FLEET.tags))
    done = cluster.run(spark, job)
    assert (FLEET.rows_of("readings"), 0) == (done.counts.rows, done.counts.rejected)
    assert_same(FLEET, cluster, ("readings",), as_float=True)


def test_the_query_continues_where_it_stopped(spark: SparkSession, cluster: IngestCluster) -> None:
    """A second run reads only later messages; new columns extend the table, integers widen, clashes become
    dead letters.
    """
    cluster.create_raw(partitions=1)
    cluster.produce([b"t,host=a x=1i 1", b"t,host=b x=2i 2"], keys=[None, b"key"])
    first = cluster.run(spark, cluster.job())
    clash, broken = b't,host=a x="text" 5\nt,host=a x=5 6', b"\x00\xffbroken"
    cluster.produce(
        [b"t,host=a,rack=r x=2.5,y=true 3", b"t,host=a x=4i 4", clash, broken], keys=[None, None, b"k", b"\x01\xff"]
    )
    second = cluster.run(spark, cluster.job())
    third = cluster.run(spark, cluster.job())
    assert [(2, 0), (3, 2), (0, 0)] == [(run.counts.rows, run.counts.rejected) for run in (first, second, third)]
    rows = {row["time"]: row["x"] for row in stored_tables(cluster.log, cluster.topics)["t"].to_pylist()}
    assert {1: 1.0, 2: 2.0, 3: 2.5, 4: 4.0, 6: 5.0} == rows
    tables = SchemaLog(cluster.log, cluster.topics)
    tables.refresh()
    assert {"x": FieldType.FLOAT64, "y": FieldType.BOOL} == tables.catalogue.newest("db", "t").field_types()
    tables.close()
    letters = cluster.dead_letters()
    assert [(b"k", clash), (b"\x01\xff", broken)] == [(letter.key, letter.value) for letter in letters]
    headers = [dict(letter.headers) for letter in letters]
    assert [b"4", b"5"] == [header["__dlq.errors.offset"] for header in headers]
    assert [cluster.raw.encode()] * 2 == [header["__dlq.errors.topic"] for header in headers]
    assert b"the line has string" in headers[0]["__dlq.errors.reason"]


# `collect` of pyspark 4.1 leaves its socket to the garbage collector.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")
def test_a_wrong_format_ends_the_query(spark: SparkSession, cluster: IngestCluster) -> None:
    """One bad partition of two is within the limit of a batch. A bad batch is not committed, and adds no dead letter."""
    cluster.create_raw(partitions=2)
    bad = b"\n".join(b"nothing" for _ in range(1_100))
    good = b"\n".join(b"t,host=a x=%di %d" % (number, number) for number in range(1_500))
    cluster.produce([bad, good], partitions=2)
    done = cluster.run(spark, cluster.job())
    stored = stored_tables(cluster.log, cluster.topics)
    assert (1_500, 1_100) == (stored["t"].num_rows, done.counts.rejected)
    assert [bad] == [letter.value for letter in cluster.dead_letters()]
    cluster.produce([bad, b"t,host=a x=1i 9999"], partitions=2)
    with pytest.raises(TooManyRejected, match="1,100 of 1,101 lines") as raised:
        cluster.run(spark, cluster.job())
    assert f"headrace dlq show dlq.{cluster.raw}" in raised.value.action
    assert not raised.value.retriable
    assert [bad] == [letter.value for letter in cluster.dead_letters()]


def test_a_partition_is_added_while_the_first_micro_batch_is_unfinished(
    spark: SparkSession, cluster: IngestCluster
) -> None:
    """The restarted query writes that batch as it was planned, then the messages of the new partition; each row once."""
    cluster.create_raw(partitions=2)
    cluster.produce([b"t,host=a x=1i 1", b"t,host=b x=2i 2"], partitions=2)
    job = cluster.job()
    cluster.run(spark, job)
    checkpoint = cluster.directory / f"checkpoint-{job.topic}-influx-db"
    for commit in (checkpoint / "commits").glob("*0*"):
        commit.unlink()
    assert ["0"] == [each.name for each in (checkpoint / "offsets").iterdir() if not each.name.startswith(".")]
    add_partitions(cluster.bootstrap, cluster.raw, 3)
    cluster.produce([b"", b"t,host=a x=4i 4", b"t,host=c x=3i 3"], partitions=3)
    again, idle = cluster.run(spark, job), cluster.run(spark, job)
    assert (4, 0) == (again.counts.rows, idle.counts.rows)
    rows = stored_tables(cluster.log, cluster.topics)["t"].to_pylist()
    assert [1, 2, 3, 4] == sorted(row["x"] for row in rows)


def test_a_repeated_micro_batch_changes_nothing(spark: SparkSession, cluster: IngestCluster) -> None:
    """The batch was written but its commit was not: Spark repeats it, and replicas drop every message."""
    cluster.create_raw(partitions=2)
    cluster.produce(lines_of(FLEET, "influx", "diagnostics"), partitions=2)
    job = cluster.job()
    cluster.run(spark, job)
    once = sum(map(len, forward_logs(cluster.log, cluster.topics).values()))
    commits = sorted((cluster.directory / f"checkpoint-{job.topic}-influx-db" / "commits").glob("*0*"))
    for commit in commits:
        commit.unlink()
    cluster.run(spark, job)
    logs = forward_logs(cluster.log, cluster.topics)
    assert 2 * once == sum(map(len, logs.values()))
    assert {Ignored.REPEATED: once} == tables_of(logs.values())[1]
    assert_same(FLEET, cluster, ("diagnostics",))


@pytest.mark.slow(25)
@pytest.mark.parametrize("deleted", [False, True], ids=["closed", "deleted"])
def test_a_group_ends_while_a_micro_batch_is_written(
    spark: SparkSession,
    broker: BrokerInfo,
    cluster_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    deleted: bool,
) -> None:
    """Its topic takes no record any more: the rows are routed by the newest table, and the content is exact."""
    growing, lines = Growing(("n1", "n2", "n3"), 2), lines_of(FLEET, "influx", "diagnostics")
    before = growing.table
    with new_ingest_cluster(broker.bootstrap, cluster_name, tmp_path, 2, SLOTS) as cluster:
        topic = cluster.topics.forward("n3")
        cluster.create_raw(partitions=2)
        cluster.produce(lines[::2], partitions=2)
        cluster.run(spark, cluster.job())
        known = len(growing.log.topic(TOPICS.membership).records)
        growing.remove("n3")
        for record in growing.log.topic(TOPICS.membership).records[1:]:
            append_one(cluster.log, cluster.topics.membership, record.value, needed_format=3)
        assert known < len(growing.log.topic(TOPICS.membership).records)
        cluster.log.close_topic(topic)
        ended = read_to_end(cluster.log, topic, timeout_s=30)
        assert ended, "no row belonged to the group"
        if deleted:
            cluster.log.delete_topic(topic)
        # The table of the batch was read a moment before the change.
        stale, newest = [before], ClusterAccess.newest_table
        monkeypatch.setattr(ClusterAccess, "newest_table", lambda access: stale.pop() if stale else newest(access))
        cluster.produce(lines[1::2], partitions=2)
        cluster.run(spark, cluster.job(), sink_wait_s=ENDED_TOPIC_WAIT_S)
        assert [] == stale
        stored = tables_of([ended, *forward_logs(cluster.log, cluster.topics).values()])[0]
        expected = workload_checksums(FLEET)["diagnostics"]
        assert [] == compare(expected, checksums(stored["diagnostics"], FLEET.tags))
        assert [] == cluster.dead_letters()


def test_a_closed_topic_leaves_the_producer_alive(spark: SparkSession, cluster: IngestCluster) -> None:
    """It refuses each of many records as too large. Spark keeps the producer, and the next write uses it."""
    closed, open_ = cluster.topics.forward("n1"), cluster.topics.forward("n2")
    cluster.log.close_topic(closed)
    options = sink_options(cluster.job(), ENDED_TOPIC_WAIT_S)
    records = spark.range(0, 20_000, 1, 1).selectExpr("repeat('x', 200) AS value")
    writer = records.write.format("kafka").options(**options)
    with pytest.raises(Py4JJavaError, match="RecordTooLarge"):
        writer.option("topic", closed).save()
    records.limit(10).write.format("kafka").options(**options).option("topic", open_).save()
    assert 10 == len(read_to_end(cluster.log, open_, timeout_s=30))


def test_a_repeated_micro_batch_gives_identical_messages(spark: SparkSession, cluster: IngestCluster) -> None:
    """Equal byte for byte, positions included: query id of the checkpoint, micro-batch, and the partition of
    the raw topic in the sequence.
    """
    cluster.create_raw(partitions=2)
    cluster.produce(lines_of(FLEET, "influx", "diagnostics"), partitions=2)
    job = cluster.job()
    cluster.run(spark, job)
    first = {group: [each.value for each in log] for group, log in forward_logs(cluster.log, cluster.topics).items()}
    positions = [message.position for message in messages(cluster.log, cluster.topics)]
    checkpoint = cluster.directory / f"checkpoint-{job.topic}-influx-db"
    for commit in (checkpoint / "commits").glob("*0*"):
        commit.unlink()
    cluster.run(spark, job)
    for group, log in forward_logs(cluster.log, cluster.topics).items():
        assert sorted(first[group]) == sorted(each.value for each in log[len(first[group]) :])
    query = json.loads((checkpoint / "metadata").read_text())["id"]
    assert {(query, 0)} == {(position.producer, position.batch) for position in positions}
    assert {0, 1} == {position.sequence >> SEQUENCE_BITS for position in positions}


def test_a_checkpoint_of_sparks_own_kafka_source_continues(spark: SparkSession, cluster: IngestCluster) -> None:
    """The offsets that Spark's Kafka source has stored hold for the reader of ingest too: only later messages
    are read.
    """
    cluster.create_raw(partitions=2)
    job = cluster.job()
    run = RunOptions(str(cluster.directory / "older"), True)
    prepare(job, run, lambda _line: None)
    cluster.produce([b"t,host=a x=1 1", b"t,host=b x=1 1"], partitions=2)
    older = kafka_messages(spark, job).writeStream.format("noop").option("checkpointLocation", run.checkpoint)
    older.trigger(availableNow=True).start().awaitTermination()
    cluster.produce([b"t,host=c x=2 2"])
    done = run_ingest(spark, job, run)
    assert (1, 1) == (done.counts.rows, done.batches)
    assert [2] == stored_tables(cluster.log, cluster.topics)["t"]["time"].to_pylist()


def test_raw_messages_that_were_trimmed_before_their_read_stop_the_query(
    spark: SparkSession, cluster: IngestCluster
) -> None:
    """Data loss is never skipped: the query fails with the cause and an action."""
    cluster.create_raw(partitions=1)
    cluster.produce([b"t,host=a x=1 1"])
    cluster.run(spark, cluster.job())
    cluster.produce([b"t,host=a x=2 2", b"t,host=a x=3 3"])
    cluster.log.trim(cluster.raw, 2)
    with pytest.raises(RawDataLost, match="no longer holds") as raised:
        cluster.run(spark, cluster.job())
    assert "checkpoint" in raised.value.action


def test_a_raw_topic_created_again_stops_the_query(spark: SparkSession, cluster: IngestCluster) -> None:
    """It has more messages than were read of the other one, so that its offsets show nothing. One that is gone is
    not made again.
    """
    cluster.create_raw(partitions=1)
    cluster.produce([b"t,host=a x=1 1"])
    cluster.run(spark, cluster.job())
    with AdminClient({"bootstrap.servers": cluster.bootstrap}) as admin:
        admin.delete_topics([cluster.raw])[cluster.raw].result(10)
        eventually(lambda: cluster.raw not in admin.list_topics(timeout=10).topics, "a deleted topic")
        with pytest.raises(RawDataLost, match="deleted"):
            cluster.run(spark, cluster.job())
        assert cluster.raw not in admin.list_topics(timeout=10).topics
    cluster.create_raw(partitions=1)
    cluster.produce([b"t,host=a x=2 2", b"t,host=a x=3 3", b"t,host=a x=4 4"])
    with pytest.raises(RawDataLost, match="created again"):
        cluster.run(spark, cluster.job())


@pytest.mark.slow(7)
def test_local_workers_import_the_packages_of_this_repository(spark: SparkSession, tmp_path: Path) -> None:
    """Workers import neither from an archive, where nothing is compiled, nor a package of the same name in
    the current directory.
    """
    answer = tmp_path / "answer"

    def report(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            from headrace.connectors.formats import kernel

            answer.write_text(f"{kernel.__file__} {sys.flags.safe_path}")
            yield batch

    spark.range(1).mapInArrow(report, "id long").write.format("noop").mode("append").save()  # type: ignore[arg-type]
    assert f"{kernel.__file__} True" == answer.read_text()


def test_missing_topics_are_created(spark: SparkSession, cluster: IngestCluster) -> None:
    """A run creates the raw topic and the dead-letter topic; dead letters do not expire, and the broker sets
    their time.
    """
    done = cluster.run(spark, cluster.job())
    assert (0, 0) == (done.counts.rows, done.batches)
    with AdminClient({"bootstrap.servers": cluster.bootstrap}) as admin:
        resource = ConfigResource(ConfigResource.Type.TOPIC, dlq(cluster.raw))
        settings = {
            entry.name: entry.value for entry in admin.describe_configs([resource])[resource].result(10).values()
        }
    assert ("-1", "-1", "LogAppendTime") == tuple(
        settings[name] for name in ("retention.ms", "retention.bytes", "message.timestamp.type")
    )
    assert 0 == cluster.log.describe(cluster.raw).end


def test_speculation_is_refused(spark: SparkSession, cluster: IngestCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that may run a task twice at once is refused."""
    conf = spark.sparkContext._conf
    assert conf is not None
    conf.set("spark.speculation", "true")
    try:
        run = RunOptions(str(cluster.directory / "checkpoint"), True)
        prepare(cluster.job(), run, lambda _line: None)
        with pytest.raises(SpeculationRefused, match="speculation"):
            start_query(spark, cluster.job(), run)
    finally:
        conf.set("spark.speculation", "false")


def test_a_large_message_is_ingested(spark: SparkSession, cluster: IngestCluster) -> None:
    """One raw message of 20 MB with good lines and a bad one: the rows are written, and the dead letter is
    complete.
    """
    cluster.run(spark, cluster.job())
    good = b"\n".join(b't,host=h%d note="%s" %d' % (number % 9, b"z" * 1_000, number) for number in range(20_000))
    message = good + b"\nbroken"
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "message.max.bytes": 64 * 1024 * 1024})
    producer.produce(cluster.raw, message)
    assert producer.flush(30) == 0
    done = cluster.run(spark, cluster.job())
    assert (20_000, 1) == (done.counts.rows, done.counts.rejected)
    [letter] = cluster.dead_letters()
    assert message == letter.value


def test_the_session_is_small_quiet_and_local(spark: SparkSession) -> None:
    """Two threads on loopback, UTC, no web UI, one gigabyte, no jars fetched at run time."""
    conf = dict(spark.sparkContext.getConf().getAll())
    expected = {
        "spark.master": "local[2]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
    }
    assert expected == {name: conf[name] for name in expected}
    assert "UTC" == spark.conf.get("spark.sql.session.timeZone")
    assert all(Path(jar).is_file() for jar in conf["spark.driver.extraClassPath"].split(os.pathsep))
    assert "spark.jars.packages" not in conf
