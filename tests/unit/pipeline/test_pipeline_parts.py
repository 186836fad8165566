"""The parts of the pipeline that need no Spark: checkpoint, counts, lag, causes of failure, the shipped package, settings of Java clients."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.connectors.files import DirectoryHeld
from headrace.connectors.kafka.class_data_archive import archive_options
from headrace.connectors.kafka.jars import JarSet
from headrace.connectors.kafka.java import OPTIONS_VARIABLE
from headrace.connectors.log.kafka_partitions import PartitionedTopic
from headrace.connectors.log.kafka_settings import java_settings
from headrace.connectors.log.port import LogUnavailable
from headrace.pipeline import ingest, schema_match, session
from headrace.pipeline.checkpoint import (
    CheckpointBusy,
    CheckpointForeign,
    check_sink,
    default_checkpoint,
    held_checkpoint,
    make_batch_durable,
)
from headrace.pipeline.checkpoint_file import local_folder
from headrace.pipeline.failures import GroupEnded, KafkaLost, QueryFailed, RawDataLost, explain, naming_log
from headrace.pipeline.ingest import RunOptions, forward_writer
from headrace.pipeline.ingest_progress import Counts, RunCounts, observed_counts, position_of, progress_of
from headrace.pipeline.package import build_package
from headrace.pipeline.raw_lag import RawLag
from headrace.pipeline.rebatch import rebatch
from headrace.pipeline.schema_match import Columns, oldest_match, rejected_columns
from headrace.pipeline.session import SparkUnavailable, spark_archive
from headrace.pipeline.sink_records import dead_letters
from headrace.schemas import tables
from headrace.schemas.tables import FieldType, SchemaError, TableSchema, TypeClash, plan_change
from tests.unit.pipeline.harness import influx_job, raw_batch


def test_a_checkpoint_is_made_with_its_parents_and_held_once(tmp_path: Path) -> None:
    """A second opener is refused while the first holds it, and succeeds after."""
    place = str(tmp_path / "a" / "b")
    with held_checkpoint(place, influx_job()) as held:
        assert held is not None
        assert held.log_file.parent.is_dir()
        with pytest.raises(DirectoryHeld), held_checkpoint(place, influx_job()):
            pass
    with held_checkpoint(place, influx_job()) as held:
        assert held is not None


@pytest.mark.parametrize(
    "change", [{"cluster": "other"}, {"topic": "other"}, {"database": "other"}, {"format": "json"}]
)
def test_a_checkpoint_of_another_job_is_refused(tmp_path: Path, change: dict[str, str]) -> None:
    """Cluster, topic, database and format must be those that the checkpoint began with.

    The message names what differs.
    """
    with held_checkpoint(str(tmp_path), influx_job()):
        pass
    other = replace(influx_job(), **change)  # type: ignore[arg-type]
    with pytest.raises(CheckpointForeign, match=next(iter(change))), held_checkpoint(str(tmp_path), other):
        pass


def test_a_sink_keeps_its_checkpoint(tmp_path: Path) -> None:
    """Another table would lack what the checkpoint has passed, and so would this one what the other gets."""
    for _ in range(2):
        check_sink(str(tmp_path / "deep" / "ck"), "c", "d.t")
    for cluster, table in (("c", "d.other"), ("x", "d.t")):
        with pytest.raises(CheckpointForeign, match=r"table d\.t of cluster c"):
            check_sink((tmp_path / "deep" / "ck").as_uri(), cluster, table)
    # Without one, and where it is not a local folder, Spark keeps it alone.
    for elsewhere in ("", "hdfs://host/ck"):
        check_sink(elsewhere, "c", "d.other")


def test_a_run_waits_for_a_checkpoint_that_an_old_jvm_still_writes(tmp_path: Path) -> None:
    """The lock that a JVM inherits outlives its driver: the next run reports that it waits, and fails after a timeout."""
    with held_checkpoint(str(tmp_path), influx_job()) as held:
        assert held is not None
        inherited = os.dup(held.descriptors[0])
    notices: list[str] = []
    try:
        busy = held_checkpoint(str(tmp_path), influx_job(), wait_s=0.2, notify=notices.append)
        with pytest.raises(CheckpointBusy, match="Java process"), busy:
            pass
        assert 1 == len(notices)
    finally:
        fcntl.flock(inherited, fcntl.LOCK_UN)
        os.close(inherited)
    with held_checkpoint(str(tmp_path), influx_job()) as held:
        assert held is not None


def test_a_checkpoint_elsewhere_is_left_to_spark() -> None:
    """A URL of another file system has no local folder; plain paths and file URLs have."""
    assert local_folder("hdfs://name/checkpoints/a") is None
    assert Path("/x/y") == local_folder("file:///x/y")
    assert Path.cwd() / "x" == local_folder("x")
    with held_checkpoint("s3a://bucket/a", influx_job()) as held:
        assert held is None


def test_each_topic_and_database_has_a_checkpoint_of_its_own(tmp_path: Path) -> None:
    """The default path is under the cluster's folder, without special characters."""
    default = default_checkpoint(tmp_path, replace(influx_job(), topic="c.ingest.a", database="d/../b"))
    assert tmp_path / "c" / "ingest" / "c.ingest.a-d_.._b" == Path(default)


