"""The reader matrix: segments as Spark, DuckDB, polars, pandas and pyarrow read them, each with its defaults.

Values are compared, doubles bit by bit, and never counts: a reader can count rows of columns that it cannot
decode. Tables in nanoseconds are outside Spark's column: it has no such type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headrace.consumers.store.digest import content_digest
from headrace.consumers.store.encoding import Encoding
from headrace.consumers.store.segment import Runs, SegmentRows, encode_segment
from headrace.consumers.store.segment_files import SegmentName
from headrace.consumers.store.settings import StoreSettings
from headrace.schemas.series import series_key, tag_columns
from headrace.schemas.tables import FieldType, TableSchema

# `toArrow` of pyspark 4.1 leaves its socket to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")

Read = Callable[[SparkSession, Sequence[Path]], pa.Table]

SETTINGS = StoreSettings(row_group_rows=3_000)
ROWS = 9_000
"""Three row groups, enough for the choice of encodings to look at a sample."""

NS_PER_US = 1_000
TIME_ENDS_NS = (-(2**63 // NS_PER_US) * NS_PER_US, 2**63 // NS_PER_US * NS_PER_US)
"""The first and the last whole microsecond that a table can hold."""

SERIES: tuple[dict[str, str], ...] = (
    {"site": "Zürich"},
    {"pump": "p, 1=a", "site": "北京 🚰"},
    {"pump": "p2", "site": "north"},
    {},
)
FIELDS: dict[str, FieldType] = {
    "all null": FieldType.FLOAT64,
    "code": FieldType.INT64,
    "count.total": FieldType.INT64,
    "durchfluß": FieldType.FLOAT64,
    "message": FieldType.STRING,
    "name": FieldType.STRING,
    "noise": FieldType.FLOAT64,
    "running": FieldType.BOOL,
    "state": FieldType.STRING,
}
DOUBLES = (0.0, -0.0, float("nan"), float("inf"), -float("inf"), 5e-324, 1.7976931348623157e308, None, 0.1, -2.5)
INTEGERS = (-(2**63), 2**63 - 1, 0, -1, None, 2**53 + 1)
TEXTS = ("", None, "ä", "北京 🚰", "a\0b", 'quote " and , comma', "line\nbreak", "\ufeffbom", "e\u0301")


def cycled(values: Sequence[Any], kind: FieldType) -> pa.Array:
    """These values in a column of all rows, in irregular order."""
    indices = np.random.default_rng(3).integers(0, len(values), ROWS)
    return pa.array(values, arrow_type(kind)).take(pa.array(indices))


def arrow_type(kind: FieldType) -> pa.DataType:
    """The type of a field in a store."""
    return pa.large_string() if kind is FieldType.STRING else kind.arrow


def every_type() -> dict[str, pa.Array]:
    """A column of every type, with the values that are hard to keep, and so that each encoding is chosen."""
    noise = np.random.default_rng(5).normal(size=ROWS)
    noise[::1_000] = np.nan
    return {
        "all null": pa.nulls(ROWS, pa.float64()),
        "code": cycled(INTEGERS, FieldType.INT64),
        "count.total": pa.array(np.arange(ROWS) + 2**62, mask=np.arange(ROWS) % 11 == 0),
        "durchfluß": cycled(DOUBLES, FieldType.FLOAT64),
        "message": pa.array([f"{number * 7_919 % 10_007}: {TEXTS[2 + number % 7]}" for number in range(ROWS)]).cast(
            pa.large_string()
        ),
        "name": pa.array([f"order-{number:09}" for number in range(ROWS)], pa.large_string()),
        "noise": pa.array(noise, from_pandas=False),
        "running": cycled((True, False, None), FieldType.BOOL),
        "state": cycled(TEXTS, FieldType.STRING),
    }


def segment_rows(series: Sequence[Mapping[str, str]], fields: Mapping[str, pa.Array]) -> SegmentRows:
    """Rows of some series, equally many each, in microseconds from one end of time to the other."""
    rows = len(next(iter(fields.values())))
    keys = sorted(series_key("pumps", tags) for tags in series)
    lengths = np.full(len(keys), rows // len(keys), np.int64)
    within = np.concatenate([np.arange(length) for length in lengths])
    times = 1_767_225_600_000_000_000 + within * 10_000_000_000 + within % 7 * NS_PER_US
    ends = np.cumsum(lengths)
    times[ends - lengths], times[ends - 1] = TIME_ENDS_NS
    return SegmentRows(Runs.of_times(pa.array(keys), lengths, times), times, fields)


def write_segment(path: Path, kinds: Mapping[str, FieldType], rows: SegmentRows, version: int = 1) -> pa.Table:
    """Writes a segment and returns its rows, computed without Parquet."""
    tags = ("pump", "site")
    schema = TableSchema("plant", "pumps", version, tags, tuple(kinds.items()))
    encoded = encode_segment("n1", SegmentName("plant", "pumps", 0, 0, 1, version, version), schema, rows, 0, SETTINGS)
    path.write_bytes(encoded.data)
    keys = pa.DictionaryArray.from_arrays(
        pa.array(np.repeat(np.arange(len(rows.runs.keys)), rows.runs.lengths)), rows.runs.keys
    ).dictionary_decode()
    columns = dict(tag_columns(keys.to_pylist(), tags))
    columns["time"] = pa.array(rows.times // NS_PER_US).view(pa.timestamp("us"))
    assert encoded.entry.content_digest == content_digest(rows.runs.keys, rows.runs.lengths, rows.times, rows.fields)
    return comparable(pa.table({**columns, **rows.fields}))


def comparable(table: pa.Table) -> pa.Table:
    """A table whose doubles are their 64 bits, text is string, and time is a number of microseconds."""
    columns = {}
    for name in table.column_names:
        column = table.column(name).combine_chunks()
        column = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        if pa.types.is_timestamp(column.type):
            assert column.type.tz is None
            column = column.cast(pa.timestamp("us")).view(pa.int64())
        elif column.type == pa.float64():
            column = column.view(pa.int64())
        elif pa.types.is_large_string(column.type) or pa.types.is_string_view(column.type):
            column = column.cast(pa.string())
        columns[name] = column
    return pa.table(columns)


def by_spark(spark: SparkSession, paths: Sequence[Path]) -> pa.Table:
    """Spark with its vectorised reader; one partition a file, in order of rows."""
    assert "true" == spark.conf.get("spark.sql.parquet.enableVectorizedReader")
    tables = [spark.read.parquet(str(path)).coalesce(1).toArrow() for path in paths]
    return pa.concat_tables(tables)


def by_duckdb(_: SparkSession, paths: Sequence[Path]) -> pa.Table:
    """DuckDB."""
    return duckdb.read_parquet([str(path) for path in paths]).to_arrow_table()


def by_polars(_: SparkSession, paths: Sequence[Path]) -> pa.Table:
    """polars."""
    return pl.read_parquet(list(paths)).to_arrow()


def by_pandas(_: SparkSession, paths: Sequence[Path]) -> pa.Table:
    """pandas; without Arrow's types it has no integer column with nulls."""
    frames = [pd.read_parquet(path, dtype_backend="pyarrow") for path in paths]
    return pa.Table.from_pandas(pd.concat(frames), preserve_index=False)


