"""Answers of the engine over live and sealed rows."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from headrace.consumers.query.engine import QueryEngine
from headrace.consumers.query.query_errors import (
    AnswerStale,
    NotCaughtUp,
    NotReady,
    QueryCancelled,
    QueryError,
    QueryInvalid,
    QueryMemory,
    QueryTimeout,
    SegmentUnreadable,
    TooManyQueries,
    UnknownTable,
)
from headrace.consumers.query.query_timer import Interrupter, QueryTimer
from headrace.consumers.query.session import interrupt
from headrace.consumers.query.settings import QuerySettings
from headrace.consumers.query.table_source import Reading
from headrace.consumers.store import StoreDamaged
from headrace.schemas.tables import FieldType, TableSchema
from tests.unit.query.conftest import DAY_NS, START_NS
from tests.unit.query.memory_source import MemoryScan, MemorySource, readings

ENDLESS = "SELECT count(*) FROM range(1000000000000) a(i) WHERE i % 7 = 3"
LONG = "SELECT i, sin(i) AS s FROM range(500000000) t(i)"


def rows(engine: QueryEngine, sql: str) -> list[tuple[object, ...]]:
    """All rows of an answer as tuples."""
    return [tuple(row.values()) for row in engine.query(sql).read_all().to_pylist()]


def test_live_and_sealed_rows_make_one_table(engine: QueryEngine) -> None:
    """Rows of files and of memory are counted together, each once."""
    assert [("truck_1", 15), ("truck_2", 15)] == rows(
        engine, "SELECT name, count(*) FROM iot.readings GROUP BY 1 ORDER BY 1"
    )


def test_columns_come_as_tags_time_fields(engine: QueryEngine) -> None:
    """`SELECT *` gives tags, time as TIMESTAMP_NS, then fields, under their types."""
    schema = engine.query("SELECT * FROM iot.readings LIMIT 0").read_all().schema
    assert {"name": pa.string(), "time": pa.timestamp("ns"), "velocity": pa.float64()} == dict(
        zip(schema.names, schema.types, strict=True)
    )


def test_a_bare_name_is_enough(engine: QueryEngine) -> None:
    """A table that exists in one database only is found by its bare name."""
    assert [(30,)] == rows(engine, "SELECT count(*) FROM readings")


@pytest.mark.parametrize("database", ["system", "temp", "memory", "main", "Plant A", 'q"uote', "q'uote"])
def test_any_name_may_name_a_database(engine: QueryEngine, source: MemorySource, database: str) -> None:
    """Databases may have the names of DuckDB's own catalogs, and names that need quotes."""
    source.add(
        TableSchema(database, "Line 1", 1, ("name",), (("velocity", FieldType.FLOAT64),)), live=[readings(START_NS, 3)]
    )
    place = '"' + database.replace('"', '""') + '"."line 1"'
    assert [(3.0,)] == rows(engine, f"SELECT sum({place}.velocity) FROM {place}")
    assert [(3.0,)] == rows(engine, 'SELECT sum("Line 1".velocity) FROM "Line 1"')
    assert 3 == len(rows(engine, f"DESCRIBE {place}"))


def test_old_segments_show_the_newest_schema(engine: QueryEngine, source: MemorySource) -> None:
    """Missing columns are null and int64 becomes float64, in files and in live rows alike."""
    old = readings(START_NS, 2, load=[1, 2])
    new = readings(START_NS + DAY_NS, 2, load=[1.5, 2.5], note=["a", None])
    live = readings(START_NS + 2 * DAY_NS, 2, load=pa.array([3, 4]))
    schema = TableSchema("lab", "runs", 3, ("lane", "name"), (("load", FieldType.FLOAT64), ("note", FieldType.STRING)))
    source.add(schema, segments=[old, new], live=[live])
    found = engine.query("SELECT lane, name, load, note FROM lab.runs ORDER BY time").read_all()
    assert [1.0, 2.0, 1.5, 2.5, 3.0, 4.0] == found["load"].to_pylist()
    assert [None, None, "a", None, None, None] == found["note"].to_pylist()
    assert [None] * 6 == found["lane"].to_pylist()
    assert [pa.string(), pa.string(), pa.float64(), pa.string()] == found.schema.types


