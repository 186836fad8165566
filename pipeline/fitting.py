"""Which version of a table's schema rows are written under, and which columns can never be written at all. Pure.

Rows are written under the *oldest* version that holds them, not under the newest there is: a batch that is cut again after a crash, when its
own first attempt (or somebody else) has changed the schema meanwhile, then gives the very same messages, and the replicas drop them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from schemas.errors import HeadraceError
from schemas.tables import TIME_COLUMN, Catalogue, FieldType, SchemaError, TableSchema, check_name, plan_change, widened

ORIGIN_PREFIX = "__"


@dataclass(frozen=True, slots=True)
class Columns:
    """The tags and the typed fields of some rows, in order of name; equal columns are equal values."""

    tags: tuple[str, ...]
    fields: tuple[tuple[str, FieldType], ...]


def columns_of(rows: pa.Table) -> Columns:
    """The columns of a user table; those that only say where a row came from are left out."""
    tags: list[str] = []
    fields: list[tuple[str, FieldType]] = []
    for column in rows.schema:
        if column.name == TIME_COLUMN or column.name.startswith(ORIGIN_PREFIX):
            continue
        if pa.types.is_dictionary(column.type):
            tags.append(column.name)
        else:
            kind = FieldType.of_arrow(column.type)
            assert kind is not None, f"a parser gave column {column.name} of type {column.type}"
            fields.append((column.name, kind))
    return Columns(tuple(sorted(tags)), tuple(sorted(fields)))


def oldest_fitting(versions: Sequence[TableSchema], columns: Columns) -> TableSchema | None:
    """The first version of a table that holds rows with these columns, None when none does."""
    return next((schema for schema in versions if fits(schema, columns)), None)


def fits(schema: TableSchema, columns: Columns) -> bool:
    """Whether rows with these columns can be written under `schema` as it is."""
    held = schema.field_types()
    return set(columns.tags) <= set(schema.tags) and all(
        name in held and widened(held[name], kind) == held[name] for name, kind in columns.fields
    )


def check_table_name(catalogue: Catalogue, database: str, table: str) -> None:
    """Raises SchemaError for a name that no table may have, or that differs from a table's only in case."""
    check_name("table", table)
    for owner, other in catalogue.tables:
        if owner == database and other != table and other.lower() == table.lower():
            raise SchemaError(
                f"tables {other!r} and {table!r} of {database} differ only in case",
                action="SQL does not tell them apart: rename one",
            )


def refused_columns(current: TableSchema, columns: Columns) -> dict[str, str]:
    """Columns that the table can never take, with the reason."""
    refused: dict[str, str] = {}
    tags: list[str] = []
    fields: dict[str, FieldType] = {}
    kinds: dict[str, FieldType | None] = {**dict.fromkeys(columns.tags), **dict(columns.fields)}
    for name, kind in kinds.items():
        wanted_tags = [*tags, name] if kind is None else tags
        wanted_fields = fields if kind is None else {**fields, name: kind}
        try:
            plan_change(current, wanted_tags, wanted_fields)
        except HeadraceError as error:
            refused[name] = str(error)
        else:
            tags, fields = wanted_tags, wanted_fields
    return refused
