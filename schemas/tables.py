"""Table schemas and their changes.

A table schema is a chain of versions: change n builds on version n - 1. Of two changes on the same version
the first in the table log is valid. Versions only add columns or widen int64 to float64, so a row written
under an older version always fits a newer one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING

from headrace.schemas.errors import HeadraceError

# Every command knows schemas, and those that see no row start in half the time without Arrow.
if TYPE_CHECKING:
    import pyarrow as pa

TIME_COLUMN = "time"
RESERVED_PREFIX = "__"
# Both are fixed by a database's first record: changing them later would move its rows to other groups.
DEFAULT_SLICE_NS = 86_400_000_000_000
DEFAULT_BUCKETS = 8
SLICE_NS_MIN, BUCKETS_MAX = 1_000_000, 4_096
"""Of a new database: a shorter slice than a millisecond holds a few rows in each of its files."""
NAME_BYTES_MAX = 200
# SQL (DuckDB) uses the other three values of int64 for null and the infinities, so a row there would be lost.
ROW_TIME_MIN_NS, ROW_TIME_MAX_NS = -(2**63) + 2, 2**63 - 2
COLUMNS_MAX = 4_096
# A retention can be changed and not taken back: a change without one keeps the one that the table has.
KEEP_FOREVER_NS = 2**63 - 1
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class SchemaError(HeadraceError):
    """A name or a schema that no table may have."""


class TypeClash(HeadraceError):
    """A column has a type, or a role, that its table does not allow; nothing is cast silently."""


class FieldType(StrEnum):
    """The types a field may have, named as in Arrow."""

    FLOAT64 = "float64"
    INT64 = "int64"
    BOOL = "bool"
    STRING = "string"

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type of a column of this field."""
        return _arrow_types()[self]

    @classmethod
    def of_arrow(cls, arrow_type: pa.DataType) -> FieldType | None:
        """The field type whose Arrow type is exactly `arrow_type`, else None."""
        return _field_types().get(arrow_type)


@cache
def _arrow_types() -> Mapping[FieldType, pa.DataType]:
    import pyarrow as pa

    return {
        FieldType.FLOAT64: pa.float64(),
        FieldType.INT64: pa.int64(),
        FieldType.BOOL: pa.bool_(),
        FieldType.STRING: pa.string(),
    }


@cache
def _field_types() -> Mapping[pa.DataType, FieldType]:
    return {arrow: kind for kind, arrow in _arrow_types().items()}


class TimeResolution(StrEnum):
    """The finest digits that the times of a table have."""

    US = "us"
    NS = "ns"

    @property
    def nanoseconds(self) -> int:
        """Nanoseconds in one step of a time."""
        return 1_000 if self is TimeResolution.US else 1

    @property
    def unit(self) -> str:
        """The step in words."""
        return "microsecond" if self is TimeResolution.US else "nanosecond"


@dataclass(frozen=True, slots=True)
class DatabaseSchema:
    """How a database is partitioned: nanoseconds per time slice, and buckets of series.

    Fixed by the first record of the database.
    """

    database: str
    slice_ns: int = DEFAULT_SLICE_NS
    buckets: int = DEFAULT_BUCKETS


@dataclass(frozen=True, slots=True)
class TableSchema:
    """One version of a table: tag columns and fields, each sorted by name.

    Version 0 is the table before its first change. `recorded_resolution` is None for a table whose first change
    names none, as those of 0.1.0.
    """

    database: str
    table: str
    version: int = 0
    tags: tuple[str, ...] = ()
    fields: tuple[tuple[str, FieldType], ...] = ()
    retention_ns: int | None = None
    recorded_resolution: TimeResolution | None = None

    @property
    def resolution(self) -> TimeResolution:
        """The resolution that holds every time of the table."""
        return self.recorded_resolution or TimeResolution.NS

    def field_types(self) -> dict[str, FieldType]:
        """Field name to type."""
        return dict(self.fields)


@dataclass(frozen=True, slots=True)
class DatabaseChange:
    """The creation of a database. A second one of the same database is ignored."""

    database: str
    slice_ns: int = DEFAULT_SLICE_NS
    buckets: int = DEFAULT_BUCKETS


@dataclass(frozen=True, slots=True)
class TableChange:
    """Columns added or widened on top of `base_version` of a table; valid only if that is the newest version.

    The first change of a table fixes its resolution; a later one names none.
    """

    database: str
    table: str
    base_version: int
    tags: tuple[str, ...] = ()
    fields: tuple[tuple[str, FieldType], ...] = ()
    retention_ns: int | None = None
    resolution: TimeResolution | None = None


