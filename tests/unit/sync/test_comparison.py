"""`headrace sync verify`: which differences of an edge and its centre are found, over real SQL of two databases."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime

import duckdb
import pyarrow as pa
import pytest

from headrace.consumers.sync.comparison import (
    DAY_COLUMN,
    ComparedTable,
    DayVerdict,
    OwnedDevices,
    compare_day,
    days_sql,
    exit_code,
    kept_days,
    keyed,
    owned_rows,
    series_sql,
)
from headrace.schemas.tables import FieldType, TableSchema

DAY = date(2024, 5, 1)
DAY_NS = 86_400 * 10**9
BEGIN_NS = int(datetime(2024, 5, 1, tzinfo=UTC).timestamp()) * 10**9
FIELDS = (("t", FieldType.STRING), ("v", FieldType.INT64))
EDGE = TableSchema("plant", "m", 1, ("dev",), FIELDS)
OWNERS = {"m,dev=a": "me", "m,dev=b": "me", "m,dev=x": "other", "mm,dev=a": "me"}
Row = tuple[str | None, int, int | None, str | None]
ROWS: list[Row] = [("a", 0, 1, "p"), ("a", 1, 2, None), ("b", 0, None, "q's"), ("a", DAY_NS, 3, "r")]


def database(rows: list[Row], kind: str = "BIGINT") -> duckdb.DuckDBPyConnection:
    """A database with these rows: device, time in ns from the beginning of the day, value, text."""
    found = duckdb.connect()
    found.execute("CREATE SCHEMA plant")
    found.execute(f"CREATE TABLE plant.m (time TIMESTAMP_NS, dev VARCHAR, v {kind}, t VARCHAR)")
    for device, time_ns, value, text in rows:
        inserted = "INSERT INTO plant.m VALUES (make_timestamp_ns($1), $2, $3, $4)"
        found.execute(inserted, [BEGIN_NS + time_ns, device, value, text])
    return found


def answer(connection: duckdb.DuckDBPyConnection, sql: str) -> pa.Table:
    """Rows as a node sends them."""
    return connection.sql(sql).to_arrow_table()


def compared(
    edge: list[Row],
    centre: list[Row],
    *,
    schema: TableSchema = EDGE,
    kind: str = "BIGINT",
    owners: Mapping[str, str] = OWNERS,
    portable: bool = False,
) -> DayVerdict:
    """The verdict about one day."""
    table, devices = ComparedTable(EDGE, schema), OwnedDevices.of(owners, "m", "me")
    here = answer(database(edge), series_sql(table, EDGE, DAY, None, portable=portable))
    there = answer(database(centre, kind), series_sql(table, schema, DAY, devices, portable=portable))
    return compare_day(EDGE, DAY, keyed(EDGE, here), owned_rows(keyed(schema, there), devices), devices)


@pytest.mark.parametrize("portable", [False, True])
def test_equal_rows_are_equal_in_any_order(portable: bool) -> None:
    """Rows of other senders at the centre, and of other days, do not count."""
    verdict = compared(ROWS, [("x", 0, 9, "z"), *reversed(ROWS)], portable=portable)
    assert DayVerdict("plant", "m", "2024-05-01", 3, 3, True) == verdict


@pytest.mark.parametrize("portable", [False, True])
@pytest.mark.parametrize(
    ("centre", "difference"),
    [
        (ROWS[1:], "m,dev=a: 2 rows at the edge, 1 at the centre"),
        (ROWS[:2], "m,dev=b: 1 row at the edge alone"),
        ([*ROWS, ("b", 5, 1, "s")], "m,dev=b: 1 row at the edge, 2 at the centre"),
        ([("a", 0, 7, "p"), *ROWS[1:]], "m,dev=a: 2 rows at both ends, and not all are equal"),
        ([("a", 0, 1, None), ("a", 1, 2, "p"), *ROWS[2:]], "m,dev=a: 2 rows at both ends, and not all are equal"),
        ([("a", 2, 1, "p"), *ROWS[1:]], "m,dev=a: 2 rows at both ends, and not all are equal"),
        ([("b", 0, None, "p"), *ROWS[:2]], "m,dev=b: 1 row at both ends, and not all are equal"),
    ],
)
def test_a_difference_is_named(centre: list[Row], difference: str, portable: bool) -> None:
    """A row less, a row more, another value, two values that changed places, another time."""
    verdict = compared(ROWS, centre, portable=portable)
    assert (False, (difference,)) == (verdict.equal, verdict.differences)


def test_a_device_of_another_sender_is_named() -> None:
    """Its rows at the edge were rejected; those of the other sender do not make up for them."""
    verdict = compared([("x", 0, 9, "z")], [("x", 0, 9, "z")])
    assert (1, 0, False) == (verdict.edge_rows, verdict.centre_rows, verdict.equal)
    assert ("m,dev=x: 1 row at the edge, and the device is that of sender other",) == verdict.differences


@pytest.mark.parametrize("portable", [False, True])
def test_a_column_that_the_centre_has_widened_is_equal(portable: bool) -> None:
    """An int64 of the edge that is a float64 at the centre is compared as one; columns of others do not count."""
    wider = TableSchema("plant", "m", 3, ("dev",), (("t", FieldType.STRING), ("v", FieldType.FLOAT64)))
    assert compared(ROWS, ROWS, schema=wider, kind="DOUBLE", portable=portable).equal
    narrower = TableSchema("plant", "m", 1, ("dev",), (("v", FieldType.INT64),))
    assert not compared(ROWS, ROWS, schema=narrower, portable=portable).equal


def test_a_centre_without_the_table_is_different() -> None:
    """Nothing is asked there."""
    table, devices = ComparedTable(EDGE, None), OwnedDevices.of({}, "m", "me")
    here = keyed(EDGE, answer(database(ROWS), series_sql(table, EDGE, DAY, None, portable=False)))
    verdict = compare_day(EDGE, DAY, here, here.slice(0, 0), devices)
    assert (3, 0, False) == (verdict.edge_rows, verdict.centre_rows, verdict.equal)


def test_a_series_without_tags_and_one_without_a_value_are_compared() -> None:
    """A tag that is null is none, and a table without tags has one series, or none on a day without rows."""
    owners = {"m": "me", "m,dev=a": "me"}
    rows: list[Row] = [(None, 0, 1, "p"), ("a", 0, 1, "p")]
    assert compared(rows, rows, owners=owners).equal
    bare = TableSchema("plant", "m", 1, (), FIELDS)
    table, devices = ComparedTable(bare, bare), OwnedDevices.of({"m": "me"}, "m", "me")
    for found, count in ((rows[:1], 1), ([], 0)):
        sql = series_sql(table, bare, DAY, devices, portable=False)
        assert count == len(owned_rows(keyed(bare, answer(database(found), sql)), devices))


def test_the_days_of_the_sender_are_found_by_its_devices() -> None:
    """A few devices are named in the SQL, as text that cannot end; many are not."""
    devices = OwnedDevices.of({"m,dev=b'": "me"}, "m", "me")
    sql = days_sql(ComparedTable(EDGE, EDGE), devices)
    assert [] == answer(database(ROWS), sql)[DAY_COLUMN].to_pylist()
    assert [DAY] == answer(database([("b'", 0, 1, "")]), sql)[DAY_COLUMN].to_pylist()
    many = OwnedDevices.of({f"m,dev={number}": "me" for number in range(600)}, "m", "me")
    assert {} == many.filters
    assert 600 == len(many.keys)


def test_days_behind_a_retention_are_left_out() -> None:
    """Retention does not travel: one end may have dropped what the other has."""
    days = [date(2024, 5, 3), date(2024, 5, 1), date(2024, 5, 2)]
    now_s = datetime(2024, 5, 4, tzinfo=UTC).timestamp()
    assert (sorted(days), 0) == kept_days(days, [None, None], now_s)
    assert ([date(2024, 5, 2), date(2024, 5, 3)], 1) == kept_days(days, [None, 2 * DAY_NS], now_s)
    assert ([date(2024, 5, 3)], 2) == kept_days(days, [DAY_NS, 2 * DAY_NS], now_s)


def test_exit_codes() -> None:
    """Equal, different, and not all accepted, whether the rest is equal or not."""
    equal = DayVerdict("plant", "m", "2024-05-01", 1, 1, True)
    other = DayVerdict("plant", "m", "2024-05-01", 1, 0, False)
    assert [0, 0, 1] == [exit_code(each, False) for each in ([], [equal], [equal, other])]
    assert [2, 2] == [exit_code(each, True) for each in ([equal], [other])]
