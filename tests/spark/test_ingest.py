"""Raw topics of a real broker through Spark into forward logs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from connectors.formats import kernel
from connectors.formats.parsed import FormatOptions
from connectors.log.topics import dlq
from consumers.membership.tables import TableLog
from consumers.replication.replica import Ignored
from headrace.workload import iot
from headrace.workload.checksum import checksums, compare, workload_checksums
from headrace.workload.encode import to_json_lines, to_line_protocol
from headrace.workload.workload import Workload
from pipeline.batches import SEQUENCE_BITS
from pipeline.failures import RawDataLost, explain
from pipeline.ingest import (
    RunOptions,
    SpeculationRefused,
    forward_writer,
    new_tally,
    prepare,
    raw_messages,
    run_ingest,
    start_query,
)
from schemas.tables import FieldType
from tests.spark.conftest import Station
from tests.spark.stored import forward_logs, messages, stored_tables, tables_of

FLEET = iot(trucks=40, duration_s=3_000, disorder=True)


def lines_of(workload: Workload, form: str, table: str) -> list[bytes]:
    """The rows of a table as text, a line each."""
    rows = workload.read(table)
    lines = to_line_protocol(table, rows) if form == "influx" else to_json_lines(rows)
    return [line.encode() for line in lines.to_pylist()]


def in_messages(lines: list[bytes], lines_per_message: int) -> list[bytes]:
    """Lines in messages of several."""
    return [b"\n".join(lines[at : at + lines_per_message]) for at in range(0, len(lines), lines_per_message)]


def assert_same(workload: Workload, station: Station, tables: tuple[str, ...], *, as_float: bool = False) -> None:
    """What replicas would hold is what was generated, by row counts and a checksum for each series."""
    expected = workload_checksums(workload, integers_as_float64=as_float)
    stored = stored_tables(station.log, station.topics)
    assert set(tables) == set(stored)
    for table in tables:
        found = checksums(stored[table], workload.tags, integers_as_float64=as_float)
        assert [] == compare(expected[table], found)


@pytest.mark.parametrize("lines_per_message", [1, 250])
def test_line_protocol_becomes_the_generated_rows(
    spark: SparkSession, station: Station, lines_per_message: int
) -> None:
    """Two tables, disordered, over several partitions and micro-batches: rows and points are exact, and nothing is rejected."""
    station.create_raw(partitions=3)
    lines = lines_of(FLEET, "influx", "readings") + lines_of(FLEET, "influx", "diagnostics")
    messages = in_messages(lines, lines_per_message)
    station.produce(messages, partitions=3)
    done = station.run(spark, station.job(), messages_per_batch_max=len(messages) // 2 + 1)
    counts = done.counts
    assert (FLEET.rows, FLEET.points, 0) == (counts.rows, counts.points, counts.rejected)
    assert done.batches > 1
    assert sum(map(len, messages)) == done.counts.bytes
    assert 0 == done.lag_records
    assert_same(FLEET, station, ("readings", "diagnostics"))
    assert [] == station.dead_letters()


def test_json_becomes_the_generated_rows(spark: SparkSession, station: Station) -> None:
    """Objects of one table, a few a message; numbers are floats."""
    station.create_raw(partitions=2)
    station.produce(in_messages(lines_of(FLEET, "json", "readings"), 3), partitions=2)
    job = station.job("json", FormatOptions(table="readings", tags=FLEET.tags))
    done = station.run(spark, job)
    assert (FLEET.rows_of("readings"), 0) == (done.counts.rows, done.counts.rejected)
    assert_same(FLEET, station, ("readings",), as_float=True)


def test_the_query_goes_on_where_it_stopped(spark: SparkSession, station: Station) -> None:
    """A second run reads only what came since; new columns extend the table, integers widen, clashes become dead letters."""
    station.create_raw(partitions=1)
    station.produce([b"t,host=a x=1i 1", b"t,host=b x=2i 2"], keys=[None, b"key"])
    first = station.run(spark, station.job())
    clash, broken = b't,host=a x="text" 5\nt,host=a x=5 6', b"\x00\xffbroken"
    station.produce(
        [b"t,host=a,rack=r x=2.5,y=true 3", b"t,host=a x=4i 4", clash, broken], keys=[None, None, b"k", b"\x01\xff"]
    )
    second = station.run(spark, station.job())
    third = station.run(spark, station.job())
    assert [(2, 0), (3, 2), (0, 0)] == [(run.counts.rows, run.counts.rejected) for run in (first, second, third)]
    rows = {row["time"]: row["x"] for row in stored_tables(station.log, station.topics)["t"].to_pylist()}
    assert {1: 1.0, 2: 2.0, 3: 2.5, 4: 4.0, 6: 5.0} == rows
    tables = TableLog(station.log, station.topics)
    tables.refresh()
    assert {"x": FieldType.FLOAT64, "y": FieldType.BOOL} == tables.catalogue.newest("db", "t").field_types()
    tables.close()
    letters = station.dead_letters()
    assert [(b"k", clash), (b"\x01\xff", broken)] == [(letter.key, letter.value) for letter in letters]
    headers = [dict(letter.headers) for letter in letters]
    assert [b"4", b"5"] == [header["__dlq.errors.offset"] for header in headers]
    assert [station.raw.encode()] * 2 == [header["__dlq.errors.topic"] for header in headers]
    assert b"the line has string" in headers[0]["__dlq.errors.reason"]


def test_a_micro_batch_that_is_run_again_changes_nothing(spark: SparkSession, station: Station) -> None:
    """Spark wrote a batch but not that it did: the batch is run again with its messages, and replicas drop every one of them."""
    station.create_raw(partitions=2)
    station.produce(lines_of(FLEET, "influx", "diagnostics"), partitions=2)
    job = station.job()
    station.run(spark, job)
    once = sum(map(len, forward_logs(station.log, station.topics).values()))
    commits = sorted((station.directory / f"checkpoint-{job.topic}-influx-db" / "commits").glob("*0*"))
    for commit in commits:
        commit.unlink()
    station.run(spark, job)
    logs = forward_logs(station.log, station.topics)
    assert 2 * once == sum(map(len, logs.values()))
    assert {Ignored.REPEATED: once} == tables_of(logs.values())[1]
    assert_same(FLEET, station, ("diagnostics",))


def test_a_micro_batch_that_is_run_again_gives_the_very_same_messages(spark: SparkSession, station: Station) -> None:
    """Byte for byte, positions included: query of the checkpoint, micro-batch, and in the sequence the partition of the raw topic."""
    station.create_raw(partitions=2)
    station.produce(lines_of(FLEET, "influx", "diagnostics"), partitions=2)
    job = station.job()
    station.run(spark, job)
    first = {group: [each.value for each in log] for group, log in forward_logs(station.log, station.topics).items()}
    positions = [message.position for message in messages(station.log, station.topics)]
    checkpoint = station.directory / f"checkpoint-{job.topic}-influx-db"
    for commit in (checkpoint / "commits").glob("*0*"):
        commit.unlink()
    station.run(spark, job)
    for group, log in forward_logs(station.log, station.topics).items():
        assert sorted(first[group]) == sorted(each.value for each in log[len(first[group]) :])
    query = json.loads((checkpoint / "metadata").read_text())["id"]
    assert {(query, 0)} == {(position.producer, position.batch) for position in positions}
    assert {0, 1} == {position.sequence >> SEQUENCE_BITS for position in positions}


def test_a_checkpoint_of_a_query_that_read_in_spark_itself_goes_on(spark: SparkSession, station: Station) -> None:
    """What the Kafka source of Spark wrote down holds, whoever reads the messages: only those that came since are taken."""
    station.create_raw(partitions=2)
    job = station.job()
    run = RunOptions(str(station.directory / "older"), True)
    prepare(job, run, lambda _line: None)
    station.produce([b"t,host=a x=1 1", b"t,host=b x=1 1"], partitions=2)
    older = raw_messages(spark, job, 100).writeStream.format("noop").option("checkpointLocation", run.checkpoint)
    older.trigger(availableNow=True).start().awaitTermination()
    station.produce([b"t,host=c x=2 2"])
    done = run_ingest(spark, job, run)
    assert (1, 1) == (done.counts.rows, done.batches)
    assert [2] == stored_tables(station.log, station.topics)["t"]["time"].to_pylist()


def test_a_source_that_is_not_known_ends_the_query_in_one_line(spark: SparkSession, station: Station) -> None:
    """A plan without the Kafka source's stretches is never read as nothing: the query fails, and says what it found."""
    checkpoint = str(station.directory / "checkpoint")
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    query = forward_writer(rate, station.job(), new_tally(spark), checkpoint).start()
    with pytest.raises(StreamingQueryException) as raised:
        query.awaitTermination(60)
    failure = explain(raised.value, "raw")
    assert not failure.retriable
    assert "in an unknown way" in failure.message
    assert "\n" not in failure.message