def test_an_empty_tag_is_null_and_an_empty_field_is_not(engine: QueryEngine, source: MemorySource) -> None:
    """A missing tag is null, whether a row has null or empty text; an empty text of a field stays."""
    live = readings(START_NS, 2, names=["", "a"], note=["", "x"])
    source.add(TableSchema("lab", "notes", 1, ("name",), (("note", FieldType.STRING),)), live=[live])
    assert [(None, ""), ("a", "x")] == rows(engine, "SELECT name, note FROM lab.notes ORDER BY time")


def test_nanoseconds_survive(engine: QueryEngine, source: MemorySource) -> None:
    """Times are neither rounded in files nor in memory."""
    schema = TableSchema("lab", "fine", 1, ("name",), (("velocity", FieldType.FLOAT64),))
    source.add(schema, segments=[readings(START_NS + 1, 1)], live=[readings(START_NS + 3, 1)])
    assert [(START_NS + 1,), (START_NS + 3,)] == rows(engine, "SELECT epoch_ns(time) FROM lab.fine ORDER BY time")


def test_a_table_without_rows_has_columns(engine: QueryEngine, source: MemorySource) -> None:
    """A table that exists only in the table log answers with no rows."""
    source.add(TableSchema("lab", "empty", 1, ("name",), (("velocity", FieldType.FLOAT64),)))
    assert ["name", "time", "velocity"] == engine.query("SELECT * FROM lab.empty").read_all().schema.names


def test_now_is_one_moment_of_the_injected_clock(engine: QueryEngine) -> None:
    """`now()`, `current_timestamp` and `today()` agree within a query, compare with `time`, and prune."""
    noon = datetime(2023, 11, 17, 12)
    assert [(noon, noon, noon.date(), noon.date())] == rows(
        engine, "SELECT now(), current_timestamp, today(), current_date"
    )
    assert [(10,)] == rows(engine, "SELECT count(*) FROM readings WHERE time > now() - INTERVAL 1 DAY AND time < now()")


def test_pruning_reaches_the_source(engine: QueryEngine, source: MemorySource) -> None:
    """Time, tags and columns of the statement reach the source as conditions of the scan."""
    rows(
        engine,
        "SELECT max(velocity) FROM iot.readings WHERE name = 'truck_1' AND time >= TIMESTAMP '2023-11-16' AND time < '2023-11-17'",
    )
    (request,) = source.requests
    assert ("name", "time", "velocity") == request["columns"]
    assert {"name": ("truck_1",)} == request["tags"]
    assert START_NS + DAY_NS - 1_000_000_000 == request["start_ns"]
    assert 1 == engine.statistics.files_scanned


def test_a_missing_column_is_named_with_candidates_of_the_whole_table(engine: QueryEngine) -> None:
    """Narrowing to the columns that a statement names does not hide the others from its error message."""
    with pytest.raises(QueryInvalid) as raised:
        engine.query("SELECT velocit FROM iot.readings")
    assert "velocit" in raised.value.message
    assert "velocity" in raised.value.action
    assert "\n" not in raised.value.message


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELEC 1", "syntax error"),
        ("SELECT 'a'::INT", "'a'"),
        ("SELECT sum(name) FROM readings", "sum"),
        ("SELECT error('my own words')", "my own words"),
        ("SELECT $1", "parameter"),
        ("SELECT velocity FROM readings GROUP BY name", "GROUP BY"),
        ("SELECT nothing.velocity FROM readings", "nothing"),
    ],
)
def test_errors_of_the_sql_are_one_line(engine: QueryEngine, sql: str, expected: str) -> None:
    """DuckDB's error about the statement arrives as one line that never names the engine's own catalogs."""
    with pytest.raises(QueryInvalid) as raised:
        engine.query(sql).read_all()
    assert expected in raised.value.message
    assert "\n" not in raised.value.message
    assert "__q" not in str(raised.value)