def test_a_batch_is_durable_before_its_messages_are_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The query's name, the batch's offsets and both folders are synced, also of a folder that a Spark cluster shares.

    Spark would use the numbers of several batches again after a power cut, and replicas drop batches that are older.
    """
    (tmp_path / "offsets").mkdir()
    for name in ("metadata", "offsets/7", "offsets/8"):
        (tmp_path / name).write_text("x")
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    records = MagicMock()
    records.sparkSession.sparkContext.master = "spark://127.0.0.1:7077"
    forward_writer(records, influx_job(), RunOptions(str(tmp_path)))
    [forward] = records.writeStream.foreachBatch.call_args.args
    # The first thing that it asks of Kafka.
    monkeypatch.setattr(ingest, "cluster_access", MagicMock(side_effect=LogUnavailable("away")))
    with pytest.raises(LogUnavailable):
        forward(MagicMock(), 7)
    assert {str(tmp_path / name) for name in ("", "metadata", "offsets", "offsets/7")} == set(synced)
    # Another file system.
    make_batch_durable("hdfs:///checkpoint", 7)
    make_batch_durable(str(tmp_path / "none"), 7)


def report(batch: int, rows: int, *, newest_ms: int | None = 4_000, reasons: Sequence[str] = ()) -> dict[str, Any]:
    """A report of Spark about a micro-batch of one message a row."""
    return {
        "batchId": batch,
        "sources": [{"endOffset": '{"t":{"1":7,"0":5}}'}],
        "observedMetrics": {
            "headrace": {"messages": rows, "rows": rows, "points": 2 * rows, "rejected": 0},
            "reading": {"bytes": 10 * rows, "newest_ms": newest_ms, "reasons": list(reasons)},
        },
    }


def test_a_micro_batch_counts_once() -> None:
    """Spark's newest report is read again and again; a batch without messages is none."""
    run = RunCounts()
    for each in (report(0, 0, newest_ms=None), report(1, 3), report(1, 3), report(2, 4), report(1, 3)):
        run.add(each)
    assert (Counts(7, 7, 14, 0, 70, 4_000), 2, 2) == (run.counts, run.batches, run.newest_batch)
    assert {0: 5, 1: 7} == position_of(report(1, 3))


def test_reasons_of_all_tasks_are_added_up() -> None:
    """Each task reports the first reasons that it met, with their lines."""
    counts = observed_counts(report(0, 1, reasons=['{"a": 2, "b": 1}', '{"a": 3}']))
    assert {"a": 5, "b": 1} == counts.reasons
    assert Counts() == observed_counts({"batchId": 4})


class Ends:
    """The ends of a topic, as Kafka would answer; None: it does not."""

    def __init__(self, ends: dict[int, int] | None) -> None:
        self.ends = ends
        self.asked = 0

    def state(self, topic: str) -> PartitionedTopic:
        """See PartitionLog."""
        self.asked += 1
        if self.ends is None:
            raise LogUnavailable("away")
        return PartitionedTopic("id", self.ends)


