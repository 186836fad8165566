"""The tables of a cluster as a shell needs them: names to complete, and `\\d`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.schemas.errors import HeadraceError
from headrace.schemas.tables import TIME_COLUMN

SQL_TYPES = {"float64": "DOUBLE", "int64": "BIGINT", "bool": "BOOLEAN", "string": "VARCHAR"}


class TableNotFound(HeadraceError):
    """A name that no table has, or that tables of several databases have."""


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column: its name, its SQL type, and whether it is a tag, the time or a field."""

    name: str
    sql_type: str
    role: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table and its columns in the order of `SELECT *`."""

    database: str
    name: str
    columns: tuple[TableColumn, ...]

    @property
    def full_name(self) -> str:
        """`database.table`."""
        return f"{self.database}.{self.name}"


def tables_of(documents: Iterable[Mapping[str, Any]]) -> tuple[Table, ...]:
    """The tables of a node's answer, in order of name."""
    found = []
    for document in documents:
        columns = [TableColumn(tag, "VARCHAR", "tag") for tag in document["tags"]]
        columns.append(TableColumn(TIME_COLUMN, "TIMESTAMP_NS", "time"))
        fields = ((field["name"], SQL_TYPES.get(field["type"], field["type"])) for field in document["fields"])
        columns.extend(TableColumn(name, kind, "field") for name, kind in fields)
        found.append(Table(document["database"], document["table"], tuple(columns)))
    return tuple(sorted(found, key=lambda table: table.full_name))


def find_table(tables: Sequence[Table], name: str) -> Table:
    """The table of a name with or without its database, in any case. Raises TableNotFound."""
    plain = name.replace('"', "").strip().lower()
    matching = [table for table in tables if plain in (table.full_name.lower(), table.name.lower())]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise TableNotFound(
            f"{name} is a table of several databases",
            action=f"write {' or '.join(each.full_name for each in matching)}",
        )
    known = {spelling.lower(): table for table in tables for spelling in (table.name, table.full_name)}
    close = difflib.get_close_matches(plain, known, n=1)
    hint = f"did you mean {known[close[0]].full_name}?" if close else r"\d lists the tables"
    raise TableNotFound(f"there is no table {name}", action=hint)