def by_pyarrow(_: SparkSession, paths: Sequence[Path]) -> pa.Table:
    """pyarrow."""
    return pq.read_table(list(paths))


READERS: dict[str, Read] = {
    "spark": by_spark,
    "duckdb": by_duckdb,
    "polars": by_polars,
    "pandas": by_pandas,
    "pyarrow": by_pyarrow,
}


def assert_equal(expected: pa.Table, found: pa.Table) -> None:
    """Equal names, types, values and order; the first column that differs is named."""
    found = comparable(found)
    assert expected.column_names == found.column_names
    for name in expected.column_names:
        want, have = expected.column(name), found.column(name)
        assert want.type == have.type, name
        assert want.equals(have), (
            name,
            [pair for pair in zip(want.to_pylist(), have.to_pylist(), strict=True) if pair[0] != pair[1]][:3],
        )


def encodings(path: Path) -> set[str]:
    """The encodings of a file."""
    metadata = pq.read_metadata(path)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    return {each for group in groups for i in range(group.num_columns) for each in group.column(i).encodings}


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pa.Table]:
    """A segment of every type and its rows."""
    path = tmp_path_factory.mktemp("matrix") / "full.parquet"
    return path, write_segment(path, FIELDS, segment_rows(SERIES, every_type()))


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pa.Table]:
    """A segment of a thousand fields of all types and its rows."""
    kinds = {f"f{number:03}": list(FieldType)[number % len(FieldType)] for number in range(1_000)}
    pools: dict[FieldType, Sequence[Any]] = {
        FieldType.FLOAT64: DOUBLES,
        FieldType.INT64: INTEGERS,
        FieldType.BOOL: (True, None, False),
        FieldType.STRING: TEXTS,
    }
    fields = {
        name: pa.array([pools[kind][(number + row) % len(pools[kind])] for row in range(12)], arrow_type(kind))
        for number, (name, kind) in enumerate(kinds.items())
    }
    path = tmp_path_factory.mktemp("matrix") / "wide.parquet"
    return path, write_segment(path, kinds, segment_rows(SERIES, fields))


def test_the_matrix_has_every_encoding(full: tuple[Path, pa.Table]) -> None:
    """Each encoding that a segment can have occurs in the file that all readers read, and no other."""
    assert {*(each.value for each in Encoding), "RLE"} == encodings(full[0])


@pytest.mark.parametrize("reader", READERS)
def test_every_type_is_read(spark: SparkSession, full: tuple[Path, pa.Table], reader: str) -> None:
    """Both ends of integers and times, NaN, infinities, signs of zero, nulls, empty and non-ASCII text, in every type."""
    path, expected = full
    assert_equal(expected, READERS[reader](spark, [path]))