def test_raw_messages_that_were_trimmed_before_they_were_read_stop_the_query(
    spark: SparkSession, station: Station
) -> None:
    """Data loss is never passed over: the query ends with what happened and what can be done."""
    station.create_raw(partitions=1)
    station.produce([b"t,host=a x=1 1"])
    station.run(spark, station.job())
    station.produce([b"t,host=a x=2 2", b"t,host=a x=3 3"])
    station.log.trim(station.raw, 2)
    with pytest.raises(RawDataLost, match="no longer holds") as raised:
        station.run(spark, station.job())
    assert "checkpoint" in raised.value.action


def test_workers_on_this_machine_run_the_code_as_it_lies_here(spark: SparkSession, tmp_path: Path) -> None:
    """Not out of an archive, where nothing compiled is kept, and not what has the name of a package of ours where the command was started."""
    answer = tmp_path / "answer"

    def tell(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            from connectors.formats import kernel

            answer.write_text(f"{kernel.__file__} {sys.flags.safe_path}")
            yield batch

    spark.range(1).mapInArrow(tell, "id long").write.format("noop").mode("append").save()  # type: ignore[arg-type]
    assert f"{kernel.__file__} True" == answer.read_text()


def test_missing_topics_are_made(spark: SparkSession, station: Station) -> None:
    """The raw topic and the dead-letter topic are there after a run; dead letters do not expire, and the broker stamps the time."""
    done = station.run(spark, station.job())
    assert (0, 0) == (done.counts.rows, done.batches)
    with AdminClient({"bootstrap.servers": station.bootstrap}) as admin:
        resource = ConfigResource(ConfigResource.Type.TOPIC, dlq(station.raw))
        settings = {
            entry.name: entry.value for entry in admin.describe_configs([resource])[resource].result(10).values()
        }
    assert ("-1", "-1", "LogAppendTime") == tuple(
        settings[name] for name in ("retention.ms", "retention.bytes", "message.timestamp.type")
    )
    assert 0 == station.log.describe(station.raw).end


def test_speculation_is_refused(spark: SparkSession, station: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that may run a task twice at once gets no query."""
    conf = spark.sparkContext._conf
    assert conf is not None
    conf.set("spark.speculation", "true")
    try:
        run = RunOptions(str(station.directory / "checkpoint"), True)
        prepare(station.job(), run, lambda _line: None)
        with pytest.raises(SpeculationRefused, match="speculation"):
            start_query(spark, station.job(), run)
    finally:
        conf.set("spark.speculation", "false")


def test_a_large_message_passes(spark: SparkSession, station: Station) -> None:
    """Twenty megabytes in one raw message, good lines and a bad one: the rows are written and the dead letter is whole."""
    station.run(spark, station.job())
    good = b"\n".join(b't,host=h%d note="%s" %d' % (number % 9, b"z" * 1_000, number) for number in range(20_000))
    whole = good + b"\nbroken"
    producer = Producer({"bootstrap.servers": station.bootstrap, "message.max.bytes": 64 * 1024 * 1024})
    producer.produce(station.raw, whole)
    assert producer.flush(30) == 0
    done = station.run(spark, station.job())
    assert (20_000, 1) == (done.counts.rows, done.counts.rejected)
    [letter] = station.dead_letters()
    assert whole == letter.value


def test_the_session_is_small_quiet_and_local(spark: SparkSession) -> None:
    """Two threads on loopback, UTC, no page, one gigabyte, no jars fetched while it runs."""
    conf = dict(spark.sparkContext.getConf().getAll())
    expected = {
        "spark.master": "local[2]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
    }
    assert expected == {name: conf[name] for name in expected}
    assert "UTC" == spark.conf.get("spark.sql.session.timeZone")
    assert all(Path(urlsplit(jar).path).is_file() for jar in conf["spark.jars"].split(","))
    assert "spark.jars.packages" not in conf