def test_lag_is_counted_over_partitions_and_unknown_without_an_answer() -> None:
    """Records behind, seconds from the newest message read, 0 at the end, -1 while unknown; asked once a second."""
    ends, clock = Ends({0: 9, 1: 7, 2: 3}), [0.0]
    lag = RawLag("t", ends, lambda: clock[0])  # type: ignore[arg-type]
    assert [-1, 7, 0] == [lag.records(position) for position in (None, {0: 5, 1: 7}, {0: 9, 1: 7, 2: 3})]
    assert 1 == ends.asked
    ends.ends, clock[0] = None, 1.0
    assert -1 == lag.records({0: 5})
    run = RunCounts()
    assert -1 == progress_of(run, 7, 6_000).lag_seconds
    run.add(report(0, 1))
    assert [(7, 2.0), (0, 0.0), (-1, -1)] == [
        (progress.lag_records, progress.lag_seconds)
        for progress in (progress_of(run, lag, 6_000) for lag in (7, 0, -1))
    ]


@pytest.mark.parametrize(
    ("trace", "kind", "retriable"),
    [
        (
            "java.lang.IllegalStateException: Partition t-0's offset was changed. Some data may have been lost",
            RawDataLost,
            False,
        ),
        ("x\nheadrace.connectors.log.port.LogUnavailable: Kafka at b does not answer (check)\n", KafkaLost, True),
        ("org.apache.kafka.common.errors.TimeoutException: Timeout of 60000ms expired", KafkaLost, True),
        (
            "x\nheadrace.pipeline.failures.GroupEnded: a data group ended while its rows were written\n",
            GroupEnded,
            True,
        ),
        ("org.apache.kafka.common.errors.RecordTooLargeException: The message is 99 bytes", QueryFailed, False),
        ("x\nconsumers.membership.cluster.NoCluster: cluster 'c' does not exist\n", QueryFailed, False),
        ("Caused by: java.io.IOException: No space left on device", QueryFailed, False),
        ("", QueryFailed, False),
    ],
)
def test_a_failed_query_has_its_cause_in_one_line(trace: str, kind: type[QueryFailed], retriable: bool) -> None:
    """Each cause has its class, is retriable or not, and names no stack frame."""
    failure = explain(RuntimeError(trace), "raw")
    assert (kind, retriable) == (type(failure), failure.retriable)
    assert "\n" not in failure.message


def test_the_message_of_the_cause_is_passed_on() -> None:
    """The message of a worker or of the operating system is part of the error."""
    assert (
        "No space left"
        in explain(RuntimeError("Caused by: java.io.IOException: No space left on device"), "raw").message
    )
    python = """[STREAM_FAILED] Query [id = 1] terminated with exception: [FOREACH_BATCH_USER_FUNCTION_ERROR] x
Return Message: Traceback (most recent call last):
  File "a.py", line 1, in call
    raise e
  File "b.py", line 7, in _beyond

OverflowError: Python int too large to convert to C long

\tat org.apache.spark.sql.X.f(X.scala:1)
Caused by: py4j.Py4JException: An exception was raised by the Python Proxy. Return Message: Traceback (most recent
"""
    failed = explain(RuntimeError(python), "raw")
    assert failed.message == "the query ended: OverflowError: Python int too large to convert to C long"
    with pytest.raises(QueryFailed) as raised, naming_log(Path("/state/spark.log")):
        raise failed
    assert raised.value.action == "look into /state/spark.log"
    own = explain(
        RuntimeError("x\nheadrace.consumers.membership.cluster.NoCluster: cluster 'c' does not exist\n"), "raw"
    )
    assert "cluster 'c' does not exist" == own.message


def test_the_oldest_version_that_holds_the_columns_is_chosen() -> None:
    """A later version would do as well, but a repeated batch must name the one that its first attempt named."""
    first = TableSchema("d", "t", 1, ("host",), (("x", FieldType.INT64),))
    second = TableSchema("d", "t", 2, ("host",), (("x", FieldType.INT64), ("y", FieldType.BOOL)))
    third = TableSchema("d", "t", 3, ("host", "rack"), (("x", FieldType.FLOAT64), ("y", FieldType.BOOL)))
    versions = (first, second, third)
    assert first == oldest_match(versions, Columns(("host",), (("x", FieldType.INT64),)))
    assert second == oldest_match(versions, Columns((), (("y", FieldType.BOOL),)))
    assert third == oldest_match(versions, Columns(("host",), (("x", FieldType.FLOAT64),)))
    assert oldest_match(versions, Columns((), (("x", FieldType.STRING),))) is None


