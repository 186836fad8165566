"""The lists of Flight SQL: databases, tables, columns and keys, and what a node can do. Pure.

Drivers for JDBC and ADBC ask for them, and with these the tools that show tables as a tree. A database is a schema of
theirs, and there are no catalogs. The columns of each list are those of the protocol (FlightSql.proto of Arrow).
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import pyarrow as pa

from headrace.consumers.serve.flight_sql import SentList
from headrace.consumers.serve.flight_sql_info import information
from headrace.consumers.serve.request_bodies import RequestInvalid
from headrace.schemas.tables import TIME_COLUMN, TableSchema

TABLE_TYPE = "TABLE"
PATTERN_CHARACTERS_MAX = 1_000

_TEXT, _CATALOG = pa.string(), pa.field("catalog_name", pa.string())


def _wanted(name: str, kind: pa.DataType) -> pa.Field:
    """A column that never has nulls."""
    return pa.field(name, kind, nullable=False)


_CATALOGS = pa.schema([_wanted("catalog_name", _TEXT)])
_DATABASES = pa.schema([_CATALOG, _wanted("db_schema_name", _TEXT)])
_TABLES = pa.schema(
    [
        _CATALOG,
        pa.field("db_schema_name", _TEXT),
        _wanted("table_name", _TEXT),
        _wanted("table_type", _TEXT),
        _wanted("table_schema", pa.binary()),
    ]
)
_TABLE_TYPES = pa.schema([_wanted("table_type", _TEXT)])
_PRIMARY_KEYS = pa.schema(
    [
        _CATALOG,
        pa.field("db_schema_name", _TEXT),
        _wanted("table_name", _TEXT),
        _wanted("column_name", _TEXT),
        pa.field("key_name", _TEXT),
        _wanted("key_sequence", pa.int32()),
    ]
)
_FOREIGN_KEYS = pa.schema(
    [
        *(
            pa.field(f"{side}_{name}", _TEXT, nullable=name.endswith(("catalog_name", "schema_name")))
            for side in ("pk", "fk")
            for name in ("catalog_name", "db_schema_name", "table_name", "column_name")
        ),
        _wanted("key_sequence", pa.int32()),
        pa.field("fk_key_name", _TEXT),
        pa.field("pk_key_name", _TEXT),
        _wanted("update_rule", pa.uint8()),
        _wanted("delete_rule", pa.uint8()),
    ]
)


def listed(asked: SentList, tables: Iterable[TableSchema]) -> pa.Table:
    """The list that a driver asks for; `tables` are in the order of their names. Raises RequestInvalid, CommandUnknown."""
    return _LISTS[asked.name](asked, list(tables))


def _catalogs(_asked: SentList, _tables: Sequence[TableSchema]) -> pa.Table:
    return _CATALOGS.empty_table()


def _databases(asked: SentList, tables: Sequence[TableSchema]) -> pa.Table:
    matches = _pattern(asked.text(2))
    names = sorted({each.database for each in tables if not asked.text(1) and matches(each.database)})
    return pa.table([pa.nulls(len(names), _TEXT), pa.array(names, _TEXT)], schema=_DATABASES)


def _table_list(asked: SentList, tables: Sequence[TableSchema]) -> pa.Table:
    of_database, of_table, kinds = _pattern(asked.text(2)), _pattern(asked.text(3)), asked.texts(4)
    # Of another catalog, or of views alone, there is nothing.
    has_any = not asked.text(1) and (not kinds or TABLE_TYPE in kinds)
    found = [each for each in tables if has_any and of_database(each.database) and of_table(each.table)]
    columns = [
        pa.nulls(len(found), _TEXT),
        pa.array([each.database for each in found], _TEXT),
        pa.array([each.table for each in found], _TEXT),
        pa.array([TABLE_TYPE] * len(found), _TEXT),
    ]
    if not any(asked.numbers(5)):
        return pa.table(columns, schema=pa.schema(list(_TABLES)[:-1]))
    schemas = pa.array([bytes(_columns(each).serialize()) for each in found], pa.binary())
    return pa.table([*columns, schemas], schema=_TABLES)


def _columns(table: TableSchema) -> pa.Schema:
    """The columns of `SELECT *`."""
    # Rows may lack tags, but not their time.
    tags = [pa.field(name, _TEXT) for name in table.tags]
    fields = [pa.field(name, kind.arrow) for name, kind in table.fields]
    return pa.schema([*tags, _wanted(TIME_COLUMN, pa.timestamp("ns")), *fields])


def _table_types(_asked: SentList, _tables: Sequence[TableSchema]) -> pa.Table:
    return pa.table([[TABLE_TYPE]], schema=_TABLE_TYPES)


def _primary_keys(asked: SentList, tables: Sequence[TableSchema]) -> pa.Table:
    """Tags and time: a row with the same ones replaces another."""
    database, table = asked.text(2), asked.text(3)
    rows = [
        {
            "db_schema_name": each.database,
            "table_name": each.table,
            "column_name": name,
            "key_sequence": place,
        }
        for each in tables
        if not asked.text(1) and each.table == table and database in (None, each.database)
        for place, name in enumerate((*each.tags, TIME_COLUMN), 1)
    ]
    return pa.Table.from_pylist(rows, schema=_PRIMARY_KEYS)


def _foreign_keys(_asked: SentList, _tables: Sequence[TableSchema]) -> pa.Table:
    return _FOREIGN_KEYS.empty_table()


def _information(asked: SentList, _tables: Sequence[TableSchema]) -> pa.Table:
    return information(asked.numbers(1))


def _pattern(pattern: str | None) -> Callable[[str], bool]:
    """Whether a name fits a pattern of LIKE; without one all do. Raises RequestInvalid."""
    if pattern is None:
        return lambda _name: True
    if len(pattern) > PATTERN_CHARACTERS_MAX:
        raise RequestInvalid(
            f"a pattern has more than {PATTERN_CHARACTERS_MAX:,} characters", action="send a shorter one, or none"
        )
    # A pattern of a shell matches in time that does not explode.
    parts = re.findall(r"\\.|.", pattern, re.DOTALL)
    wild = {"%": "*", "_": "?"}
    shell = "".join(wild.get(part) or _literal(part[-1]) for part in parts)
    return re.compile(fnmatch.translate(shell)).match  # type: ignore[return-value]


def _literal(character: str) -> str:
    return f"[{character}]" if character in "*?[" else character


_LISTS: Mapping[str, Callable[[SentList, Sequence[TableSchema]], pa.Table]] = {
    "CommandGetCatalogs": _catalogs,
    "CommandGetDbSchemas": _databases,
    "CommandGetTables": _table_list,
    "CommandGetTableTypes": _table_types,
    "CommandGetPrimaryKeys": _primary_keys,
    "CommandGetExportedKeys": _foreign_keys,
    "CommandGetImportedKeys": _foreign_keys,
    "CommandGetCrossReference": _foreign_keys,
    "CommandGetSqlInfo": _information,
}
LIST_COMMANDS: Collection[str] = frozenset(_LISTS)
