"""Rollups of segments: what they have of the rows, and that nothing depends on their files."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.consumers.store import Store, StoreSettings, rollup_files
from headrace.consumers.store.rollup import pays, rollup_of
from headrace.consumers.store.rollup_columns import HOUR_NS, Rolled, RollupColumn, RollupRequest
from headrace.consumers.store.segment import Runs, SegmentRows
from headrace.schemas.tables import FieldType, TableSchema
from tests.unit.store.builders import CPU, Row, contents, drop, seal, write
from tests.unit.store.conftest import SETTINGS

ALWAYS = SETTINGS.model_copy(update={"rollup_rows_min": 1, "rollup_segment_rows_min": 1})
LOAD = RollupRequest(
    ("host", "rack"),
    tuple(RollupColumn(kind, "load") for kind in (Rolled.COUNT, Rolled.SUM, Rolled.MIN, Rolled.MAX, Rolled.LAST)),
)
VALUES = st.none() | st.sampled_from((0.0, -1.5, 2.25, 1e300, math.nan, math.inf, -math.inf))
INTEGERS = st.none() | st.integers(-(2**63), 2**63 - 1)


class Later(Executor):
    """Threads that do what is submitted when the test wants it."""

    def __init__(self) -> None:
        self.work: list[Any] = []

    def submit(self, function: Any, /, *given: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if getattr(function, "__name__", "") == "_make_pending":
            self.work.append(function)
        else:
            future.set_result(function(*given, **named))
        return future

    def run(self) -> None:
        """All of it."""
        while self.work:
            self.work.pop(0)()


def rows_of(columns: dict[str, list[Any]], times: list[int], lengths: list[int], kind: pa.DataType) -> SegmentRows:
    """Rows of series `s0`, `s1` and so on, one after another."""
    keys = pa.array([f"cpu,host=s{number}" for number in range(len(lengths))])
    sizes, at = np.array(lengths, np.int64), np.array(times, np.int64)
    return SegmentRows(
        Runs.of_times(keys, sizes, at), at, {name: pa.array(each, kind) for name, each in columns.items()}
    )


@given(st.lists(st.lists(st.tuples(st.integers(-30, 30), VALUES), min_size=1, max_size=30), min_size=1, max_size=4))
def test_a_rollup_has_the_aggregates_of_each_series_and_hour(series: list[list[tuple[int, Any]]]) -> None:
    """Under the rules of DuckDB: nulls count nowhere, NaN is the largest, and the minimum only where it is alone."""
    # Each time once; ten minutes apart, from before 1970 on.
    ordered = [sorted(dict(rows).items()) for rows in series]
    times = [tick * HOUR_NS // 6 for rows in ordered for tick, _ in rows]
    values = [value for rows in ordered for _, value in rows]
    batch = rollup_of(rows_of({"x": values}, times, [len(rows) for rows in ordered], pa.float64()))
    assert batch is not None
    groups: dict[tuple[int, int], list[tuple[int, Any]]] = defaultdict(list)
    for number, rows in enumerate(ordered):
        for tick, value in rows:
            groups[number, tick // 6 * HOUR_NS].append((tick * HOUR_NS // 6, value))
    found = batch.to_pylist()
    assert sorted(groups) == [(row["series"], row["hour"]) for row in found]
    for row in found:
        group = groups[row["series"], row["hour"]]
        known = [(time, value) for time, value in group if value is not None]
        assert (len(group), group[0][0], group[-1][0]) == (row["rows"], row["first_ns"], row["last_ns"])
        assert len(known) == row.get("count:x", row["rows"])
        if known:
            numbers = [value for _, value in known]
            assert known[0][0] == row.get("first_time:x", row["first_ns"])
            assert known[-1][0] == row.get("last_time:x", row["last_ns"])
            finite = [value for value in numbers if not math.isnan(value)]
            expected = {"first": numbers[0], "last": numbers[-1], "min": min(finite, default=math.nan)}
            expected["max"] = math.nan if len(finite) < len(numbers) else max(finite)
            expected["sum"] = sum(numbers)
            assert {name: repr(value) for name, value in expected.items() if name != "sum"} == {
                name: repr(row[f"{name}:x"]) for name in expected if name != "sum"
            }
            assert row["sum:x"] == pytest.approx(expected["sum"], nan_ok=True)
        else:
            assert [None] * 4 == [row[f"{name}:x"] for name in ("first", "last", "min", "sum")]


@given(st.lists(INTEGERS, min_size=1, max_size=40))
def test_a_sum_of_integers_keeps_all_its_bits(values: list[int | None]) -> None:
    """In two halves."""
    times = [number * 1_000_000 for number in range(len(values))]
    batch = rollup_of(rows_of({"n": values}, times, [len(values)], pa.int64()))
    assert batch is not None
    (row,) = batch.to_pylist()
    known = [value for value in values if value is not None]
    if known:
        assert sum(known) == (row["sum_high:n"] << 32) + row["sum_low:n"]
        assert (min(known), max(known)) == (row["min:n"], row["max:n"])
    else:
        assert row["sum_high:n"] is None


@pytest.mark.parametrize("time", [1, HOUR_NS - 1, 2**62, -(2**62)])
def test_no_rollup_of_times_that_sql_rounds(time: int) -> None:
    """SQL computes in microseconds, so that a time may be in another hour there."""
    assert rollup_of(rows_of({}, [time], [1], pa.int64())) is None


@pytest.mark.parametrize(("hours", "is_paid"), [(1, True), (2, True), (3, False)])
def test_a_rollup_pays_where_rows_are_many(hours: int, is_paid: bool) -> None:
    """By the first and last time of each series."""
    runs = Runs.of_times(
        pa.array(["cpu"]), np.array([32], np.int64), np.linspace(0, hours * HOUR_NS - 1, 32).astype(np.int64)
    )
    assert is_paid == pays(runs, 32, 16)


def opened(home: Path, settings: StoreSettings = ALWAYS) -> tuple[Store, Later]:
    """A store whose missing rollups are made when the test wants it."""
    later = Later()
    return Store.open(home, "n1", settings, later), later


def minutes(host: str, load: float = 1.0, count: int = 50) -> list[Row]:
    """One row a minute."""
    return [({"host": host}, number * HOUR_NS // 60, {"load": load + number}) for number in range(count)]


def rolled(
    store: Store, schema: TableSchema = CPU, request: RollupRequest = LOAD, **conditions: Any
) -> list[dict[str, Any]]:
    """The rollups of a scan."""
    with store.scan(schema.database, schema.table, rollup=request, **conditions) as scan:
        return [] if scan.rollup is None else scan.rollup.sort_by("time").to_pylist()


def files_read(store: Store) -> int:
    """The files of a scan that may use rollups."""
    with store.scan("plant", "cpu", rollup=LOAD) as scan:
        return len(scan.files)


def rollup_paths(home: Path) -> list[Path]:
    """The files of rollups."""
    return sorted((home / "rollups").rglob("*.rollup"))


def test_a_seal_leaves_a_rollup(home: Path) -> None:
    """A scan has it in the place of the file, with the tags that are wanted."""
    store, _ = opened(home)
    write(store, 1, minutes("a"))
    seal(store, 2)
    (row,) = rolled(store)
    assert ("a", None, 50, 1275.0, 1.0, 50.0, 50.0) == tuple(row[name] for name in row if name != "time")
    assert 0 == files_read(store)
    assert 50 == len(contents(store))
    store.close()


def test_a_rollup_does_not_count_rows_without_a_value(home: Path) -> None:
    """Of a field that is null in some rows. Its first and last values have times of their own, too."""
    times = tuple(RollupColumn(kind, "load") for kind in (Rolled.COUNT, Rolled.FIRST_TIME, Rolled.LAST_TIME))
    store, _ = opened(home)
    write(
        store,
        1,
        [
            (tags, time, fields if 10 <= time // (HOUR_NS // 60) < 30 else {"load": None, "busy": 1})
            for tags, time, fields in minutes("a")
        ],
    )
    seal(store, 2)
    (row,) = rolled(store, request=RollupRequest(("host",), times))
    count, first, last = [row[name] for name in row if name not in ("time", "host")]
    minute = HOUR_NS // 60
    assert (20, 10 * minute, 29 * minute) == (count, pd.Timestamp(first).value, pd.Timestamp(last).value)
    store.close()


def test_a_scan_that_wants_none_gets_rows(home: Path) -> None:
    """As before."""
    store, _ = opened(home)
    write(store, 1, minutes("a"))
    seal(store, 2)
    with store.scan("plant", "cpu") as scan:
        assert (1, None) == (len(scan.files), scan.rollup)
    store.close()


def test_only_series_with_the_tags_are_taken(home: Path) -> None:
    """Of the rollup of a segment with others."""
    store, _ = opened(home)
    write(store, 1, [row for number in range(20) for row in minutes(f"h{number}")])
    seal(store, 2)
    assert {"h3", "h7"} == {row["host"] for row in rolled(store, tags={"host": ("h3", "h7")})}
    assert 20 == len({row["host"] for row in rolled(store)})
    store.close()


@pytest.mark.parametrize("change", ["late", "again", "delete"])
def test_a_segment_with_rows_that_do_not_count_is_read(home: Path, change: str) -> None:
    """One row that was written again, or a delete, is enough. A late row between others changes nothing of it."""
    store, _ = opened(home)
    write(store, 1, minutes("a"))
    seal(store, 2)
    if change == "delete":
        store.delete(3, 1, "plant", "cpu", {"host": ("a",)}, 0, 1)
    else:
        time = 60 * 1_000_000_000 if change == "again" else 1_000_000_000
        write(store, 3, [({"host": "a"}, time, {"load": 7.0})])
    assert (change == "late") == bool(rolled(store))
    seal(store, 4)
    assert {"late": 2, "again": 0, "delete": 0}[change] == len(rolled(store))
    store.compact(5, [entry.name for entry in store.segments()]).run()
    assert {"late": 51, "again": 50, "delete": 49}[change] == sum(row["__rollup_0"] for row in rolled(store))
    assert 1 == len(rollup_paths(home))
    store.close()


@pytest.mark.parametrize("damage", ["gone", "cut", "flipped", "other", "empty", "text"])
def test_a_bad_rollup_is_never_answered_from(home: Path, damage: str) -> None:
    """The file is read instead, and the rollup is made again."""
    store, later = opened(home)
    write(store, 1, minutes("a"))
    write(store, 2, minutes("b", 5.0))
    seal(store, 3)
    good = rolled(store)
    paths = rollup_paths(home)
    data = paths[0].read_bytes()
    bad = {
        "cut": data[: len(data) // 2],
        "flipped": bytes([*data[:-40], data[-40] ^ 4, *data[-39:]]),
        "other": data.replace(b'"content_digest":"', b'"content_digest":"0', 1),
        "empty": b"",
        "text": b"\xff\n\xff",
    }
    if damage == "gone":
        paths[0].unlink()
    else:
        paths[0].write_bytes(bad[damage])
    store.rollups.forget()
    assert 1 == files_read(store)
    assert rolled(store) != good
    assert (damage != "gone") == (store.rollups.statistics.damaged > 0)
    later.run()
    assert (0, good) == (files_read(store), rolled(store))
    store.close()


def test_a_crash_between_segment_and_rollup_costs_nothing(home: Path) -> None:
    """Neither a rollup without its segment, nor a segment without its rollup, nor half of one."""
    store, later = opened(home)
    write(store, 1, minutes("a"))
    seal(store, 2)
    store.close()
    (path,) = rollup_paths(home)
    orphan = path.with_name(path.name.replace("000001-", "000009-"))
    orphan.write_bytes(path.read_bytes())
    partial = path.with_name(f"{path.name}.1.partial")
    partial.write_bytes(b"x")
    path.unlink()
    store, later = opened(home)
    assert not orphan.exists()
    assert not partial.exists()
    assert 1 == files_read(store)
    later.run()
    assert 0 == files_read(store)
    store.close()


def test_a_full_disk_is_no_error_of_a_seal(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The segment is there without its rollup."""
    store, _ = opened(home)

    def full(path: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device", str(path))

    write(store, 1, minutes("a"))
    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", full)
        seal(store, 2)
    assert 1 == files_read(store)
    assert [] == rollup_paths(home)
    store.close()


def test_a_segment_that_is_gone_has_no_rollup(home: Path) -> None:
    """After a drop."""
    store, _ = opened(home)
    write(store, 1, minutes("a"))
    seal(store, 2)
    job = store.drop(3, 1, "plant", "cpu", 2 * HOUR_NS)
    assert job is not None
    job.run()
    assert [] == rollup_paths(home)
    store.close()


@pytest.mark.parametrize("end", ["dropped", "closed"])
def test_a_segment_that_goes_while_its_rollup_is_made_leaves_none(
    home: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """A drop or a merge removes the rollups that are there; one that came behind it stayed up to the next start."""
    store, later = opened(home, ALWAYS.model_copy(update={"rollup_segment_rows_min": 100}))
    write(store, 1, minutes("a"))
    seal(store, 2)
    assert 1 == files_read(store)
    made = rollup_of

    def meanwhile(rows: SegmentRows) -> pa.RecordBatch | None:
        drop(store, 3, 2 * HOUR_NS) if end == "dropped" else store.close()
        return made(rows)

    monkeypatch.setattr(f"{rollup_files.__name__}.rollup_of", meanwhile)
    later.run()
    store.close()
    assert [] == rollup_paths(home)


def test_a_small_segment_gets_its_rollup_when_a_query_wants_it(home: Path) -> None:
    """It is read once; a merge has mostly taken it before."""
    store, later = opened(home, ALWAYS.model_copy(update={"rollup_segment_rows_min": 100}))
    write(store, 1, minutes("a"))
    seal(store, 2)
    assert ([], 1) == (rollup_paths(home), files_read(store))
    later.run()
    assert (1, 0) == (len(rollup_paths(home)), files_read(store))
    store.close()


def test_what_does_not_pay_is_remembered(home: Path) -> None:
    """Such a segment is read, and its rollup is not made again at each query."""
    store, later = opened(home, SETTINGS.model_copy(update={"rollup_segment_rows_min": 1}))
    write(store, 1, minutes("a", count=5))
    seal(store, 2)
    assert (1, []) == (files_read(store), later.work)
    store.close()


def test_without_rollups_there_are_no_files(home: Path) -> None:
    """Those that were there are removed."""
    store, _ = opened(home)
    write(store, 1, minutes("a"))
    seal(store, 2)
    store.close()
    store, later = opened(home, ALWAYS.model_copy(update={"rollups": False}))
    assert (1, [], []) == (files_read(store), later.work, rollup_paths(home))
    store.close()


def test_an_older_segment_has_the_types_of_the_newest_schema(home: Path) -> None:
    """A field that it has not is null, one that was widened is of the wider type."""
    store, _ = opened(home)
    old = TableSchema("plant", "cpu", 1, ("host",), (("load", FieldType.INT64),))
    new = TableSchema("plant", "cpu", 2, ("host", "rack"), (("load", FieldType.FLOAT64), ("up", FieldType.BOOL)))
    write(store, 1, [({"host": "a"}, number * 1_000_000_000, {"load": 2**62 + number}) for number in range(4)], old)
    seal(store, 2)
    write(store, 3, [({"host": "a", "rack": "r"}, 9_000_000_000, {"load": 0.5, "up": True})], new)
    seal(store, 4)
    wanted = RollupRequest(
        ("host", "rack"), (*LOAD.columns, RollupColumn(Rolled.MAX, "up"), RollupColumn(Rolled.COUNT, "up"))
    )
    first, second = sorted(rolled(store, new, wanted), key=lambda row: row["rack"] or "")
    assert (4, float(2**64), float(2**62), None, 0) == (
        *(first[f"__rollup_{place}"] for place in (0, 1, 2)),
        first["__rollup_5"],
        first["__rollup_6"],
    )
    assert (1, 0.5, True, 1) == tuple(second[f"__rollup_{place}"] for place in (0, 1, 5, 6))
    store.close()


def test_the_cache_has_a_limit(home: Path) -> None:
    """What was not used for the longest time is read again."""
    store, _ = opened(home, ALWAYS.model_copy(update={"rollups_cache_bytes": 1}))
    write(store, 1, [row for number in range(20) for row in minutes(f"h{number}")])
    seal(store, 2)
    assert 20 == len(rolled(store)) == len(rolled(store))
    assert 3 == len(store.segments())
    assert 0 < store.rollups.statistics.cached_bytes < 20_000
    store.close()


def test_few_segments_wait_for_a_rollup(home: Path) -> None:
    """Later queries ask for the others."""
    store, later = opened(home, ALWAYS.model_copy(update={"rollups_pending_max": 1}))
    write(store, 1, [row for number in range(20) for row in minutes(f"h{number}")])
    seal(store, 2)
    for path in rollup_paths(home):
        os.unlink(path)
    for left in (3, 2, 1, 0):
        assert left == files_read(store)
        later.run()
    store.close()


def test_one_rollup_that_fails_does_not_stop_the_others(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the error is: the segment is read, and the rollup of the next one is made."""
    store, later = opened(home)
    write(store, 1, minutes("a"))
    seal(store, 2)
    rollup_paths(home)[0].unlink()
    store.rollups.forget()
    assert 1 == files_read(store)

    def a_defect(_rows: SegmentRows) -> pa.RecordBatch:
        raise KeyError("a defect")

    with monkeypatch.context() as broken:
        broken.setattr(rollup_files, "rollup_of", a_defect)
        later.run()
    assert [] == rollup_paths(home)
    store.close()
    store, later = opened(home)
    assert 1 == files_read(store)
    later.run()
    assert 0 == files_read(store)
    store.close()
