"""The ingest task: how raw messages become records, and that repeated attempts leave the same content."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace.pipeline.rebatch
from headrace.connectors.log.memory import MemoryLog
from headrace.connectors.log.port import read_to_end
from headrace.consumers.membership.schema_log import SchemaLog
from headrace.consumers.replication.actions import Ignored
from headrace.pipeline.cluster_access import ClusterAccess
from headrace.pipeline.ingest_progress import Counts
from headrace.pipeline.ingest_task import ingest_partition
from headrace.pipeline.raw_source import COUNT_DDL, RECORD_DDL
from headrace.pipeline.sink_records import COUNTED_SCHEMA
from headrace.schemas.messages import Write
from headrace.schemas.tables import FieldType, TimeResolution
from tests.spark.stored import forward_logs, messages, stored_tables, tables_of
from tests.unit.pipeline.harness import START_MS, TOPICS, attempt, influx_job, json_job, new_log, raw_batch, run_attempt


def rows_of(log: MemoryLog, table: str) -> list[dict[str, object]]:
    """The stored rows of a table without nulls, in order of time and tags."""
    rows = stored_tables(log, TOPICS)[table].to_pylist()
    rows = [{name: value for name, value in row.items() if value is not None} for row in rows]
    return sorted(rows, key=lambda row: (row["time"], sorted((name, str(value)) for name, value in row.items())))


def dead(log: MemoryLog) -> list[tuple[bytes | None, bytes, dict[str, str]]]:
    """(key, value, headers) of the dead letters."""
    records = read_to_end(log, "dlq.raw", timeout_s=5)
    return [(record.key, record.value, {name: value.decode() for name, value in record.headers}) for record in records]


def newest_fields(log: MemoryLog, table: str) -> dict[str, FieldType]:
    """The newest field types of a table in the schema log."""
    tables = SchemaLog(log, TOPICS)
    tables.refresh()
    return tables.catalogue.newest("db", table).field_types()


def test_messages_of_one_and_of_many_lines_become_rows() -> None:
    """Every good line is a row, whether its message has one or many.

    Blank lines, comments and empty messages give no row.
    """
    log = new_log()
    values = ["t,host=a x=1,y=2i 10\nt,host=b x=2 11\n", "t,host=a x=3 12", "", None, "\n# a comment\n"]
    run_attempt(log, influx_job(), [raw_batch(values)])
    assert [
        {"host": "a", "time": 10, "x": 1.0, "y": 2},
        {"host": "b", "time": 11, "x": 2.0},
        {"host": "a", "time": 12, "x": 3.0},
    ] == rows_of(log, "t")
    assert [] == dead(log)


def test_a_line_without_a_time_takes_the_timestamp_of_its_message() -> None:
    """The Kafka timestamp in nanoseconds replaces a missing time, in both formats."""
    log = new_log()
    run_attempt(log, influx_job(), [raw_batch(["t,host=a x=1", "t,host=b x=2"])])
    run_attempt(log, json_job(table="j"), [raw_batch(['{"host":"a","x":1}'], first_offset=5)], batch=1)
    assert [START_MS * 1_000_000, (START_MS + 1) * 1_000_000] == [row["time"] for row in rows_of(log, "t")]
    assert [(START_MS + 5) * 1_000_000] == [row["time"] for row in rows_of(log, "j")]


def test_a_message_with_bad_lines_is_a_dead_letter_and_its_good_lines_are_rows() -> None:
    """Key and value are unchanged, headers have reason and offset.

    One record a message, for any number of bad lines.
    """
    log = new_log()
    mixed = b"t,host=a x=1 10\nbroken\nt,host=a x=2 11\nt,host=a x= 12"
    values = [b"t,host=z x=9 9", mixed, b"\xff\xfe\x00junk"]
    counts = run_attempt(log, influx_job(), [raw_batch(values, first_offset=7, keys=[None, b"\x00key", None])])
    assert [9, 10, 11] == [row["time"] for row in rows_of(log, "t")]
    first, second = dead(log)
    assert (b"\x00key", mixed) == first[:2]
    assert b"\xff\xfe\x00junk" == second[1]
    assert first[2]["__dlq.errors.reason"].endswith("(and 1 more bad lines)")
    expected = {"topic": "raw", "partition": "0", "offset": "8", "line": "2"}
    assert expected == {name: first[2][f"__dlq.errors.{name}"] for name in expected}
    assert 3 == counts.rejected


def test_times_that_the_table_does_not_take_are_dead_letters() -> None:
    """Another unit, another age, finer digits: each is refused with its reason, before a table is made of them alone,
    and the good lines are written.
    """
    log, t0 = new_log(), 1_767_225_600_000_000_000
    job = replace(influx_job(), resolution=TimeResolution.US, any_time=False)
    values = [
        f"t,host=a x=1 {t0}\nt,host=a x=2 {t0 + 1}",
        f"t,host=b x=1 {t0 // 10**9}",
        f"lost,host=b x=1 {t0 // 10**6}",
        f"t,host=c x=1 {t0 + 1_000}",
    ]
    counts = run_attempt(log, job, [raw_batch(values)])
    assert (2, 3) == (counts.rows, counts.rejected)
    assert [t0, t0 + 1_000] == [row["time"] for row in rows_of(log, "t")]
    reasons = [headers["__dlq.errors.reason"] for _, _, headers in dead(log)]
    for reason, word in zip(
        reasons, ("finer than the microseconds", "looks like seconds", "milliseconds"), strict=True
    ):
        assert word in reason
    tables = SchemaLog(log, TOPICS)
    tables.refresh()
    assert [("db", "t")] == list(tables.catalogue.tables)
    assert TimeResolution.US is tables.catalogue.newest("db", "t").recorded_resolution


def test_a_new_column_in_mid_stream_extends_the_table() -> None:
    """Rows before it stay without the column, rows after it have it, and the table log has both versions."""
    log = new_log()
    run_attempt(log, influx_job(), [raw_batch(["t,host=a x=1 1"]), raw_batch(["t,host=a,rack=r x=2,y=true 2"])])
    assert [{"host": "a", "time": 1, "x": 1.0}, {"host": "a", "rack": "r", "time": 2, "x": 2.0, "y": True}] == rows_of(
        log, "t"
    )
    assert {"x": FieldType.FLOAT64, "y": FieldType.BOOL} == newest_fields(log, "t")


def test_an_integer_field_widens_when_a_float_comes() -> None:
    """int64 becomes float64 in the table; the integers that were written before keep their value."""
    log = new_log()
    run_attempt(log, influx_job(), [raw_batch(["t,host=a x=1i 1"]), raw_batch(["t,host=a x=2.5 2"])])
    run_attempt(log, influx_job(), [raw_batch(["t,host=a x=3i 3"])], batch=1)
    assert [1.0, 2.5, 3.0] == [row["x"] for row in rows_of(log, "t")]
    assert {"x": FieldType.FLOAT64} == newest_fields(log, "t")


def test_a_type_clash_is_a_dead_letter_and_its_neighbours_are_rows() -> None:
    """A string for a float field is refused with the reason, never cast; lines without the field are untouched."""
    log = new_log()
    run_attempt(log, influx_job(), [raw_batch(["t,host=a x=1 1"])])
    values = ['t,host=a x="text" 2\nt,host=a y=5 3', "t,host=a x=4 4"]
    run_attempt(log, influx_job(), [raw_batch(values)], batch=1)
    assert [1, 3, 4] == [row["time"] for row in rows_of(log, "t")]
    [(_, value, headers)] = dead(log)
    assert values[0].encode() == value
    assert "float64" in headers["__dlq.errors.reason"]
    assert "string" in headers["__dlq.errors.reason"]


@pytest.mark.parametrize(
    ("first", "second", "word"),
    [
        ("t,host=a x=1 1", "t,x=a y=1 2", "'x'"),
        ("t,host=a x=1 1", "t,HOST=a x=1 2", "case"),
        ("t,host=a x=1 1", "T,host=a x=1 2", "case"),
        ("t,host=a x=1 1", "t,host=a __y=1 2", "reserved"),
        ("t,host=a x=1 1", "t,host=a host=1 2", "host"),
    ],
)
def test_a_column_or_table_that_is_refused_is_a_dead_letter(first: str, second: str, word: str) -> None:
    """A tag that is a field, names that differ only in case, reserved names: refused with the reason.

    Later messages become rows.
    """
    log = new_log()
    run_attempt(log, influx_job(), [raw_batch([first])])
    run_attempt(log, influx_job(), [raw_batch([second, "t,host=a x=3 3"])], batch=1)
    assert [1, 3] == [row["time"] for row in rows_of(log, "t")]
    [(_, value, headers)] = dead(log)
    assert second.encode() == value
    assert word in headers["__dlq.errors.reason"]


def test_a_refused_table_leaves_nothing_in_the_table_log() -> None:
    """A table name that differs only in case is refused before it is proposed, or the log would grow with every batch."""
    log = new_log()
    run_attempt(log, influx_job(), [raw_batch(["t,host=a x=1 1"])])
    before = log.describe(TOPICS.table).end
    run_attempt(log, influx_job(), [raw_batch(["T,host=a x=1 2"]), raw_batch(["T,host=a x=1 3"])], batch=1)
    assert before == log.describe(TOPICS.table).end


def test_json_numbers_are_floats_unless_the_table_has_integers() -> None:
    """A new JSON field is float64.

    An int64 field of the table stays int64, also if the table was created during the task.
    """
    log = new_log()
    batches = attempt(log, json_job(), [raw_batch(['{"host":"a","time":1,"x":7}'])])
    other = SchemaLog(log, TOPICS)
    other.ensure_database("db")
    other.ensure("db", "t", ["host"], {"x": FieldType.INT64})
    list(batches)
    run_attempt(log, json_job(table="u"), [raw_batch(['{"host":"a","time":1,"x":7}'])], batch=1)
    assert {"x": FieldType.INT64} == newest_fields(log, "t")
    assert {"x": FieldType.FLOAT64} == newest_fields(log, "u")
    assert [{"host": "a", "time": 1, "x": 7}] == rows_of(log, "t")


def test_a_row_too_large_for_a_message_is_a_dead_letter() -> None:
    """Nine megabytes of text in one row are refused; the other rows of the message are written."""
    log = new_log()
    giant = f't,host=a x="{"z" * 9_000_000}" 1\nt,host=a y=1 2'
    run_attempt(log, influx_job(), [raw_batch([giant, "t,host=a y=2 3"])])
    assert [2, 3] == [row["time"] for row in rows_of(log, "t")]
    [(_, value, headers)] = dead(log)
    assert giant.encode() == value
    assert "bytes" in headers["__dlq.errors.reason"]


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_a_row_that_fits_a_compressed_message_alone_is_written(compression: str) -> None:
    """Text near the limit beside 4,000 numbers: refused, it would end the query again at each start."""
    log, numbers = new_log(), ",".join(f"c{number}=1" for number in range(4_000))
    # Digits, of which lz4 makes nothing shorter.
    text = random.Random(1).randbytes(4_112_500).hex()
    line = f't,host=a {numbers},s="{text}" 1'
    run_attempt(log, replace(influx_job(), compression=compression), [raw_batch([line, "t,host=a c0=2 2"])])
    assert [1, 2] == [row["time"] for row in rows_of(log, "t")]
    assert [] == dead(log)


def test_many_small_messages_become_few_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of several input batches are sent together, about one message for each group, without loss."""
    monkeypatch.setattr(headrace.pipeline.rebatch, "ROWS_PER_GROUP", 1_000)
    log = new_log(("n1",))
    lines = [f"t,host=h{number % 7} x={number} {number}" for number in range(2_600)]
    run_attempt(log, influx_job(), [raw_batch(lines[at : at + 100], at) for at in range(0, 2_600, 100)])
    bodies = [message.body for message in messages(log, TOPICS)]
    assert [1_000, 1_000, 600] == [body.row_count for body in bodies if isinstance(body, Write)]
    assert 2_600 == stored_tables(log, TOPICS)["t"].num_rows


