"""What `headrace sync verify` asks a store and its centre, day by day, and how it compares the answers.

Both nodes compute one checksum for each series of a day: the sum of a hash of each row. It does not depend on the order
of rows, so two answers can be compared series by series, and a row that is missing or has another value shows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from headrace.schemas.series import escape_table, parse_series_key, series_keys
from headrace.schemas.tables import TIME_COLUMN, FieldType, TableSchema

DIFFERENCES_MAX = 5
"""Series that are named of one day."""
FILTER_VALUES_MAX = 500
"""Most values of a tag that a query names: with more the node reads the whole day."""
DAY_COLUMN, ROWS_COLUMN, SUM_COLUMN = "__day", "__rows", "__sum"
_SEPARATOR = "chr(31)"


@dataclass(frozen=True, slots=True)
class ComparedTable:
    """One table of a store, and of its centre; None where the centre has no such table."""

    edge: TableSchema
    centre: TableSchema | None

    @property
    def name(self) -> str:
        """As SQL names it."""
        return f"{_quoted(self.edge.database)}.{_quoted(self.edge.table)}"

    def expressions(self, schema: TableSchema) -> list[str]:
        """SQL of time and each field of the edge, in one order and of one type at both ends; null where there is none."""
        found = [f"epoch_ns({_quoted(TIME_COLUMN)})"]
        here, other = dict(schema.fields), dict((self.centre or self.edge).fields)
        for name, kind in sorted(self.edge.fields):
            kinds = {kind, other.get(name, kind)}
            if name not in here:
                found.append("NULL")
            elif len(kinds) > 1 and FieldType.FLOAT64 in kinds:
                found.append(f"CAST({_quoted(name)} AS DOUBLE)")
            else:
                found.append(_quoted(name))
        return found


@dataclass(frozen=True, slots=True)
class DayVerdict:
    """One day of one table. `differences` name the first series that differ."""

    database: str
    table: str
    day: str
    edge_rows: int
    centre_rows: int
    equal: bool
    differences: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OwnedDevices:
    """The devices of one sender in one table; `others` are owners by device, as far as the centre knows them."""

    keys: pa.StringArray
    filters: Mapping[str, Sequence[str]]
    others: Mapping[str, str]

    @classmethod
    def of(cls, owners: Mapping[str, str], table: str, sender: str) -> OwnedDevices:
        """Of the owners by device of one database."""
        prefix = escape_table(table)
        here = {key: owner for key, owner in owners.items() if key == prefix or key.startswith(f"{prefix},")}
        mine = sorted(key for key, owner in here.items() if owner == sender)
        others = {key: owner for key, owner in here.items() if owner != sender}
        return cls(pa.array(mine, pa.string()), _filters(mine), others)


def days_sql(table: ComparedTable, devices: OwnedDevices | None) -> str:
    """The days that have rows; at the centre those of `devices` as far as a few values of tags find them."""
    where = f" WHERE {' AND '.join(conditions)}" if (conditions := _conditions(devices)) else ""
    return (
        f"SELECT CAST({_quoted(TIME_COLUMN)} AS DATE) AS {DAY_COLUMN}, count(*) AS {ROWS_COLUMN} "
        f"FROM {table.name}{where} GROUP BY {DAY_COLUMN}"
    )


def series_sql(
    table: ComparedTable, schema: TableSchema, day: date, devices: OwnedDevices | None, *, portable: bool
) -> str:
    """Rows and checksum of each series of a day. `portable`: one that other versions of DuckDB compute equally."""
    values = table.expressions(schema)
    if portable:
        texts = [f"coalesce('v' || CAST({each} AS VARCHAR), 'n')" for each in values]
        checksum = f"md5_number_lower({f' || {_SEPARATOR} || '.join(texts)})"
    else:
        checksum = f"hash({', '.join(values)})"
    time = _quoted(TIME_COLUMN)
    conditions = [f"{time} >= TIMESTAMP '{day} 00:00:00'", f"{time} < TIMESTAMP '{day + timedelta(days=1)} 00:00:00'"]
    conditions += _conditions(devices)
    tags = [_quoted(each) for each in schema.tags]
    grouped = f" GROUP BY {', '.join(tags)}" if tags else " HAVING count(*) > 0"
    columns = [*tags, f"count(*) AS {ROWS_COLUMN}", f"CAST(sum({checksum}) AS VARCHAR) AS {SUM_COLUMN}"]
    return f"SELECT {', '.join(columns)} FROM {table.name} WHERE {' AND '.join(conditions)}{grouped}"


def keyed(schema: TableSchema, rows: pa.Table) -> pa.Table:
    """An answer to `series_sql` by series key: `series`, `rows`, `checksum`."""
    tags = {
        name: pa.concat_arrays([pa.array([], pa.string()), *rows[name].cast(pa.string()).chunks])
        for name in schema.tags
    }
    keys = (
        series_keys(schema.table, tags) if tags else pa.array([escape_table(schema.table)] * rows.num_rows, pa.string())
    )
    return pa.table({"series": keys, "rows": rows[ROWS_COLUMN], "checksum": rows[SUM_COLUMN]})


def owned_rows(rows: pa.Table, devices: OwnedDevices) -> pa.Table:
    """Those of a keyed answer of the centre that are the sender's."""
    return rows.filter(pc.is_in(rows["series"], value_set=devices.keys))


