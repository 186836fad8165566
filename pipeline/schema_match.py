"""Matches the columns of rows with the versions of a table's schema, and finds the columns that no version
can hold. Pure.

Rows are written under the *oldest* version that holds them, not under the newest. When a batch runs again
after a crash, its first attempt or another writer may have changed the schema; the batch still gives the same
messages, and replicas drop them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from headrace.schemas.errors import HeadraceError
from headrace.schemas.tables import (
    COLUMNS_MAX,
    TIME_COLUMN,
    Catalogue,
    FieldType,
    SchemaError,
    TableSchema,
    check_name,
    plan_change,
    widened,
)

ORIGIN_PREFIX = "__"


@dataclass(frozen=True, slots=True)
class Columns:
    """The tags and the typed fields of a table of rows, in order of name; equal columns are equal values."""

    tags: tuple[str, ...]
    fields: tuple[tuple[str, FieldType], ...]


def columns_of(rows: pa.Table) -> Columns:
    """The columns of a user table, without those that only record the origin of a row."""
    tags: list[str] = []
    fields: list[tuple[str, FieldType]] = []
    for column in rows.schema:
        if column.name == TIME_COLUMN or column.name.startswith(ORIGIN_PREFIX):
            continue
        if pa.types.is_dictionary(column.type):
            tags.append(column.name)
        else:
            kind = FieldType.of_arrow(column.type)
            assert kind is not None, f"a parser returned column {column.name} of type {column.type}"
            fields.append((column.name, kind))
    return Columns(tuple(sorted(tags)), tuple(sorted(fields)))


def oldest_match(versions: Sequence[TableSchema], columns: Columns) -> TableSchema | None:
    """The first version of a table that holds rows with these columns, None when none does."""
    return next((schema for schema in versions if matches(schema, columns)), None)


def matches(schema: TableSchema, columns: Columns) -> bool:
    """Whether rows with these columns can be written under `schema` without a change."""
    held = schema.field_types()
    return set(columns.tags) <= set(schema.tags) and all(
        name in held and widened(held[name], kind) == held[name] for name, kind in columns.fields
    )


def check_table_name(catalogue: Catalogue, database: str, table: str) -> None:
    """Raises SchemaError for an invalid name, or one that differs from an existing table's only in case."""
    # Checked before a change is proposed: every batch would append another refused change to the table log.
    check_name("table", table)
    for owner, other in catalogue.tables:
        if owner == database and other != table and other.lower() == table.lower():
            raise SchemaError(
                f"tables {other!r} and {table!r} of {database} differ only in case",
                action="SQL does not tell them apart: rename one",
            )


def rejected_columns(current: TableSchema, columns: Columns) -> dict[str, str]:
    """Columns that the table can never hold, with the reason."""
    rejected: dict[str, str] = {}
    tags: list[str] = []
    fields: dict[str, FieldType] = {}
    known = {*current.tags, *current.field_types()}
    full = ""
    # One column at a time, each on top of the accepted ones: two new columns may clash only with each other. What can
    # be accepted together is, and a full table is asked once: a device may send names without end.
    kinds: dict[str, FieldType | None] = {**dict.fromkeys(columns.tags), **dict(columns.fields)}
    waiting = [[name for name in kinds if name not in known], [name for name in kinds if name in known]]
    while waiting:
        names = waiting.pop()
        if full and known.isdisjoint(names):
            rejected |= dict.fromkeys(names, full)
            continue
        wanted_tags = [*tags, *(name for name in names if kinds[name] is None)]
        wanted_fields = {**fields, **{name: kind for name in names if (kind := kinds[name]) is not None}}
        try:
            plan_change(current, wanted_tags, wanted_fields)
        except HeadraceError as error:
            if len(names) > 1:
                half = len(names) // 2
                waiting += [names[half:], names[:half]]
                continue
            rejected[names[0]] = str(error)
            # The last rule of all; another reason is that of one name.
            if f"{COLUMNS_MAX:,} is the most" in error.message:
                full = str(error)
        else:
            tags, fields = wanted_tags, wanted_fields
    return rejected