def test_an_unknown_table_is_refused_before_anything_is_read(engine: QueryEngine, source: MemorySource) -> None:
    """The near name is offered, and no scan is opened."""
    with pytest.raises(UnknownTable, match=r"iot\.readings"):
        engine.query("SELECT * FROM iot.reading")
    assert [] == source.opened


def test_show_describe_summarize_and_explain_are_answered(engine: QueryEngine, source: MemorySource) -> None:
    """SHOW, DESCRIBE, SUMMARIZE and EXPLAIN give rows."""
    assert [("iot", "readings", ["name"], ["velocity float64"], 1)] == rows(engine, "SHOW TABLES")
    assert [("iot",)] == rows(engine, "SHOW DATABASES")
    assert [] == rows(engine, "SHOW TABLES FROM nowhere")
    described = rows(engine, "DESCRIBE iot.readings")
    assert [("name", "VARCHAR"), ("time", "TIMESTAMP_NS"), ("velocity", "DOUBLE")] == [row[:2] for row in described]
    assert [] == source.opened
    assert [30, 30, 30] == [row[10] for row in rows(engine, "SUMMARIZE iot.readings")]
    assert "Parquet" in str(rows(engine, "EXPLAIN SELECT * FROM iot.readings"))
    assert "Total Time" in str(rows(engine, "EXPLAIN ANALYZE SELECT * FROM iot.readings"))


def test_scans_stay_open_while_the_result_is_and_no_longer(engine: QueryEngine, source: MemorySource) -> None:
    """Files are pinned from the scan until the last row is computed or the result is closed, also after an error."""
    # More rows than the buffer between a query and its reader takes.
    with engine.query("SELECT readings.*, range FROM iot.readings, range(1000000)") as result:
        assert [False] == [scan.closed for scan in source.opened]
        result.close()
        assert [True] == [scan.closed for scan in source.opened]
    with pytest.raises(QueryInvalid):
        engine.query("SELECT nothing FROM iot.readings")
    assert all(scan.closed for scan in source.opened)
    assert 0 == engine.statistics.running


def test_a_result_can_be_limited(engine: QueryEngine) -> None:
    """`row_limit` ends a result after so many rows, whatever the statement is."""
    assert 70_000 == engine.query(LONG, row_limit=70_000).read_all().num_rows
    assert 3 == engine.query("SELECT * FROM iot.readings", row_limit=3).read_all().num_rows


def test_a_large_result_comes_in_batches_that_are_computed_as_they_are_read(engine: QueryEngine) -> None:
    """The first batch is there long before the last could be."""
    with engine.query(LONG) as result:
        batch = next(result.batches())
    assert 0 < batch.num_rows < 100_000


def test_a_query_out_of_time_is_ended(engine: QueryEngine) -> None:
    """A query that runs too long raises QueryTimeout, names the limit, and releases its permit."""
    with pytest.raises(QueryTimeout, match="150 ms"):
        engine.query(ENDLESS, timeout_ms=150)
    assert (0, 1) == (engine.statistics.running, engine.statistics.timed_out)


def test_the_time_covers_the_reading_of_the_result(engine: QueryEngine) -> None:
    """A result that is being read when the time is over ends with QueryTimeout."""
    with engine.query("SELECT i FROM range(100000000000) t(i)", timeout_ms=300) as result, pytest.raises(QueryTimeout):
        for _ in result.batches():
            pass


def test_the_setting_bounds_every_timeout(source: MemorySource) -> None:
    """A query with a longer timeout gets that of the setting."""
    engine = QueryEngine(source, [source.directory], QuerySettings(timeout_ms=100))
    with pytest.raises(QueryTimeout, match="100 ms"):
        engine.query(ENDLESS, timeout_ms=1_000_000)
    engine.close()


def test_a_query_beyond_the_memory_limit_fails_alone(source: MemorySource) -> None:
    """Too much memory is an error with an action, and the engine answers the next query."""
    engine = QueryEngine(source, [source.directory], QuerySettings(memory_limit_mb=32))
    with pytest.raises(QueryMemory, match="32 MB"):
        engine.query("SELECT list(i) FROM range(10000000) t(i) GROUP BY i // 3").read_all()
    assert [(30,)] == rows(engine, "SELECT count(*) FROM readings")
    engine.close()