@dataclass(frozen=True, slots=True)
class RecordName:
    """A record of a data group's forward log; the digest of its value tells it from one of a recreated topic."""

    group: str
    offset: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class RecordRefusal:
    """A forward record is refused, since it names a version of a table that the table log does not hold so far.

    Void when that version came first.
    """

    record: RecordName
    database: str
    table: str
    schema_version: int


@dataclass(frozen=True, slots=True)
class TableDrop:
    """A table was dropped at `base_version`: from then on it is not listed while it has no rows.

    Void when that is not the newest version. A later change of the table ends it.
    """

    database: str
    table: str
    base_version: int


SchemaChange = DatabaseChange | TableChange | RecordRefusal | TableDrop


def check_name(kind: str, name: str) -> None:
    """Raises SchemaError unless `name` is a valid name of a `kind` (database, table, tag, field)."""
    if not name:
        raise SchemaError(f"a {kind} name is empty", action=f"give the {kind} a name")
    # Names of databases and tables are names of directories, which a file system limits to 255 bytes.
    if len(name.encode()) > NAME_BYTES_MAX:
        raise SchemaError(
            f"{kind} name {name[:40]!r}… is longer than {NAME_BYTES_MAX} bytes", action="use a shorter name"
        )
    if _CONTROL.search(name):
        raise SchemaError(f"{kind} name {name!r} has a control character", action="remove it")
    if kind in ("tag", "field"):
        if name.startswith(RESERVED_PREFIX) or name.lower() == TIME_COLUMN:
            raise SchemaError(f"{kind} name {name!r} is reserved", action="rename the column")
    # A directory of that name would be hidden, or be read as the parent.
    elif name.startswith((".", RESERVED_PREFIX)):
        raise SchemaError(f"{kind} name {name!r} starts with a reserved prefix", action=f"rename the {kind}")


def widened(have: FieldType, want: FieldType) -> FieldType | None:
    """The type that holds both, or None where no lossless one exists."""
    if have == want:
        return have
    if {have, want} == {FieldType.INT64, FieldType.FLOAT64}:
        return FieldType.FLOAT64
    return None


def plan_change(
    current: TableSchema,
    tags: Iterable[str],
    fields: Mapping[str, FieldType],
    retention_ns: int | None = None,
    resolution: TimeResolution | None = None,
) -> TableChange | None:
    """The change by which `current` holds rows with these columns, or None when it holds them already.

    `resolution` is that of a new table; one that exists keeps its own.

    Raises SchemaError for an invalid name and TypeClash for a column that cannot take the type of the rows.
    """
    have = current.field_types()
    where = f"{current.database}.{current.table}"
    new_tags = tuple(sorted(set(tags) - set(current.tags)))
    new_fields: dict[str, FieldType] = {}
    for name, kind in sorted(fields.items()):
        if name in current.tags or name in new_tags:
            raise TypeClash(
                f"column {name!r} of {where} is a tag and cannot also be a field", action="rename one of them"
            )
        held = have.get(name)
        wide = kind if held is None else widened(held, kind)
        if wide is None:
            raise TypeClash(
                f"field {name!r} of {where} is {held} and cannot take {kind}", action="rename the field or convert it"
            )
        if wide != held:
            new_fields[name] = wide
    for name in new_tags:
        if name in have:
            raise TypeClash(
                f"column {name!r} of {where} is a field and cannot also be a tag", action="rename one of them"
            )
    _check_new_columns(current, new_tags, new_fields)
    retention_changed = retention_ns is not None and retention_ns != current.retention_ns
    if not new_tags and not new_fields and not retention_changed and current.version > 0:
        return None
    fixed = resolution if current.version == 0 else None
    return TableChange(
        current.database, current.table, current.version, new_tags, tuple(new_fields.items()), retention_ns, fixed
    )


def _check_new_columns(current: TableSchema, tags: Iterable[str], fields: Mapping[str, FieldType]) -> None:
    seen = {name.lower(): name for name in (*current.tags, *current.field_types())}
    for kind, names in (("tag", tuple(tags)), ("field", tuple(fields))):
        for name in names:
            check_name(kind, name)
            other = seen.setdefault(name.lower(), name)
            if other != name:
                raise SchemaError(
                    f"columns {other!r} and {name!r} of {current.database}.{current.table} differ only in case",
                    action="SQL does not tell them apart: rename one",
                )
    if len(seen) > COLUMNS_MAX:
        raise SchemaError(
            f"{current.database}.{current.table} would have {len(seen):,} columns, and {COLUMNS_MAX:,} is the most",
            action="divide them among tables",
        )


