"""The schemas of tables as JSON documents of the HTTP interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.schemas.tables import Catalogue, DatabaseSchema, FieldType, TableSchema, TimeResolution


def table_document(schema: TableSchema) -> dict[str, Any]:
    """One version of a table. `resolution` is null for a table whose first change named none."""
    resolution = schema.recorded_resolution
    return {
        "database": schema.database,
        "table": schema.table,
        "version": schema.version,
        "tags": list(schema.tags),
        "fields": [{"name": name, "type": str(kind)} for name, kind in schema.fields],
        "retention_ns": schema.retention_ns,
        "resolution": None if resolution is None else str(resolution),
    }


def table_schema(document: Mapping[str, Any]) -> TableSchema:
    """The inverse of `table_document`. Raises LookupError, TypeError and ValueError for anything else."""
    resolution = document["resolution"]
    return TableSchema(
        document["database"],
        document["table"],
        document["version"],
        tuple(document["tags"]),
        tuple((each["name"], FieldType(each["type"])) for each in document["fields"]),
        document["retention_ns"],
        None if resolution is None else TimeResolution(resolution),
    )


def catalogue_document(catalogue: Catalogue) -> dict[str, Any]:
    """The databases, and every table at its newest version; `dropped` as `Catalogue.is_dropped`."""
    return {
        "databases": [
            {"database": each.database, "slice_ns": each.slice_ns, "buckets": each.buckets}
            for each in list(catalogue.databases.values())
        ],
        "tables": [
            {**table_document(catalogue.newest(*key)), "dropped": catalogue.is_dropped(*key)}
            for key in sorted(catalogue.tables)
        ],
    }


def read_catalogue(document: Mapping[str, Any], into: Catalogue) -> None:
    """Replace what a catalogue has by a document of `catalogue_document`. Raises as `table_schema`.

    It has the newest versions only, and no refusals: enough to write, not to apply records.
    """
    databases = [DatabaseSchema(each["database"], each["slice_ns"], each["buckets"]) for each in document["databases"]]
    schemas = [(table_schema(each), bool(each["dropped"])) for each in document["tables"]]
    # Replaced and not changed in place: other threads may be reading.
    into.databases = {each.database: each for each in databases}
    into.tables = {(each.database, each.table): [each] for each, _ in schemas}
    into.dropped = {(each.database, each.table): each.version for each, dropped in schemas if dropped}