def test_only_the_columns_that_clash_are_refused() -> None:
    """Each refused column has its reason; the others are written."""
    table = TableSchema("d", "t", 1, ("host",), (("x", FieldType.INT64),))
    columns = Columns(("host", "x"), (("X", FieldType.INT64), ("new", FieldType.BOOL)))
    assert {"x", "X"} == set(rejected_columns(table, columns))


NAMES = st.sampled_from(["a", "A", "b", "c", "t", "T", "f", "1\0", "d", "e"])


@given(st.sets(NAMES, max_size=3), st.dictionaries(NAMES, st.sampled_from(list(FieldType))), st.integers(2, 6))
def test_columns_are_rejected_as_if_they_came_one_by_one(
    tags: set[str], fields: dict[str, FieldType], most: int
) -> None:
    """In order, each on top of the accepted ones, whatever clashes, and up to the most columns of a table."""
    table = TableSchema("d", "t", 1, ("t",), (("f", FieldType.FLOAT64),))
    columns = Columns(tuple(sorted(tags - fields.keys())), tuple(sorted(fields.items())))
    kinds: dict[str, FieldType | None] = {**dict.fromkeys(columns.tags), **dict(columns.fields)}
    accepted: dict[str, FieldType | None] = {}
    with patch.object(tables, "COLUMNS_MAX", most), patch.object(schema_match, "COLUMNS_MAX", most):
        for name, kind in kinds.items():
            wanted = {**accepted, name: kind}
            fields_of = {each: one for each, one in wanted.items() if one is not None}
            with suppress(SchemaError, TypeClash):
                plan_change(table, [each for each, one in wanted.items() if one is None], fields_of)
                accepted = wanted
        assert kinds.keys() - accepted.keys() == rejected_columns(table, columns).keys()


def test_names_without_end_are_rejected_in_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a device that makes a field of each reading: a task took minutes for what it refuses."""
    steps = MagicMock(side_effect=plan_change)
    monkeypatch.setattr(schema_match, "plan_change", steps)
    fields = tuple((f"k{number:05}", FieldType.FLOAT64) for number in range(6_000))
    full = TableSchema("d", "t", 1, (), fields[5:4_101])
    for table, left in ((TableSchema("d", "t"), 6_000 - 4_096), (full, 6_000 - 4_096)):
        rejected = rejected_columns(table, Columns((), fields))
        assert left == len(rejected)
        assert all("4,097 columns" in reason for reason in rejected.values())
    assert steps.call_count < 100
    # Of names with a fault of their own the reason is theirs alone.
    clashing = (("K00006", FieldType.BOOL), ("k00005", FieldType.STRING), *fields[4_200:4_210])
    reasons = rejected_columns(full, Columns((), clashing))
    assert [12, 10] == [len(reasons), sum("4,097 columns" in reason for reason in reasons.values())]
    assert "only in case" in reasons["K00006"]
    assert "cannot take string" in reasons["k00005"]


def test_dead_letters_of_a_batch_are_made_at_once() -> None:
    """One record for each bad message, in order, with headers of its own."""
    raw = raw_batch([b"a", b"b", b"c"], first_offset=40, keys=[b"k", None, b"\x00"])
    rejected = pa.table({"message": [0, 2, 2], "line": [3, 0, 5], "reason": ["one", "two", "three"]})
    records = dead_letters("raw", raw, rejected).to_pylist()
    assert [("dlq.raw", b"k", b"a"), ("dlq.raw", b"\x00", b"c")] == [
        (record["topic"], record["key"], record["value"]) for record in records
    ]
    headers = [{header["key"]: header["value"] for header in record["headers"]} for record in records]
    assert [b"one", b"two (and 1 more bad lines)"] == [each["__dlq.errors.reason"] for each in headers]
    assert [(b"40", b"4"), (b"42", b"1")] == [
        (each["__dlq.errors.offset"], each["__dlq.errors.line"]) for each in headers
    ]


def test_the_package_is_complete_and_reproducible(tmp_path: Path) -> None:
    """Code, Avro schemas and Ivy files of our packages; equal content gives an equal file."""
    first, second = build_package(tmp_path), build_package(tmp_path / "..")
    try:
        assert (first.name, first.read_bytes()) == (second.name, second.read_bytes())
    finally:
        second.unlink()
    names = set(zipfile.ZipFile(first).namelist())
    assert {
        "headrace/schemas/forward.avsc",
        "headrace/connectors/kafka/ivy.xml",
        "headrace/pipeline/ingest_task.py",
        "headrace/producers/router.py",
    } <= names
    assert {"pyspark_headrace.py"} == {name for name in names if not name.startswith("headrace/")}


def test_the_package_works_from_the_zip(tmp_path: Path) -> None:
    """A Python that has nothing but the zip imports the worker's code and reads the schemas out of it."""
    package = build_package(tmp_path)
    program = (
        f"import sys; sys.path.insert(0, {str(package)!r})\n"
        "import headrace.pipeline.ingest_task, headrace.schemas.framing\n"
        "assert '.zip' in headrace.schemas.framing.__file__, headrace.schemas.framing.__file__\n"
        "assert len(headrace.schemas.framing.codec('forward').prefix) == 10\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False, timeout=120
    )
    assert (0, "") == (done.returncode, done.stderr)