def test_of_two_values_for_one_series_and_time_the_later_wins() -> None:
    """The order of a partition holds within a message, across messages and across input batches, for any fields."""
    log = new_log()
    values = ["t,host=a x=1 1\nt,host=a y=2 1", "t,host=a x=3 1", "t,host=b y=1 1", "t,host=b x=1,y=1 1"]
    run_attempt(log, influx_job(), [raw_batch(values), raw_batch(["t,host=b x=9 1"], 4)])
    assert [{"host": "a", "time": 1, "x": 3.0}, {"host": "b", "time": 1, "x": 9.0}] == rows_of(log, "t")


def stream(seed: int) -> list[pa.RecordBatch]:
    """Input batches with upserts, several tables, new and widening columns, and bad lines."""
    chance = random.Random(seed)
    lines = []
    for number in range(100):
        table, host = chance.choice("tuv"), chance.choice("abc")
        kind = "i" if number < 30 else chance.choice(["i", ".5"])
        extra = f",y{number // 25}=true" if chance.random() < 0.2 else ""
        lines.append(
            "bad line"
            if chance.random() < 0.03
            else f"{table},host={host} x={number}{kind}{extra} {chance.randrange(6)}"
        )
    return [raw_batch(lines[at : at + 20], at) for at in range(0, len(lines), 20)]


