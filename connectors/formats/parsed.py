"""What a parser is told and what it answers: options, tables of readings, and the lines it could not take."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from schemas.errors import HeadraceError
from schemas.tables import TIME_COLUMN, FieldType

Format = Literal["influx", "json", "csv", "parquet"]
TimeUnit = Literal["ns", "us", "ms", "s"]

FORMATS: tuple[Format, ...] = get_args(Format)
NS_PER_UNIT: Mapping[str, int] = MappingProxyType({"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000})
TIME_MIN_NS = -(2**63)
TIME_MAX_NS = 2**63 - 1

LINE_COLUMN = "__line"
MESSAGE_COLUMN = "__message"
TAG_TYPE = pa.dictionary(pa.int32(), pa.string())

REJECTED_LINES = pa.schema([("line", pa.int64()), ("reason", pa.string())])
REJECTED_MESSAGES = pa.schema([("message", pa.int64()), ("line", pa.int64()), ("reason", pa.string())])


# The least int64 stands for "no default time": no reading has it.
TIME_ABSENT = TIME_MIN_NS

DefaultTimes = npt.NDArray[np.int64] | int | None
"""Times (ns) of lines that have none: one a line with `TIME_ABSENT` for none, one for all, or none at all."""


class FormatError(HeadraceError):
    """The input as a whole cannot be read with these options: nothing of it was taken."""


class OptionsError(FormatError):
    """The options do not fit each other, or do not fit the format."""


class ColumnTypeError(FormatError):
    """A column has a type that no field, tag or time can have. The message names the column."""


class ColumnMissing(FormatError):
    """A column that the options name is not in the data."""


class TimeRangeError(FormatError):
    """Typed data has a time that is absent or cannot be written as int64 nanoseconds since 1970 UTC."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """One line that was not taken: its number in the input, from 0 (in a message: from 0 in that message), and why."""

    line: int
    reason: str
    message: int | None = None


@dataclass(frozen=True, slots=True)
class FormatOptions:
    """How to read raw data as readings.

    `table` names the table of every row (for line protocol it replaces the measurement); `table_column` names a column or JSON member that
    does. `tags` are the columns that identify a series (line protocol says so itself), `static_tags` are added to every row that has no such
    tag. `time_unit` is the unit of integer times, `time_format` (strptime) makes text times of that form, otherwise text is ISO 8601.
    `declared` gives the field types the cluster knows, by table and field, `declared_tags` its tags by table. `delimiter` separates the
    columns of CSV.
    """

    table: str | None = None
    tags: tuple[str, ...] = ()
    static_tags: tuple[tuple[str, str], ...] = ()
    time_column: str = TIME_COLUMN
    time_unit: TimeUnit = "ns"
    time_format: str | None = None
    declared: Mapping[str, Mapping[str, FieldType]] = field(default_factory=dict)
    declared_tags: Mapping[str, Collection[str]] = field(default_factory=dict)
    table_column: str | None = None
    delimiter: str = ","

    def __post_init__(self) -> None:
        if self.time_unit not in NS_PER_UNIT:
            raise OptionsError(f"unknown time unit {self.time_unit!r}", action="use ns, us, ms or s")
        if self.time_column in self.tags:
            raise OptionsError(f"column {self.time_column!r} cannot be both time and a tag")
        if len(self.delimiter.encode()) != 1 or self.delimiter in '"\n\r':
            raise OptionsError(f"delimiter {self.delimiter!r} is not a single plain character")

    @property
    def ns_per_unit(self) -> int:
        """Nanoseconds in one unit of an integer time."""
        return NS_PER_UNIT[self.time_unit]

    def declared_types(self, table: str) -> Mapping[str, FieldType]:
        """The types the cluster knows for the fields of `table`."""
        return self.declared.get(table, {})


@dataclass(frozen=True, slots=True)
class Parsed:
    """The rows of one input and what could not be read of it.

    `tables`: table name to rows in order of the input: tags dictionary<int32, string>, `time` int64 ns, fields float64, int64, bool or string
    with the types that were seen; with `keep_lines` also `__line` (and `__message`) int64. `rejected`: `line` int64, `reason` string, and
    `message` int64 first when the input was messages; in order of the input. `lines` counts the lines of the input, blank ones too.
    """

    tables: dict[str, pa.Table]
    rejected: pa.Table
    lines: int

    @property
    def rows(self) -> int:
        """Rows in all tables."""
        return sum(table.num_rows for table in self.tables.values())

    def rejections(self, limit: int | None = None) -> list[Rejected]:
        """The rejected lines as objects, the first `limit` of them."""
        rows = (self.rejected if limit is None else self.rejected.slice(0, limit)).to_pylist()
        return [Rejected(row["line"], row["reason"], row.get("message")) for row in rows]


def check_format(name: str) -> Format:
    """`name` as a format; raises OptionsError for one that is unknown."""
    for known in FORMATS:
        if name == known:
            return known
    raise OptionsError(f"unknown format {name!r}", action=f"use one of {', '.join(FORMATS)}")


def default_times_of(default_times: DefaultTimes, lines: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The default time of each of `lines`."""
    if isinstance(default_times, np.ndarray):
        return default_times[lines]
    return np.full(len(lines), TIME_ABSENT if default_times is None else default_times, np.int64)