def test_settings_that_reach_the_broker_hold_for_java_clients() -> None:
    """librdkafka's names become Java's; tuning is left out."""
    given = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": 'us"er',
        "sasl.password": "pa\\ss",
        "ssl.ca.location": "/etc/ca.pem",
        "queue.buffering.max.kbytes": "5",
    }
    jaas = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="us\\"er" password="pa\\\\ss";'
    assert {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": jaas,
        "ssl.truststore.location": "/etc/ca.pem",
        "ssl.truststore.type": "PEM",
    } == java_settings(given)


def test_the_class_archive_is_used_only_where_it_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each Java and each Spark has an archive of its own in its environment.

    Without it the JVM starts without any option about it.
    """
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    java = tmp_path / "java"
    java.write_bytes(b"program")
    jars = JarSet(tmp_path, {})
    archive = spark_archive(jars, java)
    assert archive.is_relative_to(tmp_path)
    assert [] == archive_options(spark_archive(jars, java))
    archive.parent.mkdir(exist_ok=True)
    archive.touch()
    assert f"-XX:SharedArchiveFile={archive}" in archive_options(spark_archive(jars, java))
    java.write_bytes(b"another program")
    assert archive != spark_archive(jars, java)
    assert [] == archive_options(spark_archive(jars, java))


@given(
    lengths=st.lists(st.none() | st.integers(0, 30), max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=12),
    messages_max=st.integers(1, 20),
    bytes_max=st.integers(1, 200),
)
def test_rebatch_keeps_the_order_and_depends_on_the_messages_alone(
    lengths: Sequence[int | None], cuts: Sequence[int], messages_max: int, bytes_max: int
) -> None:
    """Every message once and in order; a batch ends with the message that fills it, for any pieces on input."""
    values = [None if length is None else b"v" * length for length in lengths]
    whole = pa.record_batch(
        {"value": pa.array(values, pa.binary()), "number": pa.array(range(len(values)), pa.int64())}
    )
    borders = [0, *sorted(min(cut, len(values)) for cut in cuts), len(values)]
    pieces = [whole.slice(begin, end - begin) for begin, end in pairwise(borders)]
    joined = list(rebatch(pieces, messages_max, bytes_max))
    assert list(rebatch([whole], messages_max, bytes_max)) == joined
    assert list(range(len(values))) == [number for batch in joined for number in batch["number"].to_pylist()]
    for batch in joined:
        sizes = [len(value or b"") for value in batch["value"].to_pylist()]
        assert len(sizes) <= messages_max
        assert sum(sizes[:-1]) < bytes_max
        assert batch is joined[-1] or len(sizes) == messages_max or sum(sizes) >= bytes_max


def test_java_options_of_the_environment_reach_spark_but_for_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words with spaces stay words.

    A heap size, which Spark refuses with a page of text, is refused by a line that names the right setting.
    """
    monkeypatch.setenv(OPTIONS_VARIABLE, "-Xss1m '-Dplant=north hall'")
    assert " -Xss1m '-Dplant=north hall'" == session._java_options()
    monkeypatch.setenv(OPTIONS_VARIABLE, "-Xss1m -Xmx300m")
    with pytest.raises(SparkUnavailable, match="-Xmx300m") as refused:
        session._java_options()
    assert "ingest.driver_memory_mb" in str(refused.value.action)
