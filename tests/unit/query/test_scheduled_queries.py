"""Queries on the driver scheduler: turns, places, memory, ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.consumers.query import session
from headrace.consumers.query.database import PAUSE_ROWS, PAUSE_ROWS_JOINED
from headrace.consumers.query.engine import QueryEngine, scheduler_limits
from headrace.consumers.query.fragment_drivers import FragmentDrivers
from headrace.consumers.query.query_errors import (
    QueryCancelled,
    QueryMemory,
    QueryTimeout,
    QueryUnknown,
    TooManyQueries,
)
from headrace.consumers.query.query_run import SMALL_MB, memory_sizes
from headrace.consumers.query.session import Session
from headrace.consumers.query.settings import QuerySettings
from headrace.consumers.query.spill_directory import SPILL_DIRECTORY, with_spill_directory
from headrace.consumers.query.views import view_query
from headrace.consumers.scheduling.driver import BlockedOn, DriverSpec
from headrace.consumers.scheduling.driver_task import Submission
from headrace.consumers.scheduling.memory_pool import BYTES_PER_MB
from headrace.consumers.scheduling.task_states import TaskState
from headrace.consumers.scheduling.threaded_driver import Turn
from tests.unit.query.memory_source import READINGS, MemorySource, readings
from tests.unit.scheduling.parts import ScriptedDriver, blocked
from tests.waiting import eventually

START_NS = 1_700_006_400_000_000_000
ROWS = 600_000
WIDE = "SELECT * FROM iot.readings AS a, range(1000)"
MANY = "SELECT i FROM range(2000000) t(i)"
"""More rows than the output holds: they wait for their reader, once they have begun."""


@pytest.fixture
def source(tmp_path: Path) -> MemorySource:
    """One large segment, and rows in memory."""
    source = MemorySource(tmp_path / "segments")
    source.directory.mkdir()
    live = readings(START_NS + 2 * ROWS, 100_000, 1)
    source.add(READINGS, segments=[readings(START_NS, ROWS, 1)], live=[live])
    return source


@pytest.fixture
def engine(source: MemorySource) -> Iterator[QueryEngine]:
    """An engine with one worker, short slices, and memory for a few queries; it holds nothing at its end."""
    settings = QuerySettings(
        memory_limit_mb=3 * SMALL_MB + 100, memory_per_query_mb=100, threads=1, slice_ms=0.1, queries_per_user_max=2
    )
    engine = QueryEngine(source, [source.directory], settings)
    try:
        yield engine
        eventually(lambda: engine.scheduler.figures().queries == 0, "the end of every query")
        figures = engine.scheduler.figures()
        assert (0, 0, 0, 0) == (figures.reserved, figures.timeouts, figures.memory_bytes, engine.statistics.running)
    finally:
        engine.close()


def rows(engine: QueryEngine, sql: str) -> int:
    """How many rows an answer has."""
    return int(engine.query(sql).read_all().num_rows)


def noted_texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements that sessions run from now on."""
    texts, run = list[str](), Session.run

    def noted(session: Session, sql: str, *, empty: bool = False) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        texts.append(sql)
        return run(session, sql, empty=empty)

    monkeypatch.setattr(Session, "run", noted)
    return texts