def content(log: MemoryLog) -> dict[str, list[dict[str, object]]]:
    """All stored rows."""
    return {table: rows_of(log, table) for table in stored_tables(log, TOPICS)}


def assert_crashes_change_nothing(seed: int, crashes: Sequence[int], rows_per_group: int) -> None:
    """Compare one clean run with one that follows attempts which ended after so many records each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(headrace.pipeline.rebatch, "ROWS_PER_GROUP", rows_per_group)
        clean, crashed = new_log(), new_log()
        run_attempt(clean, influx_job(), stream(seed))
        for records in crashes:
            unfinished = attempt(crashed, influx_job(), stream(seed))
            for _ in range(records):
                next(unfinished, None)
        run_attempt(crashed, influx_job(), stream(seed))
        assert content(clean) == content(crashed)


CRASHES = {
    "seed": st.integers(0, 50),
    "crashes": st.lists(st.integers(0, 12), max_size=3),
    "rows_per_group": st.sampled_from([10, 35, 1_000]),
}


@pytest.mark.slow(9)
@settings(max_examples=15)
@given(**CRASHES)
def test_attempts_that_crashed_change_nothing(seed: int, crashes: Sequence[int], rows_per_group: int) -> None:
    """After any crashes, at any record, one complete attempt leaves the content of one clean run."""
    assert_crashes_change_nothing(seed, crashes, rows_per_group)


@pytest.mark.soak
@settings(max_examples=2_000, derandomize=False)
@given(**CRASHES)
def test_attempts_that_crashed_change_nothing_long(seed: int, crashes: Sequence[int], rows_per_group: int) -> None:
    """The same over thousands of random examples."""
    assert_crashes_change_nothing(seed, crashes, rows_per_group)


def test_a_repeated_batch_is_dropped() -> None:
    """The second attempt sends equal messages, although the first changed the tables: replicas apply none of them."""
    log = new_log()
    run_attempt(log, influx_job(), stream(3))
    first = len(messages(log, TOPICS))
    run_attempt(log, influx_job(), stream(3))
    _, ignored = tables_of(forward_logs(log, TOPICS).values())
    assert {Ignored.REPEATED: first} == ignored


def test_a_late_message_of_an_old_attempt_is_dropped() -> None:
    """A zombie of batch 0 that writes after batch 1 began changes nothing: the retry wrote all of its batch."""
    log = new_log(("n1",))
    old = [raw_batch(["t,host=a x=1 1"])]
    zombie = attempt(log, influx_job(), old)
    run_attempt(log, influx_job(), old)
    run_attempt(log, influx_job(), [raw_batch(["t,host=a x=2 1"])], batch=1)
    list(zombie)
    assert [{"host": "a", "time": 1, "x": 2.0}] == rows_of(log, "t")


def test_after_a_message_with_other_content_all_later_ones_are_applied_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between two attempts another writer widens an int64 field that JSON is read by: the order of upserts survives it."""
    monkeypatch.setattr(headrace.pipeline.rebatch, "ROWS_PER_GROUP", 1)
    log = new_log(("n1",))
    tables = SchemaLog(log, TOPICS)
    tables.ensure_database("db")
    tables.ensure("db", "t", ["host"], {"x": FieldType.INT64})
    batches = [raw_batch(['{"host":"a","time":1,"x":1}']), raw_batch(['{"host":"a","time":1,"x":2.5}'], 1)]
    run_attempt(log, json_job(), batches)
    run_attempt(log, json_job(), batches)
    assert [{"host": "a", "time": 1, "x": 2.5}] == rows_of(log, "t")