@dataclass(slots=True)
class Catalogue:
    """Every version of every table, and the forward records that were refused.

    A pure state machine over the table log: the same log gives every reader the same catalogue. `dropped` has the
    version at which a table was dropped last, `drops` how often that was.
    """

    databases: dict[str, DatabaseSchema] = field(default_factory=dict)
    tables: dict[tuple[str, str], list[TableSchema]] = field(default_factory=dict)
    refused: set[RecordName] = field(default_factory=set)
    dropped: dict[tuple[str, str], int] = field(default_factory=dict)
    drops: dict[tuple[str, str], int] = field(default_factory=dict)

    def apply(self, change: SchemaChange) -> bool:
        """Apply one record of the table log; whether it is valid."""
        if isinstance(change, DatabaseChange):
            return self._apply_database(change)
        if isinstance(change, RecordRefusal):
            return self._apply_refusal(change)
        if isinstance(change, TableDrop):
            return self._apply_drop(change)
        return self._apply_table(change)

    def newest(self, database: str, table: str) -> TableSchema:
        """The newest version of a table; version 0 when it has none."""
        versions = self.tables.get((database, table))
        return versions[-1] if versions else TableSchema(database, table)

    def at(self, database: str, table: str, version: int) -> TableSchema | None:
        """A table at `version`, or None while the log has not been read that far."""
        versions = self.tables.get((database, table), [])
        return versions[version - 1] if 0 < version <= len(versions) else None

    def is_dropped(self, database: str, table: str) -> bool:
        """Whether a table was dropped and has not changed since. It may have rows again: writers need no change."""
        version = self.dropped.get((database, table))
        return version is not None and version == self.newest(database, table).version

    def _apply_database(self, change: DatabaseChange) -> bool:
        taken = {name.lower() for name in self.databases}
        if change.database.lower() in taken or change.slice_ns <= 0 or not 0 < change.buckets <= BUCKETS_MAX:
            return False
        try:
            check_name("database", change.database)
        except SchemaError:
            return False
        self.databases[change.database] = DatabaseSchema(change.database, change.slice_ns, change.buckets)
        return True

    def _apply_refusal(self, refusal: RecordRefusal) -> bool:
        # The order in the table log decides, and nothing else: a replica may have applied the record as soon as
        # the version was there, and one that reads the log for the first time comes to the same.
        if self.at(refusal.database, refusal.table, refusal.schema_version) is not None:
            return False
        self.refused.add(refusal.record)
        return True

    def _apply_drop(self, drop: TableDrop) -> bool:
        # A change in between is that of a writer who uses the table.
        if not 0 < drop.base_version == self.newest(drop.database, drop.table).version:
            return False
        key = (drop.database, drop.table)
        self.dropped[key], self.drops[key] = drop.base_version, self.drops.get(key, 0) + 1
        return True

    def _apply_table(self, change: TableChange) -> bool:
        current = self.newest(change.database, change.table)
        if change.database not in self.databases or change.base_version != current.version:
            return False
        # Rows that are older than no time, or than one to come, are all rows.
        if change.retention_ns is not None and change.retention_ns <= 0:
            return False
        # Files of one table with two types of time are read by few tools: nothing changes the resolution.
        if current.version > 0 and change.resolution is not None:
            return False
        # Only a new table: DuckDB and file systems may not distinguish its name from another's.
        if current.version == 0 and self._table_name_taken(change.database, change.table):
            return False
        try:
            check_name("table", change.table)
            # The rules are applied again here: a record may come from another build, or from a writer that
            # skips the check.
            planned = plan_change(current, change.tags, dict(change.fields), change.retention_ns, change.resolution)
        except HeadraceError:
            return False
        if planned is None:
            return False
        types = current.field_types() | dict(planned.fields)
        schema = TableSchema(
            change.database,
            change.table,
            current.version + 1,
            tuple(sorted({*current.tags, *planned.tags})),
            tuple(sorted(types.items())),
            current.retention_ns if change.retention_ns is None else change.retention_ns,
            planned.resolution or current.recorded_resolution,
        )
        self.tables.setdefault((change.database, change.table), []).append(schema)
        return True

    def _table_name_taken(self, database: str, table: str) -> bool:
        return any(db == database and name.lower() == table.lower() and name != table for db, name in self.tables)
