"""The writer on a log in memory: routing, refusals before a write, and reports of failures."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.connectors.formats.interface import ColumnMissing, ColumnTypeError, TimeRangeError
from headrace.connectors.formats.row_rules import ArrayInvalid
from headrace.connectors.log.memory import MemoryAppender
from headrace.connectors.log.port import AppendFailed, AppendUnknown
from headrace.consumers.membership.schema_log import SchemaLog
from headrace.producers import router
from headrace.producers import writer as writer_room
from headrace.producers.deletes import DeleteInvalid, delete_rows
from headrace.producers.router import RowTooLarge
from headrace.producers.sender import WriteFailed, WriteUnknown
from headrace.producers.writer import ResolutionFixed, TableWriter, WriterClosed, WriterSettings
from headrace.schemas import payload
from headrace.schemas.errors import HeadraceError
from headrace.schemas.messages import Delete
from headrace.schemas.series import series_key
from headrace.schemas.tables import ROW_TIME_MAX_NS, ROW_TIME_MIN_NS, FieldType, TimeResolution, TypeClash
from tests.poison import LATIN_1, text_array
from tests.unit.producers.scene import (
    DAY_NS,
    NODES,
    TOPICS,
    FailingAppender,
    LateAppender,
    Scene,
    SilentAppender,
    appended,
    open_scene,
    readings,
    row_order,
    write_one,
)

BAD_OFFSETS = text_array([b"a", b"b", b"c"], [0, 1, 900_000_000, 3])
BAD_INDEX = pa.DictionaryArray.from_arrays(pa.array([9], pa.int32()), pa.array(["a"]), safe=False)


def test_every_row_arrives_once_in_the_group_that_owns_it(scene: Scene) -> None:
    """Rows of many series and days are spread over the groups by slot, and none is lost or doubled."""
    hosts = [f"h{number % 17}" for number in range(500)]
    times = [number * DAY_NS // 7 for number in range(500)]
    with scene.writer() as writer:
        writer.write(readings(hosts, times, v=list(range(500))), ["host"])
    assert (500, 500) == (writer.written.rows, writer.written.points)
    expected = [
        (series_key("t", {"host": host}), time, (("v", v),))
        for v, (host, time) in enumerate(zip(hosts, times, strict=True))
    ]
    assert sorted(expected, key=row_order) == scene.rows()
    assert set(NODES) == {group for group, _ in scene.messages()}


@given(
    st.lists(
        st.tuples(
            st.sampled_from([None, "", "a", "b c", "d,e=f"]),
            st.integers(-(2**62), 2**62),
            st.one_of(st.none(), st.floats(allow_nan=False)),
            st.one_of(st.none(), st.text(max_size=3)),
        ),
        max_size=30,
    )
)
def test_any_rows_arrive_as_they_were(rows: list[tuple[str | None, int, float | None, str | None]]) -> None:
    """Null and empty tags, old and far times, null fields and unusual characters all reach the log unchanged."""
    table = pa.table(
        {
            "host": pa.array([row[0] for row in rows], pa.string()),
            "time": pa.array([row[1] for row in rows], pa.timestamp("ns")),
            "v": pa.array([row[2] for row in rows], pa.float64()),
            "w": pa.array([row[3] for row in rows], pa.string()),
        }
    )
    with open_scene() as scene:
        with scene.writer() as writer:
            writer.write(table, ["host"])
        expected = [(series_key("t", {"host": host}), time, (("v", v), ("w", w))) for host, time, v, w in rows]
        assert sorted(expected, key=row_order) == scene.rows()


def test_batches_increase_and_sequences_number_the_messages_of_one_write(scene: Scene) -> None:
    """Each write is a newer batch of one producer; another writer is another producer."""
    with scene.writer() as first, scene.writer() as second:
        for writer in (first, first, second):
            writer.write(readings(["a", "b", "c", "d"], [0, DAY_NS, 2 * DAY_NS, 3 * DAY_NS], v=[1, 2, 3, 4]), ["host"])
    positions = [message.position for _, message in scene.messages()]
    by_batch: dict[tuple[str, int], list[int]] = {}
    for position in positions:
        by_batch.setdefault((position.producer, position.batch), []).append(position.sequence)
    assert all(sorted(numbers) == list(range(len(numbers))) for numbers in by_batch.values())
    producers = sorted(
        {producer for producer, _ in by_batch}, key=lambda name: max(b for p, b in by_batch if p == name)
    )
    assert [[1], [1, 2]] == [sorted(batch for name, batch in by_batch if name == producer) for producer in producers]


def test_flush_gives_the_newest_offset_of_each_group(scene: Scene) -> None:
    """After a flush the writer knows the offsets that a query must have read."""
    writer = scene.writer()
    writer.write(readings([f"h{number}" for number in range(50)], [0] * 50, v=[1.0] * 50), ["host"])
    ends = {topic: scene.log.describe(topic).end for topic in map(TOPICS.forward, NODES)}
    assert {topic: end - 1 for topic, end in ends.items() if end} == writer.flush() == writer.newest() == writer.close()


def test_new_columns_and_widening_reach_the_table_before_the_rows(scene: Scene) -> None:
    """A later write may bring a new field, a new tag and decimals where there were integers."""
    with scene.writer() as writer:
        writer.write(readings(["a"], [1], v=[1]), ["host"])
        table = readings(["a"], [2], v=[1.5], w=["x"]).append_column("rack", pa.array(["r"]))
        writer.write(table, ["host", "rack"])
        writer.write(readings(["a"], [3], v=[7]), ["host"])
    newest = scene.cluster.tables.catalogue.newest("db", "t")
    assert (2, ("host", "rack")) == (newest.version, newest.tags)
    assert {"v": FieldType.FLOAT64, "w": FieldType.STRING} == newest.field_types()
    assert [("v", 1)] == [row for _, time, fields in scene.rows() if time == 1 for row in fields]
    assert [("v", 7.0)] == [row for _, time, fields in scene.rows() if time == 3 for row in fields]


def test_an_empty_table_declares_its_columns_and_writes_nothing(scene: Scene) -> None:
    """A table without rows creates the table with its columns, but no message."""
    with scene.writer() as writer:
        writer.write(readings([], [], v=pa.array([], pa.float64())), ["host"])
    assert [] == scene.messages()
    assert {"v": FieldType.FLOAT64} == scene.cluster.tables.catalogue.newest("db", "t").field_types()


@pytest.mark.parametrize(
    ("table", "tags", "error", "expected"),
    [
        (pa.table({"v": [1.0]}), [], ColumnMissing, "no column 'time'"),
        (pa.table({"time": ["x"], "v": [1.0]}), [], TimeRangeError, "column 'time': the time 'x' cannot be read"),
        (pa.table({"time": pa.array([1, None], pa.int64())}), [], TimeRangeError, "'time' has 1 rows without a time"),
        (pa.table({"time": pa.array([2**62], pa.timestamp("s"))}), [], TimeRangeError, "'time' has times outside"),
        (pa.table({"time": [1.5]}), [], ColumnTypeError, "time column 'time' has type double"),
        (pa.table({"time": [1], "v": [[1]]}), [], ColumnTypeError, "field 'v' has type list"),
        (
            pa.table({"time": [1], "v": pa.array([2**63], pa.uint64())}),
            [],
            ColumnTypeError,
            "column 'v' has integers that do not fit",
        ),
        (pa.table({"time": [1], "v": [1]}), ["host"], ColumnMissing, "no column 'host'"),
        (pa.table([[1], [1], [2]], names=["time", "v", "v"]), [], ColumnTypeError, "'v' is there twice"),
        (pa.table({"time": [1], "host": [5.5]}), ["host"], ColumnTypeError, "tag 'host' has type double"),
        (pa.table({"time": [1], "__v": [1]}), [], ColumnTypeError, "'__v'"),
        (pa.table({"time": [1], "v": ["text"]}), [], TypeClash, "field 'v' of db.t is int64 and cannot take string"),
        (pa.table({"time": [1], "v": ["x"]}), ["v"], TypeClash, "'v' of db.t is a field"),
        (pa.table({"time": [1], "s": text_array([LATIN_1])}), [], ArrayInvalid, "'s' is not valid.*UTF8"),
        (pa.table({"time": [1], "s": text_array([LATIN_1])}), ["s"], ArrayInvalid, "'s' is not valid.*UTF8"),
        (pa.table({"time": [1] * 3, "s": BAD_OFFSETS}), [], ArrayInvalid, "'s' is not valid.*ffset"),
        (pa.table({"time": [1] * 3, "s": BAD_OFFSETS}), ["s"], ArrayInvalid, "'s' is not valid.*ffset"),
        (pa.table({"time": [1], "s": BAD_INDEX}), ["s"], ArrayInvalid, "'s' is not valid.*out of bounds"),
        (
            pa.table({"time": pa.chunked_array([[1], [2**63 - 1]]), "v": [1, 2]}),
            [],
            TimeRangeError,
            "1 rows have no usable",
        ),
        (pa.table({"time": [-(2**63)], "v": [1]}), [], TimeRangeError, "1 rows have no usable"),
        (pa.table({"time": [1 - 2**63], "v": [1]}), [], TimeRangeError, "1 rows have no usable"),
    ],
)
def test_invalid_rows_are_refused_before_anything_is_written(
    scene: Scene, table: pa.Table, tags: list[str], error: type[HeadraceError], expected: str
) -> None:
    """The error names the column; the log gets nothing, and the writer continues."""
    with scene.writer() as writer:
        writer.write(pa.table({"time": [0], "v": [0]}), [])
        with pytest.raises(error, match=expected):
            writer.write(table, tags)
        writer.write(pa.table({"time": [9], "v": [9]}), [])
    assert [0, 9] == [time for _, time, _ in scene.rows()]


def test_the_first_and_the_last_time_that_sql_has_are_written(scene: Scene) -> None:
    """The range is as wide as SQL allows."""
    times = [ROW_TIME_MIN_NS, ROW_TIME_MAX_NS]
    with scene.writer() as writer:
        writer.write(pa.table({"time": times, "v": [1, 2]}), [])
    assert times == [time for _, time, _ in scene.rows()]


def test_rows_that_compress_well_are_split_by_their_size_in_memory(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each message decodes to no more than the limit, and a row beyond it is refused with its size."""
    monkeypatch.setattr(payload, "DECODED_BYTES_MAX", 100_000)
    monkeypatch.setattr(router, "DECODED_BYTES_MAX", 100_000)
    table = readings(["a"] * 64, list(range(64)), v=["x" * 10_000] * 64)
    with scene.writer() as writer:
        writer.write(table, ["host"])
        with pytest.raises(RowTooLarge, match="a message holds 100000"):
            writer.write(readings(["a"], [1], v=["x" * 200_000]), ["host"])
    assert len(scene.rows()) == 64
    assert len(scene.messages()) >= 8


