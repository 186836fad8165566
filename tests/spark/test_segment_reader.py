"""`headrace.spark.read_segments`: sealed files by Spark's Parquet reader, each row once, the newest of each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import headrace.spark
from headrace.consumers.store import Store, StoreSettings
from headrace.pipeline.segment_reader import SegmentsMissing, SegmentUnreadable
from headrace.schemas.tables import FieldType
from tests.unit.store.builders import CPU, HOUR_NS, contents, seal, write

# `collect` of pyspark 4.1 leaves its socket to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")

MINUTE_NS = 60_000_000_000
WIDER = replace(
    CPU,
    version=2,
    tags=("host", "rack", "site"),
    fields=(
        *((name, FieldType.FLOAT64 if name == "busy" else kind) for name, kind in CPU.fields),
        ("a `b", FieldType.INT64),
    ),
)


def test_each_row_is_read_once_with_its_newest_values(spark: SparkSession, tmp_path: Path) -> None:
    """Files that overlap in time give the newest row, others are read without a sort; older files take the types
    and columns of the newest schema. A row that is not sealed is not there; a path and a table that are wrong are named.
    """
    # Spark takes a path with any of these for another one.
    directory = tmp_path / "n1 {a,ä}%20[b]?*"
    store = Store.open(directory, "n1", StoreSettings())
    hosts = [{"host": name} for name in ("a", "b")]
    write(store, 1, [(host, minute * MINUTE_NS, {"busy": 1, "up": True}) for host in hosts for minute in range(60)])
    seal(store, 2)
    again = [(hosts[0], minute * MINUTE_NS, {"busy": 2.5, "a `b": 7}) for minute in range(30, 40)]
    write(store, 3, again, WIDER)
    seal(store, 4)
    write(
        store,
        5,
        [({"host": "c", "site": "s"}, 5 * HOUR_NS + minute, {"busy": 3.0}) for minute in range(0, 9_000, 1_000)],
        WIDER,
    )
    seal(store, 6)
    wanted = contents(store, WIDER)
    write(store, 7, [({"host": "unsealed"}, 0, {"busy": 1.0})], WIDER)
    read = headrace.spark.read_segments(spark, str(directory), "plant.cpu")
    kinds = (
        "struct<host:string,rack:string,site:string,time:timestamp_ntz,busy:double,load:double,note:string,up:boolean"
    )
    assert kinds + ",a `b:bigint>" == read.schema.simpleString()
    found = {(row["host"], row["site"], row["time"]): (row["busy"], row["up"], row["a `b"]) for row in read.collect()}
    assert len(wanted) == len(found) == read.count() == 129
    values = sorted(value for value in found.values() if value[2] is not None)
    assert [(2.5, None, 7)] * 10 == values
    assert 110 == sum(value == (1.0, True, None) for value in found.values())
    apart = read.where("time >= timestamp_ntz'1970-01-01 05:00:00'")
    assert 9 == apart.count()
    store.close()
    with pytest.raises(SegmentsMissing, match=r"no segments of plant\.cpus.*did you mean plant\.cpu"):
        headrace.spark.read_segments(spark, str(tmp_path), "plant.cpus")
    with pytest.raises(SegmentsMissing, match="has no segments"):
        headrace.spark.read_segments(spark, str(tmp_path / "nowhere"), "plant.cpu")
    [newest] = list(directory.glob("segments/*/plant/cpu/5-*/*.parquet"))
    newest.write_bytes(b"PAR1")
    with pytest.raises(SegmentUnreadable, match=newest.name):
        headrace.spark.read_segments(spark, str(tmp_path), "plant.cpu")
