"""A TableSource over tables in memory with some rows in Parquet segments: the other side of the engine's contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.connectors.clock import Moment
from headrace.consumers.query.fragments import FragmentSource
from headrace.consumers.query.query_errors import AnswerStale, NotReady
from headrace.consumers.query.scan_figures import ScanFigures
from headrace.consumers.query.table_names import TableKey
from headrace.consumers.query.table_source import ReadFence, Reading, TableExtent
from headrace.schemas.tables import FieldType, TableSchema

DAY_NS = 86_400_000_000_000


@dataclass
class MemoryScan:
    """A scan that knows whether it was closed."""

    files: list[Path]
    table: pa.Table
    closed: bool = False
    figures: ScanFigures = field(default_factory=ScanFigures)
    file_rows: int = 0

    def __enter__(self) -> MemoryScan:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closed = True


@dataclass
class MemoryFence:
    """A fence that a test breaks by `source.stale`."""

    source: MemorySource
    confirmed: dict[str, int]
    as_of: Moment | None = None

    def check(self) -> None:
        if self.source.stale:
            raise AnswerStale.because(self.source.stale)


@dataclass
class MemorySource:
    """Tables by name, with segments and live rows. Remembers the conditions of every scan."""

    directory: Path
    schemas: dict[tuple[str, str], TableSchema] = field(default_factory=dict)
    segments: dict[tuple[str, str], list[tuple[Path, pa.Table]]] = field(default_factory=dict)
    live: dict[tuple[str, str], list[pa.Table]] = field(default_factory=dict)
    requests: list[dict[str, Any]] = field(default_factory=list)
    opened: list[MemoryScan] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    stale: str = ""
    as_of: Moment | None = None
    confirmed: dict[str, int] = field(default_factory=dict)
    waited: list[dict[str, int]] = field(default_factory=list)

    def fence(self, stale_s: float = 0.0, timeout_s: float = 0.0, awaited: dict[str, str] | None = None) -> MemoryFence:
        """Refuses while there are `reasons`, unless what it has is as new as is allowed."""
        if not self.reasons:
            return MemoryFence(self, dict(self.confirmed))
        if self.as_of is None or self.as_of.age_s > stale_s:
            raise NotReady.because(self.reasons)
        return MemoryFence(self, dict(self.confirmed), self.as_of)

    def add(self, schema: TableSchema, *, segments: Sequence[pa.Table] = (), live: Sequence[pa.Table] = ()) -> None:
        """Make or extend a table; `segments` are user tables written one file each, `live` is one user table a data group."""
        key = (schema.database, schema.table)
        self.schemas[key] = schema
        for rows in segments:
            held = self.segments.setdefault(key, [])
            path = self.directory / schema.database / schema.table / f"{len(held):04}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(as_segment(rows), path)
            held.append((path, rows))
        self.live.setdefault(key, []).extend(live)

    def tables(self) -> list[tuple[str, str]]:
        return list(self.schemas)

    def schema(self, database: str, table: str) -> TableSchema:
        return self.schemas[database, table]

    def scan(
        self,
        database: str,
        table: str,
        *,
        columns: Sequence[str] | None,
        start_ns: int | None,
        end_ns: int | None,
        tags: Mapping[str, Sequence[str]] | None,
        newest: Sequence[str] | None = None,
        reading: Reading,
    ) -> list[MemoryScan]:
        """Prunes as much as the contract allows: complete files, single live rows, columns."""
        self.requests.append(
            {"table": (database, table), "columns": columns, "start_ns": start_ns, "end_ns": end_ns, "tags": tags}
        )
        key = (database, table)
        kept = [each for each in self.segments.get(key, []) if keep(each[1], start_ns, end_ns, tags).num_rows]
        files, file_rows = [path for path, _ in kept], sum(rows.num_rows for _, rows in kept)
        tables = [keep(rows, start_ns, end_ns, tags) for rows in self.live[key]] or [self._no_rows(key)]
        if columns is not None:
            tables = [
                rows.select([name for name in rows.column_names if name in columns or name == "time"])
                for rows in tables
            ]
        scans = [MemoryScan([], rows) for rows in tables]
        scans[0].files, scans[0].file_rows = files, file_rows
        self.opened += scans
        return scans

    def extent(self, database: str, table: str) -> TableExtent | None:
        """Of the segments, in slices of a day."""
        times = [rows["time"] for _, rows in self.segments.get((database, table), [])]
        if not times:
            return None
        bounds = pc.min_max(pa.chunked_array([chunk for time in times for chunk in time.chunks])).as_py()
        return TableExtent(bounds["min"], bounds["max"], sum(map(len, times)), DAY_NS)

    def fragments(
        self, fence: ReadFence, *, always: bool = False, hourly: Sequence[TableKey] = ()
    ) -> FragmentSource | None:
        """All rows are here."""
        return None

    def wait_for(self, reading: Reading) -> bool:
        """Rows are in memory before any query."""
        self.waited.append(dict(reading.after))
        return True

    def named(self, after: Mapping[str, int]) -> Mapping[str, int]:
        """Names are as they are."""
        return after

    def beyond(self, reading: Reading) -> Mapping[str, int]:
        """Every row is here."""
        return {}

    def plans_again(self, fence: ReadFence, timeout_s: float) -> bool:
        """Slots never move."""
        return False

    def all_rows(self, database: str, table: str) -> pa.Table:
        """Every row of a table under its newest schema, as the view must show it."""
        schema = self.schemas[database, table]
        types = user_types(schema)
        parts = [*(rows for _, rows in self.segments.get((database, table), [])), *self.live[database, table]]
        return pa.concat_tables([under_schema(rows, types) for rows in parts] or [pa.schema(types).empty_table()])

    def _no_rows(self, key: tuple[str, str]) -> pa.Table:
        return pa.schema({**user_types(self.schemas[key]), "time": pa.int64()}).empty_table()


def user_types(schema: TableSchema) -> dict[str, pa.DataType]:
    """Arrow type of each column as queries show it."""
    fields = {name: FieldType(kind).arrow for name, kind in schema.fields}
    return {**dict.fromkeys(schema.tags, pa.string()), "time": pa.timestamp("ns"), **fields}


def under_schema(rows: pa.Table, types: dict[str, pa.DataType]) -> pa.Table:
    """User rows under a newer schema; an empty tag is null."""
    columns = []
    for name, kind in types.items():
        column = rows.column(name).cast(kind) if name in rows.column_names else pa.nulls(rows.num_rows, kind)
        columns.append(
            pc.if_else(pc.equal(column, ""), None, column) if kind == pa.string() and name != "note" else column
        )
    return pa.table(dict(zip(types, columns, strict=True)))


def keep(
    rows: pa.Table, start_ns: int | None, end_ns: int | None, tags: Mapping[str, Sequence[str]] | None
) -> pa.Table:
    """The rows that a scan's conditions leave."""
    if start_ns is not None:
        rows = rows.filter(pc.greater_equal(rows["time"], start_ns))
    if end_ns is not None:
        rows = rows.filter(pc.less(rows["time"], end_ns))
    for tag, values in (tags or {}).items():
        if tag not in rows.column_names:
            return rows.slice(0, 0)
        rows = rows.filter(pc.is_in(rows[tag].cast(pa.string()), pa.array(list(values), pa.string())))
    return rows


def as_segment(rows: pa.Table) -> pa.Table:
    """User rows as a segment stores them: `time` in microseconds where nothing is lost, else in nanoseconds."""
    all_rows = not pc.any(pc.not_equal(pc.multiply(pc.divide(rows["time"], 1000), 1000), rows["time"])).as_py()
    time = rows["time"].cast(pa.timestamp("ns"))
    return rows.set_column(rows.column_names.index("time"), "time", time.cast(pa.timestamp("us")) if all_rows else time)


def readings(
    start_ns: int,
    count: int,
    step_ns: int = 10_000_000_000,
    names: Sequence[str] = ("truck_1", "truck_2"),
    **fields: list[Any],
) -> pa.Table:
    """A small user table: tag `name`, and `velocity` unless other fields are given."""
    columns: dict[str, Any] = {
        "name": pa.array([names[row % len(names)] for row in range(count)]).dictionary_encode(),
        "time": pa.array([start_ns + row * step_ns for row in range(count)], pa.int64()),
    }
    return pa.table(columns | (dict(fields) or {"velocity": pa.array([float(row) for row in range(count)])}))


READINGS = TableSchema("iot", "readings", 1, ("name",), (("velocity", FieldType.FLOAT64),))