@pytest.mark.parametrize("reader", READERS)
def test_a_thousand_columns_are_read(spark: SparkSession, wide: tuple[Path, pa.Table], reader: str) -> None:
    """Beyond the columns for which Spark compiles code, too."""
    path, expected = wide
    assert_equal(expected, READERS[reader](spark, [path]))


def widened_files(directory: Path) -> tuple[list[Path], pa.Table]:
    """A file of before and one of after columns were added, and the rows of both together."""
    before = {"flow": FieldType.FLOAT64, "starts": FieldType.INT64}
    after = {"alarm": FieldType.STRING, **before, "warm": FieldType.BOOL}
    fields = every_type()
    old = {"flow": fields["durchfluß"], "starts": fields["code"]}
    new = {"alarm": fields["state"], **old, "warm": fields["running"]}
    paths = [directory / "1.parquet", directory / "2.parquet"]
    tables = [
        write_segment(paths[0], before, segment_rows(SERIES[:2], old), 1),
        write_segment(paths[1], after, segment_rows(SERIES[2:], new), 2),
    ]
    return paths, pa.concat_tables(tables[::-1], promote_options="default")


def test_files_of_several_schema_versions_are_read_together(spark: SparkSession, tmp_path: Path) -> None:
    """Columns that were added later are null in older files, in every reader's own form."""
    paths, expected = widened_files(tmp_path)
    names = [str(path) for path in paths]
    schema = pa.unify_schemas([pq.read_schema(path) for path in paths])
    found = {
        "spark": spark.read.option("mergeSchema", "true").parquet(*names).toArrow(),
        "duckdb": duckdb.read_parquet(names, union_by_name=True).to_arrow_table(),
        "polars": pl.concat([pl.read_parquet(path) for path in paths], how="diagonal").to_arrow(),
        "pandas": pa.Table.from_pandas(
            pd.concat([pd.read_parquet(path, dtype_backend="pyarrow") for path in paths]), preserve_index=False
        ),
        "pyarrow": pq.read_table(names, schema=schema),
    }
    assert_all_equal(expected, found)


def assert_all_equal(expected: pa.Table, found: Mapping[str, pa.Table]) -> None:
    """Every reader has the rows of several files, in whatever order."""
    assert set(READERS) == set(found)
    order = [("site", "ascending"), ("pump", "ascending"), ("time", "ascending")]
    sorted_rows = expected.sort_by(order)
    for reader, table in found.items():
        rows = comparable(table).select(expected.column_names).sort_by(order)
        for name in expected.column_names:
            assert sorted_rows.column(name).equals(rows.column(name)), (reader, name)


def test_files_of_before_and_after_a_wider_type_are_read_together(spark: SparkSession, tmp_path: Path) -> None:
    """An int64 field that became float64 keeps its type in older files until a merge; every reader can widen it."""
    whole = pa.array([-(2**53), 2**53, 0, None, -7] * 100)
    parts = pa.array([0.5, float("nan"), None, -0.0, 1e300] * 100)
    paths = [tmp_path / "1.parquet", tmp_path / "2.parquet"]
    tables = [
        write_segment(paths[0], {"starts": FieldType.INT64}, segment_rows(SERIES[:2], {"starts": whole}), 1),
        write_segment(paths[1], {"starts": FieldType.FLOAT64}, segment_rows(SERIES[2:], {"starts": parts}), 2),
    ]
    widened = tables[0].column("starts").cast(pa.float64()).combine_chunks().view(pa.int64())
    expected = pa.concat_tables([tables[0].set_column(3, "starts", widened), tables[1]])
    names = [str(path) for path in paths]
    schema = pq.read_schema(paths[1])
    old, new = (spark.read.parquet(name) for name in names)
    found = {
        "spark": old.withColumn("starts", old.starts.cast("double")).unionByName(new).toArrow(),
        "duckdb": duckdb.read_parquet(names, union_by_name=True).to_arrow_table(),
        "polars": pl.concat([pl.read_parquet(path) for path in paths], how="vertical_relaxed").to_arrow(),
        "pandas": pa.Table.from_pandas(
            pd.concat([pd.read_parquet(path, dtype_backend="pyarrow") for path in paths]), preserve_index=False
        ),
        "pyarrow": pq.read_table(names, schema=schema),
    }
    assert_all_equal(expected, found)


def test_nanoseconds_are_read_by_all_but_spark(spark: SparkSession, tmp_path: Path) -> None:
    """A table in nanoseconds is read to the nanosecond by the others; Spark refuses it by name."""
    path = tmp_path / "ns.parquet"
    rows = segment_rows(SERIES[:1], {"starts": pa.array(range(100))})
    rows.times[1] += 1
    write_segment(path, {"starts": FieldType.INT64}, rows)
    for name in READERS.keys() - {"spark"}:
        times = READERS[name](spark, [path]).column("time").combine_chunks()
        assert pa.timestamp("ns") == times.type, name
        assert rows.times.tolist() == times.view(pa.int64()).to_pylist(), name
    with pytest.raises(PySparkException, match="NANOS"):
        spark.read.parquet(str(path)).toArrow()