def test_a_running_query_can_be_ended_by_another_thread(engine: QueryEngine) -> None:
    """`on_start` receives a function that ends the query before its first rows."""
    enders: list[object] = []

    def end_soon(end: object) -> None:
        enders.append(end)
        threading.Timer(0.1, end).start()  # type: ignore[arg-type]

    with pytest.raises(QueryCancelled):
        engine.query(ENDLESS, on_start=end_soon)
    assert 1 == len(enders)


def test_closing_a_result_ends_its_reading(engine: QueryEngine) -> None:
    """After `close` there are no more rows, and closing again is fine."""
    result = engine.query(LONG)
    batches = result.batches()
    next(batches)
    result.close()
    result.close()
    with pytest.raises(QueryCancelled):
        next(batches)


def test_permits_are_bounded_and_released(engine: QueryEngine) -> None:
    """One query too many is refused at once and retriable; a closed result releases its permit."""
    results = [engine.query(LONG) for _ in range(engine.settings.queries_max)]
    with pytest.raises(TooManyQueries) as raised:
        engine.query("SELECT 1")
    assert raised.value.retriable
    results[0].close()
    assert [(1,)] == rows(engine, "SELECT 1")
    for result in results:
        result.close()
    assert (0, 1) == (engine.statistics.running, engine.statistics.refused_busy)


def test_queries_at_the_same_time_see_their_own_tables(engine: QueryEngine, source: MemorySource) -> None:
    """Two results over one table are open together, each as of its own scan."""
    first = engine.query("SELECT count(*) FROM iot.readings")
    source.add(source.schemas["iot", "readings"], live=[readings(START_NS + 5 * DAY_NS, 7)])
    second = engine.query("SELECT count(*) FROM iot.readings")
    assert [{"count_star()": 30}] == first.read_all().to_pylist()
    assert [{"count_star()": 37}] == second.read_all().to_pylist()


def test_many_threads_may_query_at_once(engine: QueryEngine) -> None:
    """Concurrent queries give the same answers as one after the other."""
    answers: list[object] = []

    def run() -> None:
        answers.extend(rows(engine, "SELECT count(*) FROM iot.readings WHERE velocity >= 5") for _ in range(5))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [[(15,)]] * 20 == answers


class SourceAtOffset5(MemorySource):
    """A source that has reached offset 5 of every group."""

    def wait_for(self, reading: Reading) -> bool:
        """Whether the offsets are reached."""
        if all(offset <= 5 for offset in reading.after.values()):
            return True
        time.sleep(reading.timer.left_s)
        return False


def test_a_reader_sees_its_own_writes_or_an_error(tmp_path: Path) -> None:
    """A query with offsets waits for them; when they are not reached in time it does not answer from older rows."""
    source = SourceAtOffset5(tmp_path)
    engine = QueryEngine(source, [tmp_path])
    assert 1 == engine.query("SELECT 1", after={"n1": 5}).read_all().num_rows
    with pytest.raises(NotCaughtUp, match="offset 6 of group n1") as raised:
        engine.query("SELECT 1", after={"n1": 6}, timeout_ms=500)
    assert raised.value.retriable
    engine.close()


def test_a_broken_segment_is_an_error_of_the_node(engine: QueryEngine, source: MemorySource) -> None:
    """The error names a segment that is no Parquet file any more, or that is missing."""
    path = source.segments["iot", "readings"][0][0]
    path.write_bytes(b"not parquet at all")
    with pytest.raises(SegmentUnreadable):
        engine.query("SELECT * FROM iot.readings").read_all()
    path.unlink()
    with pytest.raises(SegmentUnreadable):
        engine.query("SELECT * FROM iot.readings").read_all()


