"""The columns that Spark gets of a table."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from headrace.pipeline.source_columns import (
    ColumnUnknown,
    TimeTooFine,
    as_planned,
    chosen_schema,
    source_schema,
    spark_schema,
)
from headrace.pipeline.source_options import OptionInvalid
from headrace.schemas.tables import FieldType, TableSchema

TABLE = TableSchema("plant", "pumps", 1, ("pump", "site"), (("flow", FieldType.FLOAT64), ("on", FieldType.BOOL)))


def test_all_columns_are_tags_time_and_fields() -> None:
    """The order is that of `SELECT *`; time is a timestamp without zone, or ns."""
    assert (
        "struct<pump:string,site:string,time:timestamp_ntz,flow:double,on:boolean>"
        == spark_schema(source_schema(TABLE)).simpleString()
    )
    long = source_schema(TABLE, ("time", "flow"), time_as_long=True, metadata=True)
    assert "struct<time:bigint,flow:double,_group:string,_offset:bigint>" == spark_schema(long).simpleString()


def test_an_unknown_column_is_named_with_near_ones() -> None:
    """So is one that the user's own schema has."""
    with pytest.raises(ColumnUnknown, match="no column 'flwo' .did you mean flow"):
        source_schema(TABLE, ("flwo",))
    for kind in (LongType(), StringType()):
        with pytest.raises(ColumnUnknown, match="'flow' of plant.pumps is double"):
            chosen_schema(source_schema(TABLE), StructType([StructField("flow", kind)]), "plant.pumps")


def test_metadata_never_hides_a_column_of_the_table() -> None:
    """Rows of a stream with metadata that were written into another table have such a column."""
    table = TableSchema("plant", "copies", 1, ("pump",), (("_offset", FieldType.INT64),))
    with pytest.raises(OptionInvalid, match=r"copies has a column '_offset' of its own.*leave metadata out"):
        source_schema(table, metadata=True)
    assert ["pump", "time", "_offset"] == source_schema(table).names


def test_batches_come_as_planned() -> None:
    """By position, without dictionaries, with nulls for a column that a batch does not have."""
    batch = pa.record_batch(
        {
            "flow": pa.array([1, 2]),
            "time": pa.array([0, 3_000], pa.timestamp("ns")),
            "pump": pa.array(["a", None]).dictionary_encode(),
        }
    )
    schema = source_schema(TABLE, ("pump", "flow", "on", "time"))
    [planned] = as_planned([batch], schema, "plant.pumps")
    assert schema == planned.schema
    assert [["a", None], [1.0, 2.0], [None, None]] == [column.to_pylist() for column in planned.columns[:3]]
    assert [0, 3] == planned.column(3).cast(pa.int64()).to_pylist()


@pytest.mark.parametrize("ns", [1, -1, 1_767_225_600_000_000_001])
def test_a_time_is_never_cut_off(ns: int) -> None:
    """A time that is no whole microsecond is an error that names the way out, and exact as a long."""
    batch = pa.record_batch({"time": pa.array([0, ns])})
    with pytest.raises(TimeTooFine, match='time="long"'):
        list(as_planned([batch], source_schema(TABLE, ("time",)), "plant.pumps"))
    [long] = as_planned([batch], source_schema(TABLE, ("time",), time_as_long=True), "plant.pumps")
    assert [0, ns] == long.column(0).to_pylist()