def test_counts_add_up_to_what_was_read_and_written() -> None:
    """Messages, rows, points that are not null, bad lines, bytes and the newest timestamp of a task."""
    values = ["t,host=a x=1,y=2 1", "t,host=b x=1 2", "broken"]
    counts = run_attempt(new_log(), influx_job(), [raw_batch(values)])
    assert Counts(3, 2, 3, 1, sum(map(len, values)), START_MS + 2) == counts


def test_messages_without_a_record_are_counted() -> None:
    """A task of blank messages gives one row, which has its counts and no topic."""
    access = ClusterAccess(new_log(), TOPICS)
    access.begin_task()
    [records] = ingest_partition(iter([raw_batch(["", None])]), influx_job(), access, "q", 0)
    assert ([None], [2], [0]) == tuple(records[name].to_pylist() for name in ("topic", "messages", "rows"))


def test_the_counts_are_on_the_last_record() -> None:
    """Spark adds them up: on the others they are 0. Spark's notation of the columns is that of the records."""
    access = ClusterAccess(new_log(), TOPICS)
    access.begin_task()
    batches = [raw_batch(["t,host=a x=1 1", "bad"]), raw_batch(["bad"], first_offset=2)]
    *others, last = ingest_partition(iter(batches), influx_job(), access, "q", 0)
    assert others
    assert {0} == {number for records in others for number in records["messages"].to_pylist()}
    assert 3 == last["messages"][last.num_rows - 1].as_py()
    names = [part.split()[0] for part in re.sub(r"<[^)]*>>", "", f"{RECORD_DDL}, {COUNT_DDL}").split(", ")]
    assert COUNTED_SCHEMA.names == names


def test_an_empty_input_counts_nothing() -> None:
    """No messages, no records, nothing counted."""
    assert Counts() == run_attempt(new_log(), influx_job(), [raw_batch([])])
    assert [] == list(attempt(new_log(), influx_job(), []))
