"""Row batches, schemas and answers for tests of the store, in plain Python values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.consumers.store import Store, TableScan
from headrace.schemas.payload import SERIES_COLUMN
from headrace.schemas.series import series_key
from headrace.schemas.tables import DatabaseSchema, FieldType, TableSchema

HOUR_NS = 3_600_000_000_000
DATABASE = DatabaseSchema("plant", slice_ns=HOUR_NS, buckets=3)
CPU = TableSchema(
    "plant",
    "cpu",
    1,
    ("host", "rack"),
    (("busy", FieldType.INT64), ("load", FieldType.FLOAT64), ("note", FieldType.STRING), ("up", FieldType.BOOL)),
)
Row = tuple[Mapping[str, str], int, Mapping[str, Any]]
"""Tags, time in ns, fields."""
Answer = dict[tuple[tuple[tuple[str, str], ...], int], dict[str, Any]]
"""(tags, time) → the fields that are not null, with NaN and -0.0 made comparable."""


def row_batch(schema: TableSchema, rows: Sequence[Row], types: Mapping[str, FieldType] | None = None) -> pa.RecordBatch:
    """Rows as a row batch with exactly the fields that occur in them (or in `types`, which may also narrow a type)."""
    kinds = schema.field_types() | dict(types or {})
    names = sorted({name for _, _, fields in rows for name in fields} | set(types or {}))
    keys = [series_key(schema.table, tags) for tags, _, _ in rows]
    series = pa.array(keys, pa.string()).dictionary_encode()
    columns = [series, pa.array([time for _, time, _ in rows], pa.int64())]
    columns += [pa.array([fields.get(name) for _, _, fields in rows], kinds[name].arrow) for name in names]
    return pa.RecordBatch.from_arrays(columns, names=[SERIES_COLUMN, "time", *names])


def write(store: Store, version: int, rows: Sequence[Row], schema: TableSchema = CPU, era: int = 1) -> None:
    """One message of `rows` into the store."""
    store.write(version, era, schema, DATABASE, row_batch(schema, rows))


def seal(store: Store, version: int, state: bytes = b"", era: int = 1) -> None:
    """Freeze and run the job."""
    store.freeze(version, era, state).run()


def drop(store: Store, version: int, before_ns: int, era: int = 1) -> None:
    """Drop the slices of the table of CPU that end by then, and run the job."""
    job = store.drop(version, era, CPU.database, CPU.table, before_ns)
    assert job is not None
    job.run()


def comparable(value: Any) -> Any:
    """A comparable value: floats become text, so that NaN equals itself and -0.0 differs from 0.0."""
    return repr(value) if isinstance(value, float) else value


def answer_of(tables: Iterable[pa.Table], tags: Sequence[str]) -> Answer:
    """Rows of user-form tables (time int64 ns or a timestamp) as an Answer; fails on a row that occurs twice."""
    found: Answer = {}
    for table in tables:
        time = table.column("time")
        scale = 1_000 if time.type == pa.timestamp("us") else 1
        times = [value * scale for value in time.combine_chunks().view(pa.int64()).to_pylist()]
        for at, row in zip(times, table.drop_columns(["time"]).to_pylist(), strict=True):
            key = (tuple((tag, row[tag]) for tag in tags if row.get(tag)), at)
            assert key not in found, f"row {key} occurs twice"
            found[key] = {k: comparable(v) for k, v in row.items() if k not in tags and v is not None}
    return found


def scanned(scan: TableScan, schema: TableSchema) -> Answer:
    """Both halves of a scan together, under the newest schema of the table."""
    return answer_of([scan.table, *(widened(read_file(path), schema) for path in scan.files)], schema.tags)


def widened(table: pa.Table, schema: TableSchema) -> pa.Table:
    """A file with the types of a newer schema, as a query's view casts them."""
    types = schema.field_types()
    for index, name in enumerate(table.schema.names):
        if name in types and table.schema.types[index] != types[name].arrow:
            table = table.set_column(index, name, table.column(name).cast(types[name].arrow))
    return table


def read_file(path: Path) -> pa.Table:
    """A segment as pyarrow reads it."""
    return pq.read_table(path, partitioning=None)


def contents(store: Store, schema: TableSchema = CPU, **conditions: Any) -> Answer:
    """What a scan of the table answers."""
    with store.scan(schema.database, schema.table, **conditions) as scan:
        return scanned(scan, schema)


def expected(rows: Iterable[Row]) -> Answer:
    """The answer that holds just these rows."""
    return {
        (tuple(sorted((k, v) for k, v in tags.items() if v)), at): {
            name: comparable(value) for name, value in fields.items() if value is not None
        }
        for tags, at, fields in rows
    }
