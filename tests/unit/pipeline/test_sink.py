"""The sink of `format("headrace")`, without Spark."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import DataType, DecimalType, DoubleType, LongType, StringType, StructField, StructType
from pyspark.sql.types import TimestampNTZType as Timestamp

from headrace.connectors.formats.interface import TimeRangeError
from headrace.pipeline import sink, writer_cluster
from headrace.pipeline.data_source import HeadraceDataSource
from headrace.pipeline.sink import (
    BATCH_PROPERTY,
    QUERY_PROPERTY,
    SinkRefused,
    StreamWriter,
    TaskCommit,
    check_columns,
    confirm,
)
from headrace.pipeline.sink_task import TimeMissing, blocks
from headrace.pipeline.source_options import WriteOptions
from headrace.producers.acks import QuorumTooLarge
from headrace.producers.repeated_rows import RowsRepeat
from headrace.schemas.tables import TypeClash
from tests.spark.stored import forward_logs, stored_tables, tables_of
from tests.unit.pipeline.source_scene import TARGET, TOPICS, new_scene, rows

END_OF_BATCH = """
import pickle, sys
import pyspark.sql.worker.python_streaming_sink_runner
before = set(sys.modules)
source, schema, messages = pickle.load(sys.stdin.buffer)
source.streamWriter(schema, False).commit([pickle.loads(each) for each in messages], 1)
print(*{"confluent_kafka", "http.client", "polars", "pyarrow"} & set(sys.modules) - before)
"""
"""What Spark starts at the end of each batch."""


def stored(scene: Any) -> pa.Table:
    """The rows of the table in order of time."""
    return stored_tables(scene.log, TOPICS)["t"].sort_by("time")


def test_rows_arrive_typed_and_delivered() -> None:
    """Tags, fields of every type and times are stored as they were, and the count is that of the rows."""
    scene = new_scene()
    more = {"x": pa.array([0.5] * 6), "on": pa.array([True, None] * 3), "s": pa.array(["a"] * 6)}
    assert 6 == scene.write([rows(0, 6, **more)]).rows
    assert 4 == scene.write([rows(6, 3), rows(9, 1)], partition=1).rows
    table = stored(scene)
    assert list(range(10)) == table["n"].to_pylist()
    assert [number * 1_000 for number in range(10)] == table["time"].to_pylist()
    assert ["host"] == [field.name for field in table.schema if pa.types.is_dictionary(field.type)]
    assert [0.5] * 6 + [None] * 4 == table["x"].to_pylist()


def test_a_batch_that_runs_again_gives_the_same_messages() -> None:
    """Replicas drop every message of the second attempt, also after the table has got another column."""
    scene = new_scene()
    scene.write([rows(0, 50)], batch=3)
    first = scene.values()
    scene.cluster.tables.ensure("db", "t", ["host"], {})
    scene.write([rows(100, 1, later=pa.array([1.0]))], query="other")
    scene.write([rows(0, 50)], batch=3)
    assert set(first) == {value for value in scene.values() if scene.values().count(value) == 2}


def test_tasks_and_batches_have_positions_of_their_own() -> None:
    """Equal rows in another partition or another batch are other messages."""
    scene = new_scene()
    for batch, partition in ((0, 0), (0, 1), (1, 0)):
        scene.write([rows(0, 5)], batch=batch, partition=partition)
    values = scene.values()
    assert len(values) == len(set(values)) >= 3


def test_a_task_that_was_cut_differently_wins_in_order() -> None:
    """Of two values of one row the later one of the task wins, also when the first attempt had another first message."""
    scene = new_scene()
    first = rows(0, 1, hosts=1)
    other = rows(0, 1, hosts=1, n=pa.array([7], pa.int64()))
    last = rows(0, 1, hosts=1, n=pa.array([9], pa.int64()))
    for attempt in ([first, last], [other, last]):
        scene.write(
            [pa.RecordBatch.from_pydict(dict(zip(part.schema.names, part.columns, strict=True))) for part in attempt]
        )
    assert [9] == stored(scene)["n"].to_pylist()


@pytest.mark.parametrize(
    ("batch", "error"),
    [
        (rows(0, 2, time=pa.array([1, None], pa.timestamp("us"))), TimeMissing),
        (rows(0, 2, time=pa.array([1, 2], pa.int64())), TimeRangeError),
        (rows(0, 2, n=pa.array(["a", "b"])), TypeClash),
    ],
)
def test_rows_that_no_table_takes_are_refused(batch: pa.RecordBatch, error: type[Exception]) -> None:
    """Null times, times finer than the table keeps, and types that clash leave nothing in the logs."""
    scene = new_scene()
    scene.write([rows(0, 2)])
    before = scene.values()
    with pytest.raises(error):
        scene.write([batch], batch=1)
    assert before == scene.values()


def test_rows_of_a_new_table_that_would_replace_each_other_are_refused() -> None:
    """Without tags all rows are one series: of those that share a time one would be left, and nobody would know.

    Also by the second attempt of a task, when another one has made the table.
    """
    scene = new_scene()
    batch = rows(0, 6, time=pa.array([0, 0, 1, 1, 2, 3], pa.timestamp("us")))
    new = replace(TARGET, table="new")
    for _attempt in range(2):
        with pytest.raises(RowsRepeat, match=r"2 of 6 rows for the new table db\.new"):
            scene.write([batch], target=new, tags=(), makes_table=True)
        assert [] == scene.values()
        scene.cluster.tables.ensure_database("db")
        scene.cluster.tables.ensure("db", "new", (), {})
    # Where the table was there, to replace rows is what it is for.
    assert 6 == scene.write([batch], target=new, tags=()).rows


def test_tasks_of_a_new_table_whose_rows_replace_each_other_end_with_an_error() -> None:
    """Each of them has one row of each time, as with a partition for each series: the driver compares them."""
    scene = new_scene()
    new = replace(TARGET, table="new")
    options = WriteOptions(new, makes_table=True)
    written = [TaskCommit(scene.write([rows(0, 4)], target=new, tags=(), makes_table=True)) for _task in range(2)]
    confirm(options, [*written[:1]])
    with pytest.raises(RowsRepeat, match=r"rows for the new table db\.new share a time"):
        confirm(options, [*written])


def test_any_batch_of_a_stream_may_make_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one often has no rows, as from the source `rate`, or from the end of a topic."""
    scene = new_scene()
    names = {QUERY_PROPERTY: "q", BATCH_PROPERTY: "1"}
    context = SimpleNamespace(getLocalProperty=names.get, partitionId=lambda: 0)
    monkeypatch.setattr(sink, "TaskContext", SimpleNamespace(get=lambda: context))
    monkeypatch.setattr(writer_cluster, "writer_cluster", lambda _target: nullcontext(scene.cluster))
    batch = rows(0, 6, time=pa.array([0, 0, 1, 1, 2, 3], pa.timestamp("us")))
    columns = StructType([StructField("host", StringType()), StructField("time", Timestamp())])
    writer = StreamWriter(WriteOptions(replace(TARGET, table="new"), makes_table=True), columns)
    with pytest.raises(RowsRepeat, match=r"2 of 6 rows for the new table db\.new"):
        writer.write(iter([batch]))
    assert [] == scene.values()