def test_repeated_column_names_are_made_unique(engine: QueryEngine) -> None:
    """Every column of an answer has its own name, and a given name stays with its column."""
    assert ["a", "a_2", "a_3", "a_1"] == engine.query("SELECT 1 a, 2 a, 3 a, 4 a_1").read_all().schema.names


def test_a_closed_engine_refuses_queries(engine: QueryEngine) -> None:
    """After `close` every query is refused, and its permit is released."""
    engine.close()
    with pytest.raises(QueryError):
        engine.query("SELECT 1")
    assert 0 == engine.statistics.running


def test_the_closing_of_an_engine_ends_its_queries(engine: QueryEngine) -> None:
    """One whose rows are being read, and one whose statement executes at that moment; both may be retried."""
    result = engine.query("SELECT i FROM range(3000000) t(i)")
    begun, ended = threading.Event(), list[bool]()

    def run() -> None:
        with pytest.raises(QueryCancelled, match="stops") as raised:
            engine.query(ENDLESS, on_start=lambda _end: begun.set())
        ended.append(raised.value.retriable)

    thread = threading.Thread(target=run)
    thread.start()
    assert begun.wait(30)
    # Long enough that the statement executes.
    time.sleep(0.2)
    engine.close()
    with pytest.raises(QueryCancelled, match="stops"):
        result.read_all()
    thread.join(30)
    assert [True] == ended
    assert 0 == engine.statistics.running


def test_a_closed_result_keeps_no_unsealed_rows(engine: QueryEngine, source: MemorySource) -> None:
    """Neither the DuckDB instance nor a result that is still referenced holds the Arrow memory of a finished query."""
    values = np.arange(1000.0)
    rows = readings(START_NS, 1000)
    rows = rows.set_column(rows.schema.get_field_index("velocity"), "velocity", pa.array(values))
    tracked = weakref.ref(values)
    source.live["iot", "readings"] = [rows]
    result = engine.query("SELECT * FROM iot.readings")
    assert 1000 < result.read_all().num_rows
    source.live["iot", "readings"] = []
    source.opened.clear()
    del values, rows
    gc.collect()
    assert tracked() is None
    result.close()


@pytest.mark.parametrize("limit", [None, 3])
def test_an_answer_is_complete_only_behind_the_fence(
    engine: QueryEngine, source: MemorySource, limit: int | None
) -> None:
    """A source that stops serving after the first rows ends the answer with an error, also behind a row limit."""
    result = engine.query("SELECT * FROM iot.readings", row_limit=limit)
    source.stale = "it was stopped"
    batches = result.batches()
    assert 0 < next(batches).num_rows
    with pytest.raises(AnswerStale, match="it was stopped") as raised:
        list(batches)
    assert raised.value.retriable
    result.close()


def test_a_source_that_is_not_ready_is_not_read(engine: QueryEngine, source: MemorySource) -> None:
    """The reasons are in the error, and nothing was scanned."""
    source.reasons = ["group n1: recovering"]
    with pytest.raises(NotReady, match="group n1: recovering"):
        engine.query("SELECT * FROM iot.readings")
    assert [] == source.requests
    assert 0 == engine.statistics.running


def test_a_query_waits_for_what_the_source_has_confirmed(tmp_path: Path) -> None:
    """Of the offsets of the request and those confirmed, the higher ones count."""
    source = SourceAtOffset5(tmp_path)
    engine = QueryEngine(source, [tmp_path])
    source.confirmed = {"n1": 5}
    assert 1 == engine.query("SELECT 1", after={"n1": 3, "n2": 4}).read_all().num_rows
    source.confirmed = {"n1": 6}
    with pytest.raises(NotCaughtUp, match="offset 6 of group n1"):
        engine.query("SELECT 1", after={"n1": 3}, timeout_ms=500)
    engine.close()