def test_a_row_that_fits_no_message_is_refused(scene: Scene) -> None:
    """A row of 50 MB is refused with its size; rows beside it in the same block are not written either."""
    table = readings(["a", "b"], [1, 2], v=["x", "x" * 50_000_000])
    with scene.writer(compression="none") as writer:
        with pytest.raises(RowTooLarge, match=r"a row of db.t takes 500\d+ bytes"):
            writer.write(table, ["host"])
        assert 0 == writer.written.rows
    assert [] == scene.messages()


def test_large_rows_are_spread_over_messages_that_fit(scene: Scene) -> None:
    """Rows of a megabyte each are sent in as many messages as needed."""
    text = "x" * (1 << 20)
    with scene.writer(compression="none") as writer:
        writer.write(readings(["a"] * 20, list(range(20)), v=[text] * 20), ["host"])
    assert list(range(20)) == [time for _, time, _ in scene.rows()]
    assert all(
        len(record.value) <= 8 << 20 for name in NODES for record in scene.log.topic(TOPICS.forward(name)).records
    )


@pytest.mark.parametrize(
    ("errors", "error", "expected", "rows"),
    [
        ([AppendFailed("refused")], WriteFailed, "^1 rows are not in the log: refused", 1),
        ([AppendUnknown("timed out")], WriteUnknown, "^1 rows may or may not be in the log: timed out", 1),
        (
            [AppendFailed("refused"), AppendUnknown("timed out")],
            WriteUnknown,
            "^1 rows may or may not be in the log, and 1 are not: refused",
            2,
        ),
    ],
)
def test_a_failed_delivery_is_raised_once_at_the_next_call(
    scene: Scene, errors: list[HeadraceError], error: type[WriteFailed], expected: str, rows: int
) -> None:
    """Failed and unknown are different errors; both count the rows, and each is raised exactly once."""
    for call in (lambda writer: writer.flush(), lambda writer: writer.close(), lambda writer: write_one(writer, 9)):
        appender = FailingAppender(scene.log)
        writer = scene.writer(appender=appender)
        write_one(writer, 0)
        appender.errors = list(errors)
        for number in range(len(errors)):
            appended(writer, number)
        with pytest.raises(error, match=expected) as raised:
            call(writer)
        assert rows == raised.value.rows
        writer.close()