def test_a_quorum_that_no_group_has_is_refused_before_the_first_row() -> None:
    """It is not reduced."""
    scene = new_scene()
    with pytest.raises(QuorumTooLarge):
        scene.write([rows(0, 2)], quorum=2)
    assert [] == scene.values()


def test_blocks_keep_the_order_and_end_at_a_count() -> None:
    """Where a block ends depends on counts alone, so that a task that runs again cuts the same blocks."""
    batches = [rows(start, 10) for start in range(0, 100, 10)]
    found = list(blocks([rows(0, 0), *batches], 25))
    assert [30, 30, 30, 10] == [block.num_rows for block in found]
    assert list(range(100)) == pa.concat_tables(found)["n"].to_pylist()


COLUMNS: dict[str, DataType] = {"host": StringType(), "time": Timestamp(), "flow": DoubleType()}


@pytest.mark.parametrize(
    ("changed", "tags", "named"),
    [
        ({"time": None, "tiem": Timestamp()}, (), "did you mean tiem"),
        ({"time": StringType()}, (), "column 'time' is string"),
        ({"flow": DecimalType(10, 2)}, (), "'flow' is decimal.10,2., a type that no field has"),
        ({}, ("hots",), "no column 'hots'.*did you mean host"),
        ({"host": LongType()}, ("host",), "tag 'host' is bigint"),
    ],
)
def test_columns_are_checked_before_a_task_runs(
    changed: dict[str, DataType | None], tags: tuple[str, ...], named: str
) -> None:
    """The error names the column, what it is, and what it could be."""
    types = {name: kind for name, kind in {**COLUMNS, **changed}.items() if kind is not None}
    schema = StructType([StructField(name, kind) for name, kind in types.items()])
    with pytest.raises(SinkRefused, match=named):
        check_columns(WriteOptions(TARGET, tags), schema)


