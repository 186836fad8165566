"""Routing of rows: each row reaches the group of its slot once, in order."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.consumers.membership.slot_table import SlotTable
from headrace.producers.router import PAYLOAD_BYTES_MAX, RowTooLarge, encode_series, encode_writes, route
from headrace.schemas.payload import decode_rows
from headrace.schemas.series import bucket_of, series_key
from headrace.schemas.tables import DatabaseSchema, FieldType, TableSchema

SCHEMA = TableSchema(
    "db", "t", 1, ("host", "zone"), (("n", FieldType.INT64), ("s", FieldType.STRING), ("x", FieldType.FLOAT64))
)
DATABASE = DatabaseSchema("db", slice_ns=1_000, buckets=4)
TAG = st.one_of(st.none(), st.sampled_from(["", "a", "b", "a b", "x,y=z", "ü\\"]))
ROWS = st.lists(
    st.tuples(
        TAG, TAG, st.integers(-5_000, 5_000), st.integers(-(2**62), 2**62), st.one_of(st.none(), st.text(max_size=3))
    )
)


def table_of(rows: list[Any], dictionaries: bool) -> pa.Table:
    """A user table of drawn rows."""
    columns: list[Any] = list(zip(*rows, strict=True)) or [[]] * 5
    tags = [pa.array(column, pa.string()) for column in columns[:2]]
    if dictionaries:
        tags = [column.dictionary_encode() for column in tags]
    return pa.table(
        {
            "host": tags[0],
            "zone": tags[1],
            "time": pa.array(columns[2], pa.int64()),
            "n": pa.array(columns[3], pa.int64()),
            "s": pa.array(columns[4], pa.string()),
        }
    )


@given(rows=ROWS, dictionaries=st.booleans(), nodes=st.integers(1, 4))
def test_every_row_lands_once_in_the_group_of_its_slot(rows: list[Any], dictionaries: bool, nodes: int) -> None:
    """Routed rows are the given rows, in order within a group, each in the group that the slot table gives for it."""
    slots = SlotTable.create(tuple(f"n{number}" for number in range(nodes)), 1)
    expected: dict[str, list[Any]] = {}
    for host, zone, time_ns, number, text in rows:
        key = series_key("t", {"host": host, "zone": zone})
        group = slots.route(DATABASE, time_ns, bucket_of(key, DATABASE.buckets))
        expected.setdefault(group, []).append((key, time_ns, number, text))
    found = {}
    for part in route(slots, DATABASE, SCHEMA, table_of(rows, dictionaries)):
        columns = [part.rows.column(name).to_pylist() for name in ("__series", "time", "n", "s")]
        found[part.group] = list(zip(*columns, strict=True))
        used = set(part.rows.column(0).dictionary.to_pylist())
        assert used == set(columns[0]), "the dictionary holds series that the batch does not use"
    assert expected == found


@given(rows=ROWS)
def test_null_and_empty_tags_are_one_series(rows: list[Any]) -> None:
    """The codes of two rows are equal exactly when their series keys are."""
    table = table_of(rows, dictionaries=False)
    codes, keys = encode_series("t", {"host": table["host"], "zone": table["zone"]}, len(rows))
    assert [series_key("t", {"host": row[0], "zone": row[1]}) for row in rows] == [
        keys[int(code)].as_py() for code in codes
    ]


def test_many_tags_do_not_overflow_the_code() -> None:
    """Thirty tags of a thousand values each still have distinct codes."""
    names = [f"tag{number:02}" for number in range(30)]
    columns = {
        name: pa.array([f"{(row * 7 + index) % 1000}" for row in range(1000)]) for index, name in enumerate(names)
    }
    codes, keys = encode_series("t", columns, 1000)
    assert len(keys) == 1000 == len(set(codes.tolist()))


def test_integers_widen_to_the_tables_float() -> None:
    """A writer that still sends integers fits a table whose field is float64 by now."""
    (part,) = route(
        SlotTable.create(("n1",), 1), DATABASE, SCHEMA, pa.table({"time": pa.array([1]), "x": pa.array([3])})
    )
    assert pa.float64() == part.rows.column("x").type
    assert ["t"] == part.rows.column(0).to_pylist()


def test_large_batches_become_messages_that_fit() -> None:
    """Wide rows are split until a message fits; a single row that cannot fit is refused by name."""
    text = "".join(chr(33 + number % 90) for number in range(100_000))
    values = [f"{number}{text}" for number in range(200)]
    table = pa.table({"time": pa.array(range(200)), "s": pa.array(values)})
    (part,) = route(SlotTable.create(("n1",), 1), DATABASE, SCHEMA, table)
    writes = list(encode_writes(SCHEMA, 1, part.rows, "none"))
    assert len(writes) > 1
    assert all(len(write.rows) <= PAYLOAD_BYTES_MAX for write in writes)
    assert values == [value for write in writes for value in decode_rows(write.rows).column("s").to_pylist()]
    with pytest.raises(RowTooLarge, match="db.t"):
        list(
            encode_writes(
                SCHEMA,
                1,
                part.rows.slice(0, 1).set_column(2, part.rows.schema.field(2), pa.array(["x" * PAYLOAD_BYTES_MAX])),
                "none",
            )
        )