def compare_day(table: TableSchema, day: date, edge: pa.Table, centre: pa.Table, devices: OwnedDevices) -> DayVerdict:
    """The verdict about two keyed answers."""
    both = edge.join(centre, "series", join_type="full outer", left_suffix="_edge", right_suffix="_centre")
    same = pc.and_kleene(
        pc.equal(both["rows_edge"], both["rows_centre"]), pc.equal(both["checksum_edge"], both["checksum_centre"])
    )
    different = both.filter(pc.invert(pc.fill_null(same, False))).sort_by("series")
    lines = [_difference(row, devices) for row in different.slice(0, DIFFERENCES_MAX).to_pylist()]
    if different.num_rows > DIFFERENCES_MAX:
        lines.append(f"and {different.num_rows - DIFFERENCES_MAX} series more")
    edge_rows, centre_rows = (pc.sum(each["rows"]).as_py() or 0 for each in (edge, centre))
    return DayVerdict(
        table.database, table.table, str(day), edge_rows, centre_rows, not different.num_rows, tuple(lines)
    )


def kept_days(days: Iterable[date], retentions: Iterable[int | None], now_s: float) -> tuple[list[date], int]:
    """The days that neither end may have dropped by its retention, in order, and how many others there are.

    Retention does not travel: behind it one end may have rows that the other has dropped.
    """
    shortest_ns = min((each for each in retentions if each is not None), default=None)
    found = sorted(set(days))
    if shortest_ns is None:
        return found, 0
    # In microseconds: a retention may be longer than the time since 1970.
    since = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=now_s * 1e6 - shortest_ns / 1_000)
    kept = [each for each in found if datetime(each.year, each.month, each.day, tzinfo=UTC) >= since]
    return kept, len(found) - len(kept)


def exit_code(verdicts: Collection[DayVerdict], waiting: bool) -> int:
    """0 equal, 1 different, 2 while the centre has not decided about all rows."""
    return 2 if waiting else int(not all(each.equal for each in verdicts))


def _conditions(devices: OwnedDevices | None) -> list[str]:
    filters = devices.filters if devices is not None else {}
    return [f"{_quoted(name)} IN ({', '.join(map(_text, values))})" for name, values in sorted(filters.items())]


def _filters(keys: Sequence[str]) -> dict[str, Sequence[str]]:
    """The values of each tag that all devices have, where they are few."""
    devices = [parse_series_key(key)[1] for key in keys]
    shared = set.intersection(*map(set, devices)) if devices else set()
    values = {name: sorted({each[name] for each in devices}) for name in shared}
    return {name: found for name, found in values.items() if len(found) <= FILTER_VALUES_MAX}


def _difference(row: Mapping[str, object], devices: OwnedDevices) -> str:
    series, edge, centre = row["series"], row["rows_edge"], row["rows_centre"]
    if edge is None:
        return f"{series}: {_rows(centre)} at the centre alone"
    owner = devices.others.get(str(series))
    if owner is not None:
        return f"{series}: {_rows(edge)} at the edge, and the device is that of sender {owner}"
    if centre is None:
        return f"{series}: {_rows(edge)} at the edge alone"
    if edge != centre:
        return f"{series}: {_rows(edge)} at the edge, {centre} at the centre"
    return f"{series}: {_rows(edge)} at both ends, and not all are equal"


def _rows(count: object) -> str:
    return f"{count} {'row' if count == 1 else 'rows'}"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