class Reports:
    """Counts the unreadable segments that an engine reports."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


@pytest.fixture
def reporting(source: MemorySource) -> Iterator[tuple[QueryEngine, Reports]]:
    """An engine whose reports of unreadable segments are counted."""
    reports = Reports()
    engine = QueryEngine(source, [source.directory], on_unreadable=reports)
    yield engine, reports
    engine.close()


def test_files_that_went_with_a_replaced_store_are_no_damage(
    reporting: tuple[QueryEngine, Reports], source: MemorySource
) -> None:
    """A missing file is reported for a check of all digests, unless the source was replaced meanwhile."""
    engine, reports = reporting
    source.segments["iot", "readings"][0][0].unlink()
    with pytest.raises(SegmentUnreadable):
        engine.query("SELECT * FROM iot.readings").read_all()
    assert 1 == reports.count
    source.stale = "group n1 recovered"
    with pytest.raises(AnswerStale):
        engine.query("SELECT * FROM iot.readings").read_all()
    assert 1 == reports.count


def test_a_text_that_looks_like_a_segment_is_no_damage(reporting: tuple[QueryEngine, Reports]) -> None:
    """An error of the SQL stays one when it quotes the name of a Parquet file."""
    engine, reports = reporting
    with pytest.raises(QueryInvalid, match="Could not convert"):
        engine.query("SELECT CAST(name || '.parquet' AS INTEGER) FROM iot.readings").read_all()
    assert 0 == reports.count


def test_an_error_of_the_store_is_one_of_the_node(
    reporting: tuple[QueryEngine, Reports], source: MemorySource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scan that fails is no fault of the SQL, and is reported."""
    engine, reports = reporting

    def damaged(*_names: str, **_conditions: object) -> list[MemoryScan]:
        raise StoreDamaged("segment s cannot be read")

    monkeypatch.setattr(source, "scan", damaged)
    with pytest.raises(SegmentUnreadable, match="segment s cannot be read"):
        engine.query("SELECT * FROM iot.readings")
    assert (1, 0) == (reports.count, engine.statistics.running)


def test_live_rows_of_several_groups_are_one_table(engine: QueryEngine, source: MemorySource) -> None:
    """Groups with other tag values, other columns or no rows: each row comes with its own values."""
    source.live["iot", "readings"] = [
        readings(START_NS, 2, names=("a", "b")),
        readings(START_NS, 2, names=("c",)),
        readings(START_NS, 0),
        readings(START_NS, 1, names=("d",)).drop_columns(["velocity"]),
    ]
    source.segments.clear()
    sql = "SELECT name, velocity FROM readings ORDER BY name, velocity"
    assert [("a", 0.0), ("b", 1.0), ("c", 0.0), ("c", 1.0), ("d", None)] == rows(engine, sql)


@pytest.mark.parametrize("moment", ["now()", "CURRENT_TIMESTAMP", '"now"()', "get_current_timestamp()", "today()"])
def test_every_name_of_the_present_is_the_injected_clock(engine: QueryEngine, moment: str) -> None:
    """However a statement names the time at which it runs."""
    ((year,),) = rows(engine, f"SELECT max(y) FROM (SELECT year({moment}) AS y FROM iot.readings)")
    assert 2023 == year


def test_one_thread_interrupts_the_queries_of_an_engine(engine: QueryEngine) -> None:
    """A query with little time is ended beside one with much, and the thread ends with the engine."""
    timers = [thread for thread in threading.enumerate() if thread.name == "query-timer"]
    with engine.query(LONG):
        for _ in range(3):
            with pytest.raises(QueryTimeout):
                engine.query(ENDLESS, timeout_ms=50)
    (timer,) = [thread for thread in threading.enumerate() if thread.name == "query-timer" and thread not in timers]
    engine.close()
    timer.join(20)
    assert not timer.is_alive()


def test_queries_are_interrupted_also_beside_a_closed_connection() -> None:
    """The end of an engine closes connections of queries that still run: the others keep their time limit."""
    interrupter, interrupts = Interrupter(), threading.Semaphore(0)
    closed = duckdb.connect()
    closed.close()
    timers = [QueryTimer(interrupter, 1) for _ in range(2)]
    with timers[0].interrupts(partial(interrupt, closed)), timers[1].interrupts(interrupts.release):
        for _ in range(3):
            assert interrupts.acquire(timeout=60)
    for timer in timers:
        timer.finish()
    interrupter.close()