@pytest.mark.parametrize("error", [AppendFailed("refused"), AppendUnknown("timed out")])
def test_the_error_of_an_earlier_call_has_also_the_rows_that_were_not_written(
    scene: Scene, error: HeadraceError
) -> None:
    """A program that writes the rows of the earlier call again would lose those of this one."""
    appender = FailingAppender(scene.log)
    with scene.writer(appender=appender) as writer:
        write_one(writer, 0)
        appender.errors = [error]
        write_one(writer, 1)
        with pytest.raises((WriteFailed, WriteUnknown), match="of earlier calls, and the 2 of this one were not writt"):
            writer.write(readings(["a", "a"], [2, 3], v=[1, 1]), ["host"])
    assert [0] == [time for _, time, _ in scene.rows()]


def test_the_error_of_a_block_has_also_the_rows_behind_it(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large call is written in blocks: whoever reads the error learns of all rows that are missing."""
    monkeypatch.setattr(writer_room, "BLOCK_ROWS_MAX", 10)

    class FullAppender(MemoryAppender):
        def append(self, topic: str, value: bytes, **given: Any) -> None:
            if scene.rows():
                raise AppendFailed("the queue is full")
            super().append(topic, value, **given)

    with scene.writer(appender=FullAppender(scene.log)) as writer:
        expected = "^10 rows were not written: the queue is full; the 15 rows behind them were not written"
        with pytest.raises(WriteFailed, match=expected) as raised:
            writer.write(readings(["a"] * 35, list(range(35)), v=[1] * 35), ["host"])
    assert (25, 10, 10) == (raised.value.rows, writer.written.rows, len(scene.rows()))


def test_each_thread_that_has_written_is_given_a_failed_delivery(scene: Scene) -> None:
    """Once. That another one was given it, as a query that flushes all writers, confirms no row to whoever wrote it."""
    appender = FailingAppender(scene.log)
    writer = scene.writer(appender=appender)
    write_one(writer, 0)

    def written_elsewhere() -> None:
        write_one(writer, 1)

    with ThreadPoolExecutor(1) as other:
        appender.errors = [AppendFailed("refused")]
        other.submit(written_elsewhere).result()
        # One that has written nothing: it is given what nobody was given.
        with ThreadPoolExecutor(1) as asking, pytest.raises(WriteFailed, match="^1 rows are not in the log: refused"):
            asking.submit(writer.flush).result()
        with ThreadPoolExecutor(1) as asking:
            asking.submit(writer.flush).result()
        for flush in (writer.flush, lambda: other.submit(writer.flush).result()):
            with pytest.raises(WriteFailed, match="^1 rows are not in the log: refused"):
                flush()
            flush()
    assert 1 == len(scene.rows())
    writer.close()


def test_without_a_quorum_only_flush_and_close_raise(scene: Scene) -> None:
    """With quorum 0 writes continue after a failure; flush and close still raise it."""
    appender = FailingAppender(scene.log)
    writer = scene.writer(appender=appender, quorum=0)
    write_one(writer, 0)
    appender.errors = [AppendFailed("refused")]
    write_one(writer, 1)
    write_one(writer, 2)
    with pytest.raises(WriteFailed):
        writer.close()
    assert [0, 2] == [time for _, time, _ in scene.rows()]


def test_a_log_that_never_answers_leaves_the_state_unknown(scene: Scene) -> None:
    """The error of a flush that times out has the number of unacknowledged rows."""
    writer = scene.writer(appender=SilentAppender(scene.log), flush_timeout_s=0.05)
    write_one(writer, 0)
    with pytest.raises(WriteUnknown, match=r"1 rows were not confirmed in 0.05 s") as raised:
        writer.close()
    assert 1 == raised.value.rows


def test_closing_again_confirms_no_rows_that_the_first_call_did_not(scene: Scene) -> None:
    """It was interrupted, or waited in vain: the second call waits, and has the error or the offset that came."""
    appender = LateAppender(scene.log)
    writer = scene.writer(appender=appender, flush_timeout_s=0.05)
    write_one(writer, 0)
    for _ in range(2):
        with pytest.raises(WriteUnknown, match="1 rows were not confirmed"):
            writer.close()
    appender.report()
    assert [0] == list(writer.close().values())


def test_a_missing_topic_fails_the_write_and_names_it(scene: Scene) -> None:
    """A forward log that is gone is an error that names the topic."""
    for name in NODES:
        scene.log.delete_topic(TOPICS.forward(name))
    writer = scene.writer()
    write_one(writer, 0)
    with pytest.raises(WriteFailed, match=r"1 rows are not in the log: topic c.forward.n\d.1 does not exist"):
        writer.flush()


def test_an_error_in_the_body_is_raised_first(scene: Scene) -> None:
    """A `with` block that fails for another reason raises that; the writer's own error becomes a note."""
    appender = FailingAppender(scene.log)

    def work() -> None:
        with scene.writer(appender=appender) as writer:
            write_one(writer, 0)
            appender.errors = [AppendFailed("refused")]
            write_one(writer, 1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as raised:
        work()
    assert ["also: 1 rows are not in the log: refused"] == raised.value.__notes__


def test_a_closed_writer_takes_no_rows(scene: Scene) -> None:
    """Closing twice is fine; writing after it is an error."""
    writer = scene.writer()
    writer.close()
    writer.close()
    with pytest.raises(WriterClosed):
        write_one(writer, 0)


def test_two_threads_that_add_columns_at_once_both_succeed(scene: Scene) -> None:
    """Of two changes on one version the first counts; the other writer rereads the schema, and no row is lost."""
    failures: list[BaseException] = []
    settings = WriterSettings(resolution=TimeResolution.NS)

    def work(name: str) -> None:
        tables = SchemaLog(scene.log, TOPICS)
        try:
            with TableWriter(replace(scene.cluster, tables=tables), "db", "t", settings) as writer:
                for number in range(10):
                    writer.write(readings([name], [number], **{f"{name}_{number}": [number]}), ["host"])
        except BaseException as error:
            failures.append(error)
        finally:
            tables.close()

    threads = [threading.Thread(target=work, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [] == failures
    scene.cluster.tables.refresh()
    assert 20 == len(scene.cluster.tables.catalogue.newest("db", "t").fields) == len(scene.rows())


def test_a_table_keeps_its_resolution(scene: Scene) -> None:
    """Finer times are refused by row and never rounded, before a table is made; a writer that needs another
    resolution is refused.
    """
    rows = readings(["a", "a"], [1_000, 2_001], v=[1, 2])
    with scene.writer(resolution=TimeResolution.US) as writer:
        with pytest.raises(TimeRangeError, match="finer than the microseconds that db.t keeps, the first is row 1"):
            writer.write(rows, ["host"])
        assert scene.cluster.tables.catalogue.newest("db", "t").version == 0
        writer.write(rows.slice(0, 1), ["host"])
    made = scene.cluster.tables.catalogue.newest("db", "t")
    assert (TimeResolution.US, 1) == (made.resolution, len(scene.rows()))
    with (
        scene.writer(resolution_required=True) as required,
        pytest.raises(ResolutionFixed, match="keeps microseconds"),
    ):
        required.write(rows.slice(0, 1), ["host"])
    with scene.writer() as writer:
        writer.write(readings(["a"], [3_000], w=[1.5]), ["host"])
    assert (TimeResolution.US, 2) == (
        scene.cluster.tables.catalogue.newest("db", "t").recorded_resolution,
        len(scene.rows()),
    )


def test_a_finer_table_of_another_client_takes_finer_times(scene: Scene) -> None:
    """A writer that does not know yet that the table exists reads the table log before it refuses."""
    others = SchemaLog(scene.log, TOPICS)
    others.ensure_database("db")
    others.ensure("db", "t", ["host"], {"v": FieldType.INT64}, resolution=TimeResolution.NS)
    others.close()
    with scene.writer(resolution=TimeResolution.US) as writer:
        writer.write(readings(["a"], [1], v=[1]), ["host"])
    assert 1 == len(scene.rows())


def test_a_delete_reaches_every_group(scene: Scene) -> None:
    """A delete may match rows of any slot, so each group's log gets the same one."""
    with scene.writer() as writer:
        writer.write(readings(["a"], [1], v=[1]), ["host"])
    offsets = delete_rows(scene.cluster, "db", "t", {"host": ["a", "b"]}, 0, 10)
    deletes = {group: message.body for group, message in scene.messages() if isinstance(message.body, Delete)}
    assert {name: Delete("db", "t", {"host": ("a", "b")}, 0, 10) for name in NODES} == deletes
    assert {topic: scene.log.describe(topic).end - 1 for topic in map(TOPICS.forward, NODES)} == offsets


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("db", "u"), "there is no table db.u"),
        (("db", "t", {"rack": "r"}), "db.t has no tag 'rack'"),
        (("db", "t", {"host": []}), "no value is given for tag 'host'"),
        (("db", "t", {}, 5, 5), "range of time is empty"),
    ],
)
def test_an_invalid_delete_is_refused(scene: Scene, arguments: tuple[Any, ...], expected: str) -> None:
    """Unknown tables and tags and empty ranges are errors, not deletes of nothing or of everything."""
    with scene.writer() as writer:
        writer.write(readings(["a"], [1], v=[1]), ["host"])
    with pytest.raises(DeleteInvalid, match=expected):
        delete_rows(scene.cluster, *arguments)
    assert 1 == len(scene.messages())