@pytest.mark.parametrize("condition", ["true", "velocity >= 0 AND velocity + 1 > 0"])
def test_a_scan_gives_its_worker_back_again_and_again(
    engine: QueryEngine, condition: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An aggregate has one row and no batches to stop at; its slices are those of its scan, in files and in memory.

    Beside other queries: one that is alone reads so few values at once.
    """
    monkeypatch.setattr(FragmentDrivers, "alone", False)
    sql = f"SELECT sum(velocity), max(time) FROM iot.readings WHERE {condition}"
    expected = sum(range(ROWS)) + sum(range(100_000))
    assert expected == engine.query(sql).read_all().column(0)[0].as_py()
    slices = sum(level.slices for level in engine.scheduler.figures().levels.values())
    assert slices > (ROWS + 100_000) // 32_768 // 2


@pytest.mark.parametrize("alone", [False, True])
def test_a_filter_that_starves_the_pause_within_files_leaves_those_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    """DuckDB applies a filter that no row passes before it looks for a pause: the worker is free behind each file.

    A query that is alone saves the plan of so many parts.
    """
    monkeypatch.setattr(FragmentDrivers, "alone", alone)
    parts = list[int]()

    def counted(*given: Any, **named: Any) -> str:
        found = view_query(*given, **named)
        parts.append(found.count("read_parquet"))
        return found

    monkeypatch.setattr(session, "view_query", counted)
    source = MemorySource(tmp_path / "segments")
    source.directory.mkdir()
    source.add(READINGS, segments=[readings(START_NS + 2 * ROWS * day, ROWS, 1) for day in range(6)])
    engine = QueryEngine(source, [source.directory], QuerySettings(threads=1, slice_ms=0.1))
    try:
        before = sum(level.slices for level in engine.scheduler.figures().levels.values())
        sql = "SELECT name, time FROM iot.readings WHERE velocity = 0.5"
        assert 0 == engine.query(sql).read_all().num_rows
        slices = sum(level.slices for level in engine.scheduler.figures().levels.values()) - before
        assert alone or slices >= 6
        assert parts == [1 if alone else 6]
    finally:
        engine.close()


def test_a_reader_that_waits_needs_no_worker(engine: QueryEngine) -> None:
    """Its query is blocked on its output, and the only worker answers others; it gets all its rows at last."""
    with engine.query(MANY) as slow:
        batches = slow.batches()
        count = next(batches).num_rows
        eventually(lambda: [BlockedOn.OUTPUT] == [each.blocked_on for each in engine.reports()], "a full output")
        assert 1 == rows(engine, "SELECT 1")
        assert 2_000_000 == count + sum(batch.num_rows for batch in batches)


def test_large_queries_with_slow_readers_leave_memory_to_others(source: MemorySource) -> None:
    """Each holds its output and what DuckDB holds; four begin where three could with all that they reserve."""
    engine = QueryEngine(source, [source.directory], QuerySettings(memory_limit_mb=280, memory_per_query_mb=100))
    sql = "SELECT velocity, time FROM iot.readings ORDER BY velocity"
    try:
        with ExitStack() as slow:
            for _ in range(4):
                batches = slow.enter_context(engine.query(sql)).batches()
                next(batches)
            eventually(lambda: {BlockedOn.OUTPUT} == {each.blocked_on for each in engine.reports()}, "full outputs")
            assert engine.scheduler.figures().memory_bytes <= 280 * BYTES_PER_MB
            assert 1 == rows(engine, "SELECT sum(velocity) FROM iot.readings")
            assert ROWS + 100_000 - 32_768 == sum(batch.num_rows for batch in batches)
        eventually(lambda: engine.scheduler.figures().memory_bytes == 0, "memory")
    finally:
        engine.close()


def test_a_running_query_is_reported_and_killed(engine: QueryEngine) -> None:
    """By its id, with its SQL and user; its reader gets QueryCancelled, and the id is unknown from then on."""
    with engine.query(WIDE, user="eva") as result:
        [report] = engine.reports()
        assert (result.query_id, WIDE, "eva") == (report.id, report.sql, report.user)
        assert 1 == sum(report.drivers[state] for state in (TaskState.READY, TaskState.RUNNING, TaskState.BLOCKED))
        engine.kill(result.query_id)
        with pytest.raises(QueryCancelled, match="was killed"):
            list(result.batches())
    with pytest.raises(QueryUnknown):
        engine.kill(result.query_id)


def test_queries_of_one_user_are_bounded(engine: QueryEngine) -> None:
    """One more is refused and may be retried; those of another user are not."""
    with engine.query(MANY, user="eva"), engine.query(MANY, user="eva"):
        with pytest.raises(TooManyQueries, match="of user eva") as raised:
            engine.query("SELECT 1", user="eva")
        assert raised.value.retriable
        assert 1 == engine.query("SELECT 1", user="ada").read_all().num_rows


def test_a_query_waits_for_memory_without_a_worker(engine: QueryEngine) -> None:
    """A query beyond the memory of the node is blocked, and begins when another one has ended."""
    answers, steps = list[int](), [blocked() for _ in range(6)]
    for number, (step, _) in enumerate(steps):
        holder = DriverSpec(ScriptedDriver([step]))
        engine.scheduler.submit(
            Submission(f"holder {number}", [holder], 60_000, SMALL_MB * BYTES_PER_MB, user=str(number))
        )
    waiting = threading.Thread(target=lambda: answers.append(rows(engine, "SELECT 1")))
    waiting.start()
    eventually(lambda: BlockedOn.MEMORY in [each.blocked_on for each in engine.reports()], "a wait for memory")
    eventually(lambda: engine.scheduler.figures().tasks[TaskState.RUNNING] == 0, "a free worker")
    assert [] == answers
    steps[0][1].set_result(None)
    waiting.join(60)
    assert [1] == answers
    for _, future in steps[1:]:
        future.set_result(None)


def test_a_sort_of_many_rows_has_all_the_memory_of_a_query(engine: QueryEngine) -> None:
    """It exchanges what it had at first; its rows are those of one run."""
    with engine.query("SELECT * FROM iot.readings ORDER BY velocity, time") as result:
        assert [100_000_000] == [each.memory_bytes for each in engine.reports()]
        assert ROWS + 100_000 == sum(batch.num_rows for batch in result.batches())


@pytest.mark.parametrize(
    ("limit_mb", "per_query_mb", "sizes"),
    [
        (1_000, 750, (32, 250, 750)),
        (1_000, 250, (32, 250)),
        (1_000, 20, (20,)),
        (500, 750, (32, 125, 375)),
        (196, 100, (32, 100)),
        (200, 750, (32, 150)),
        (250, 250, (32, 250)),
        (64, 750, (32, 64)),
        (16, 750, (16,)),
    ],
)
def test_a_query_has_more_memory_step_by_step(limit_mb: int, per_query_mb: int, sizes: tuple[int, ...]) -> None:
    """First little, then a part that leaves room for others like it, at last all that one query may have."""
    assert sizes == memory_sizes(limit_mb, per_query_mb)
    assert (
        sizes[-1] * BYTES_PER_MB
        == scheduler_limits(
            QuerySettings(memory_limit_mb=limit_mb, memory_per_query_mb=per_query_mb)
        ).memory_per_query_bytes
    )


SORTED = "SELECT velocity, velocity || repeat('x', 200) AS text FROM iot.readings ORDER BY velocity DESC"
"""All rows are sorted; without a disk that takes more than SORTING_MB."""
SORTING_MB = 100


@pytest.mark.parametrize("spills", [False, True])
def test_a_sort_of_everything_spills_in_its_limit(source: MemorySource, tmp_path: Path, spills: bool) -> None:
    """It fails where it may not write; where it may, it is right, and nothing of it is left on the disk."""
    spill = tmp_path / "spill"
    settings = QuerySettings(
        memory_limit_mb=200, memory_per_query_mb=SORTING_MB, spill_directory=str(spill) if spills else ""
    )
    engine = QueryEngine(source, [source.directory], settings)
    try:
        if spills:
            found = engine.query(SORTED).read_all().column("velocity").to_pylist()
            assert found == sorted([*range(ROWS), *range(100_000)], reverse=True)
            assert spill.exists()
        else:
            with pytest.raises(QueryMemory, match=f"{SORTING_MB} MB"):
                engine.query(SORTED)
    finally:
        engine.close()
    assert [] == (list(spill.iterdir()) if spills else [])


def test_a_query_alone_has_nearly_all_memory(source: MemorySource) -> None:
    """What cannot spill meets each limit but the last, and begins again; nobody else waits for memory."""
    engine = QueryEngine(source, [source.directory], QuerySettings(memory_limit_mb=400))
    try:
        lists = "SELECT len(list(i)) AS n FROM range(8000000) t(i)"
        with engine.query(f"SELECT n, i FROM ({lists}), range(2000000) u(i)") as result:
            assert [300_000_000] == [each.memory_bytes for each in engine.reports() if each.id == result.query_id]
            assert 1 == rows(engine, "SELECT 1")
    finally:
        engine.close()


def test_spilled_rows_are_beside_the_data(tmp_path: Path) -> None:
    """What a killed node left there is removed; a directory of the settings is left as it is."""
    left = tmp_path / SPILL_DIRECTORY / "1-0" / "rows"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"left")
    assert str(tmp_path) == with_spill_directory(QuerySettings(spill_directory=str(tmp_path)), tmp_path).spill_directory
    assert left.exists()
    assert str(left.parents[1]) == with_spill_directory(QuerySettings(), tmp_path).spill_directory
    assert not left.exists()


def test_any_time_is_one_that_ends(engine: QueryEngine) -> None:
    """A millisecond is an error at once; a million years are bounded, and others still end in their time."""
    with engine.query(WIDE, timeout_ms=10**15):
        for timeout_ms in (1, 20):
            with pytest.raises(QueryTimeout, match=f"{timeout_ms} ms"):
                engine.query("SELECT sum(i) FROM range(1000000000000) t(i)", timeout_ms=timeout_ms)


def test_a_statement_at_its_memory_limit_fails_alone(engine: QueryEngine) -> None:
    """One that has rows of everything ends with an error of its own; another one is read on."""
    with engine.query(MANY) as other:
        batches = other.batches()
        count = next(batches).num_rows
        with pytest.raises(Exception, match="100 MB"):
            engine.query("SELECT list(i) FROM range(50000000) t(i) GROUP BY i // 3").read_all()
        assert 2_000_000 == count + sum(batch.num_rows for batch in batches)


def test_a_table_is_read_twice_by_one_statement(engine: QueryEngine) -> None:
    """Rows in memory are given anew to each of its scans."""
    sql = "SELECT count(*) FROM iot.readings AS a JOIN iot.readings AS b USING (name, time)"
    assert ROWS + 100_000 == engine.query(sql).read_all().column(0)[0].as_py()


def test_the_set_up_of_a_query_is_several_steps(engine: QueryEngine) -> None:
    """It pauses behind the check, the plan and the binding of its statement: each takes as long as a slice."""
    before = sum(engine.scheduler.statistics.steps.counts)
    engine.query("SELECT max(velocity) FROM iot.readings WHERE time < '2023-11-15'").read_all()
    # Beside these pauses there are those behind the scans, behind the rows, and at the end.
    eventually(lambda: sum(engine.scheduler.statistics.steps.counts) - before >= 6, "six steps")


def test_a_long_statement_leaves_a_worker_until_its_first_rows(
    engine: QueryEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To bind many scans is one step. Short statements have no such turn, and the scans of a long one are few."""
    once, texts, set_unbounded_once = list[Turn](), noted_texts(monkeypatch), Turn.set_unbounded_once

    def noted(turn: Turn) -> None:
        once.append(turn)
        set_unbounded_once(turn)

    monkeypatch.setattr(Turn, "set_unbounded_once", noted)
    assert 1 == rows(engine, "SELECT sum(velocity) FROM iot.readings")
    assert [] == once
    many = " UNION ALL ".join(["FROM iot.readings"] * 40)
    assert 1 == rows(engine, f"SELECT sum(velocity) FROM ({many}) WHERE velocity < 0")
    # To check, to plan, to divide and to bind it.
    assert 4 == len(once)
    # A scan of files for each use, with a table to pause at behind it, and one of the rows in memory.
    assert (40, 80) == (texts[-1].count("read_parquet"), texts[-1].count("temp.main"))
    steps = engine.scheduler.statistics.steps
    assert sum(steps.counts) > 40
    # Over a view, whose text has the scan of its three columns once.
    for uses, long_steps in ((8, 0), (12, 1)):
        once.clear()
        some = " UNION ALL ".join(["FROM readings"] * uses)
        assert 1 == rows(engine, f"SELECT (SELECT sum(velocity) FROM ({some}) WHERE name < 'a' OR time < '2001-01-01')")
        assert 0 == texts[-1].count("read_parquet")
        assert long_steps == len(once)


def test_a_statement_that_joins_pauses_more_often(engine: QueryEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a join does with a row takes longer than to find it."""
    texts = noted_texts(monkeypatch)
    many = " UNION ALL ".join(["FROM iot.readings"] * 40)
    assert 1 == rows(engine, f"SELECT sum(velocity) FROM ({many}) WHERE velocity < 0")
    assert 1 == rows(
        engine,
        f"SELECT sum(a.velocity) FROM ({many}) AS a JOIN iot.readings AS b USING (name, time) WHERE a.velocity < 0",
    )
    often = [[text.count(f"& {pause_rows - 1})") for pause_rows in (PAUSE_ROWS, PAUSE_ROWS_JOINED)] for text in texts]
    assert [[40, 0], [0, 41]] == often


def test_a_statement_that_outgrew_its_memory_leaves_a_worker(
    engine: QueryEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its groups are many, and their end is one long step."""
    unbounded = list[Turn]()
    monkeypatch.setattr(Turn, "set_unbounded", lambda turn: unbounded.append(turn))
    engine.query("SELECT count(*) FROM (SELECT name, sum(velocity) FROM iot.readings GROUP BY name)").read_all()
    assert [] == unbounded
    many = "SELECT count(n) FROM (SELECT time, velocity, count(*) AS n, max(velocity) AS m FROM iot.readings GROUP BY time, velocity)"
    engine.query(many).read_all()
    assert 1 == len(unbounded)