def test_two_columns_of_one_name_are_refused() -> None:
    """As a join leaves them: Spark would hand both over under other names."""
    schema = StructType([StructField(name, kind) for name, kind in (*COLUMNS.items(), ("flow", DoubleType()))])
    with pytest.raises(SinkRefused, match="two columns 'flow'"):
        check_columns(WriteOptions(TARGET), schema)


def test_the_sink_overwrites_nothing() -> None:
    """`overwrite` and the output mode `complete` are refused."""
    source = HeadraceDataSource({"table": "db.t", "bootstrap": "nowhere", "tags": "host"})
    schema = StructType([StructField(name, kind) for name, kind in COLUMNS.items()])
    for writer in (source.writer, source.streamWriter):
        writer(schema, False)
        with pytest.raises(SinkRefused, match="overwrites no table"):
            writer(schema, True)


def test_a_batch_of_a_stream_is_durable_before_its_rows_are_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark syncs nothing: after a power cut it would use the number of a batch again, whose rows replicas then drop."""
    for batch in ("9", "10", ".10.crc"):
        (tmp_path / "offsets").mkdir(exist_ok=True)
        (tmp_path / "offsets" / batch).write_text("x")
    (tmp_path / "metadata").write_text("x")
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    options = {"table": "db.t", "bootstrap": "nowhere", "tags": "host", "checkpointLocation": tmp_path.as_uri()}
    schema = StructType([StructField(name, kind) for name, kind in COLUMNS.items()])
    HeadraceDataSource(options).streamWriter(schema, False)
    assert {str(tmp_path / name) for name in ("", "metadata", "offsets", "offsets/10")} <= set(synced)


def test_replicas_ignore_the_repeats_of_a_batch() -> None:
    """The second attempt of a batch counts as repeated, message by message."""
    scene = new_scene()
    for _ in range(2):
        scene.write([rows(0, 20)])
    _, ignored = tables_of(forward_logs(scene.log, TOPICS).values())
    assert len(scene.values()) // 2 == sum(ignored.values()) > 0


def test_the_process_that_ends_a_batch_loads_little(tmp_path: Path) -> None:
    """Spark starts one for each batch, which then takes as long as its imports."""
    source = HeadraceDataSource({"bootstrap": "nowhere:1", "table": TARGET.name, "tags": "host"})
    source.options["checkpointLocation"] = str(tmp_path)
    schema = StructType([StructField("host", StringType()), StructField("time", Timestamp())])
    messages = [pickle.dumps(TaskCommit(new_scene().write([rows(0, 4)])))]
    given = pickle.dumps((source, schema, messages))
    ended = subprocess.run([sys.executable, "-c", END_OF_BATCH], input=given, capture_output=True, check=False)
    assert (b"\n", b"", 0) == (ended.stdout, ended.stderr, ended.returncode)
