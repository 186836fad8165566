"""Per-series checksums: equal for equal readings in any form and order, different for any other."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.workload import cpu, iot
from headrace.workload.checksum import NotComparable, checksums, compare, total, workload_checksums
from headrace.workload.series import ColumnMissing

SCHEMA = pa.schema(
    [
        ("host", pa.string()),
        ("core", pa.string()),
        ("time", pa.int64()),
        ("f", pa.float64()),
        ("i", pa.int64()),
        ("b", pa.bool_()),
        ("s", pa.string()),
    ]
)
TAGS = ["host", "core"]
PINNED = 12913164725104659386
ROW = st.fixed_dictionaries(
    {
        "host": st.sampled_from([None, "", "a", "b,c", "ü"]),
        "core": st.sampled_from([None, "0", "1"]),
        "time": st.integers(-(2**63), 2**63 - 1),
        "f": st.none() | st.floats(),
        "i": st.none() | st.integers(-(2**63), 2**63 - 1),
        "b": st.none() | st.booleans(),
        "s": st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    }
)
ROWS = st.lists(ROW, min_size=1, max_size=20)


def of(rows: list[dict[str, Any]]) -> pa.Table:
    """The checksums of rows."""
    return checksums(pa.Table.from_pylist(rows, SCHEMA), TAGS)


def one(**fields: Any) -> int:
    """The checksum of one row at time 1 with these fields."""
    table = pa.table({"time": [1], **{name: pa.array([value]) for name, value in fields.items()}})
    return int(checksums(table, [])["checksum"][0].as_py())


@given(rows=ROWS, seed=st.integers(0, 100))
def test_order_and_parts_do_not_matter(rows: list[dict[str, Any]], seed: int) -> None:
    """Rows in any order, summed up in any two parts, have the same checksums."""
    shuffled = random.Random(seed).sample(rows, len(rows))
    cut = seed % (len(rows) + 1)
    assert of(rows).equals(of(shuffled))
    assert of(rows).equals(total([of(shuffled[:cut]), of(shuffled[cut:])]))


@given(rows=ROWS, place=st.integers(0, 19), column=st.sampled_from(SCHEMA.names), row=ROW)
def test_every_change_is_seen(rows: list[dict[str, Any]], place: int, column: str, row: dict[str, Any]) -> None:
    """A single other value in a single row changes the result, and `compare` reports it."""
    place %= len(rows)
    changed = [dict(each) for each in rows]
    changed[place][column] = row[column]
    same = canonical(rows[place]) == canonical(changed[place])
    assert same == (compare(of(rows), of(changed)) == [])


def canonical(row: dict[str, Any]) -> dict[str, str]:
    """A row in the form in which equal means equal readings: empty tags and nulls left out, one NaN, one zero."""
    row = {name: value for name, value in row.items() if value is not None and (name not in TAGS or value)}
    return {name: repr(value + 0.0 if isinstance(value, float) else value) for name, value in row.items()}


def test_a_checksum_never_changes() -> None:
    """The checksum of given readings is pinned, so figures of different releases can be compared."""
    rows = [
        {"host": "a", "core": "0", "time": 1, "f": 1.5, "i": -7, "b": True, "s": "x"},
        {"host": "a", "core": "0", "time": 2, "f": None, "i": 2**62, "b": False, "s": ""},
    ]
    assert [{"series": "core=0,host=a", "rows": 2, "checksum": PINNED}] == of(rows).to_pylist()


def test_equal_readings_in_other_arrow_types_have_equal_checksums() -> None:
    """Dictionary or plain or large strings, timestamps or integers, chunked or not, other column order: all the same."""
    workload = iot(7, duration_s=200, disorder=True)
    table = workload.read("readings")
    expected = checksums(table)
    plain = {
        name: table[name].cast(pa.string()) if name in workload.tags else table[name] for name in table.column_names
    }
    large = {
        name: column.cast(pa.large_string()) if name in workload.tags else column for name, column in plain.items()
    }
    stamped = plain | {"time": table["time"].cast(pa.timestamp("ns"))}
    micros = plain | {"time": table["time"].cast(pa.timestamp("ns", "UTC")).cast(pa.timestamp("us", "UTC"))}
    turned = dict(reversed(plain.items()))
    chunked = pa.concat_tables([batch for _, batch in workload.batches(9, ["readings"])])
    for columns in (plain, large, stamped, micros, turned):
        assert expected.equals(checksums(pa.table(columns), workload.tags))
    assert expected.equals(checksums(chunked))


def test_chunks_with_other_dictionaries() -> None:
    """Chunks whose dictionaries differ, as those of separate files do, have the same checksums."""
    chunks = [pa.array(["a", "b", "a"]).dictionary_encode(), pa.array(["b", None, "c"]).dictionary_encode()]
    table = pa.table({"host": pa.chunked_array(chunks), "time": range(6), "f": np.arange(6.0)})
    plain = table.set_column(0, "host", table["host"].cast(pa.string()))
    assert ["", "host=a", "host=b", "host=c"] == checksums(table)["series"].to_pylist()
    assert checksums(table).equals(checksums(plain, ["host"]))


def test_null_and_empty_tags_are_one_series() -> None:
    """A tag that is null and one that is empty both mean absent, as in a series key."""
    table = pa.table({"host": ["", None], "time": [1, 2], "f": [1.0, 2.0]})
    assert [("", 2)] == [(row["series"], row["rows"]) for row in checksums(table, ["host"]).to_pylist()]


def test_zeros_and_nans() -> None:
    """Both zeros are equal and so are all NaNs; infinities are not."""
    other_nan = np.array([0x7FF8000000000123], np.uint64).view(np.float64)[0]
    assert one(f=0.0) == one(f=-0.0)
    assert one(f=float("nan")) == one(f=float(other_nan))
    assert one(f=float("inf")) != one(f=float("-inf"))


def test_null_is_absent_and_not_a_value() -> None:
    """A null field is the same as no field, and different from zero, false and the empty text."""
    empty = one()
    assert empty == one(f=pa.scalar(None, pa.float64())) == one(n=None)
    assert empty not in (one(f=0.0), one(f=0), one(f=False), one(f=""))


def test_types_and_names_count() -> None:
    """The same bits under another name or type are another reading, unless integers shall count as floats."""
    assert len({one(f=0), one(f=0.0), one(f=False), one(f=""), one(g=0)}) == 5
    integers, floats = pa.table({"time": [1], "f": [7]}), pa.table({"time": [1], "f": [7.0]})
    assert [] != compare(checksums(integers, []), checksums(floats, []))
    assert [] == compare(checksums(integers, [], integers_as_float64=True), checksums(floats, []))


def test_swapped_values_are_seen() -> None:
    """Values that change places between times, fields or letters do not cancel out."""
    times = pa.table({"time": [1, 2], "f": [1.0, 2.0], "g": [2.0, 1.0]})
    swapped = pa.table({"time": [1, 2], "f": [2.0, 1.0], "g": [2.0, 1.0]})
    across = pa.table({"time": [1, 2], "f": [2.0, 1.0], "g": [1.0, 2.0]})
    assert len({checksums(table, [])["checksum"][0].as_py() for table in (times, swapped, across)}) == 3
    assert one(s="ab") != one(s="ba")


def test_sliced_strings() -> None:
    """A slice of a text column hashes as the texts themselves."""
    table = pa.table({"time": range(5), "s": ["x", "", "yy", None, "zzz"]})
    part = table.slice(1, 3)
    assert checksums(part, []).equals(checksums(pa.table(part.to_pydict(), part.schema), []))


def test_no_rows() -> None:
    """A table without rows has no series."""
    empty = cpu(1, duration_s=10).read("cpu").slice(0, 0)
    assert 0 == checksums(empty).num_rows == total([]).num_rows
    assert [] == compare(checksums(empty), total([]))


def test_workload_checksums_are_those_of_its_tables() -> None:
    """The checksums of a workload, summed up batch by batch, are those of the tables."""
    fleet = iot(9, duration_s=300, disorder=True)
    sums = workload_checksums(fleet)
    assert ["readings", "diagnostics"] == list(sums)
    assert all(sums[name].equals(checksums(fleet.read(name))) for name in fleet.tables)


def test_compare_lists_the_differences() -> None:
    """Each kind of difference is a line that names the series; more than the most are counted."""
    rows = [{"host": host, "core": None, "time": 1, "f": 1.0, "i": 1, "b": None, "s": None} for host in "abcd"]
    found = [rows[0], {**rows[1], "f": 2.0}, rows[2], {**rows[2], "time": 2}, {**rows[0], "host": "e"}]
    lines = compare(of(rows), of(found))
    assert lines[0].startswith("host=b: 1 rows, but other content (checksum ")
    assert [
        "host=c: 1 rows expected, 2 found",
        "host=d: missing, 1 rows expected",
        "host=e: not expected, 1 rows found",
    ] == lines[1:]
    assert [lines[0], "and 3 series more"] == compare(of(rows), of(found), most=1)
    assert [] == compare(of(rows), of(rows))


def test_what_cannot_be_compared_is_refused() -> None:
    """A missing time or tag, a null time, and a type that no field has are errors that name the column."""
    with pytest.raises(ColumnMissing, match="'time'"):
        checksums(pa.table({"f": [1.0]}), [])
    with pytest.raises(ColumnMissing, match="'host'"):
        checksums(pa.table({"time": [1]}), ["host"])
    with pytest.raises(NotComparable, match="1 rows have no time"):
        checksums(pa.table({"time": [1, None]}), [])
    with pytest.raises(NotComparable, match="'f' has type"):
        checksums(pa.table({"time": [1], "f": [[1]]}), [])


def test_sums_wrap_around() -> None:
    """The sum over many rows is modulo 2^64, and equal to the sum of the parts."""
    table = cpu(1, duration_s=1_000).read("cpu")
    parts = [checksums(table.slice(row, 1))["checksum"][0].as_py() for row in range(table.num_rows)]
    assert sum(parts) >= 2**64
    assert sum(parts) % 2**64 == checksums(table)["checksum"][0].as_py()
    assert pa.uint64() == checksums(table)["checksum"].type
    assert 100 == pc.sum(checksums(table)["rows"]).as_py()
