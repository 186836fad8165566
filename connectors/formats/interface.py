"""The interface of all parsers: their options, their result, the rejected lines and the errors."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.schemas.errors import HeadraceError
from headrace.schemas.tables import TIME_COLUMN, FieldType, check_name

Format = Literal["influx", "json", "csv", "parquet", "avro", "confluent-avro", "confluent-json", "arrow"]
TimeUnit = Literal["ns", "us", "ms", "s", "m", "h"]
FieldValue = float | int | bool | str

FORMATS: tuple[Format, ...] = ("influx", "json", "csv", "parquet")
"""Of files."""
MESSAGE_FORMATS: tuple[Format, ...] = tuple(each for each in get_args(Format) if each != "parquet")
"""Of the messages of topics."""
SCHEMA_FORMATS: tuple[Format, ...] = ("avro", "confluent-avro")
"""Those that are read by schemas from elsewhere."""
NS_PER_UNIT: Mapping[str, int] = MappingProxyType(
    {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000, "m": 60_000_000_000, "h": 3_600_000_000_000}
)
TIME_MIN_NS = -(2**63)
TIME_MAX_NS = 2**63 - 1

LINE_COLUMN = "__line"
MESSAGE_COLUMN = "__message"
TAG_TYPE = pa.dictionary(pa.int32(), pa.string())

REJECTED_LINES = pa.schema([("line", pa.int64()), ("reason", pa.string())])
REJECTED_MESSAGES = pa.schema([("message", pa.int64()), ("line", pa.int64()), ("reason", pa.string())])


# "No default time" is the least int64, so that default times stay one array without a mask.
TIME_ABSENT = TIME_MIN_NS

# Polars reads it as a number of nanoseconds: the 123 of 10:00:00,123 would be that many.
_FRACTION_ALONE = re.compile(r"(?<![.%])%f")

TABLE_ACTION = "give `--table NAME` or `--table-column FIELD`"
"""What to do about readings that name no table."""

DefaultTimes = npt.NDArray[np.int64] | int | None
"""Times (ns) of lines without a time: one a line (`TIME_ABSENT` for none), one for all, or none."""


class FormatError(HeadraceError):
    """The input as a whole cannot be read with these options; none of its rows is returned."""


class OptionsError(FormatError):
    """The options contradict each other or the format."""

    exit_code = 2


class ColumnTypeError(FormatError):
    """A column has a type that no field, tag or time can have. The message names the column."""


class ColumnMissing(FormatError):
    """The options name a column that the data lacks."""


class TimeRangeError(FormatError):
    """Typed data has a time that is null or does not fit int64 nanoseconds since 1970 UTC."""


class ScansRefused(FormatError):
    """Messages of which too many lines can only be read one by one; `messages` are their numbers."""

    def __init__(self, messages: Sequence[int]) -> None:
        super().__init__(f"{len(messages)} messages have many lines that are read one by one")
        self.messages = messages


class InvalidLine(Exception):
    """One line of the input is invalid; the text is the reason. It is not an error of the whole input."""


@dataclass(frozen=True, slots=True)
class RejectedLine:
    """One rejected line: its number from 0 in the input, or in its message, and the reason."""

    line: int
    reason: str
    message: int | None = None


@dataclass(frozen=True, slots=True)
class SchemaPlace:
    """Where the schemas of messages are: a directory (or one file), or the URL of a registry, with user and password if
    it wants them.
    """

    directory: str | None = None
    registry: str | None = None
    user: str = ""
    # In no `repr`: it ends up in plans, logs and error messages.
    password: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class FormatOptions:
    """How to read raw data as readings.

    `table` is the table of every row and replaces the measurement of line protocol; `table_column` is the
    column or JSON member that names the table. `tags` are the columns that identify a series (line protocol
    marks its own); `static_tags` are added to rows that lack them. `time_unit` is the unit of integer times.
    `time_format` (strptime) is the form of text times, ISO 8601 without it. `declared` has the field types of
    the cluster by table and field, `declared_tags` its tags by table. `delimiter` separates the columns of
    CSV. `explained_max`: of line protocol that is no such thing, so many lines of each message get a reason of their
    own. `scanned_max`: with more valid lines than this that only the scanner can read, a message raises ScansRefused.

    Of messages alone: `columns` are the names of the columns of CSV without headers. `sources` are the values that are
    read, each by its path and the name that it gets; without them all are read, and nested ones are refused. `typed`
    has the types of fields that the cluster does not know. `schemas` is where the schemas of Avro are.
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
    explained_max: int | None = None
    scanned_max: int | None = None
    columns: tuple[str, ...] = ()
    sources: tuple[tuple[tuple[str, ...], str], ...] = ()
    typed: tuple[tuple[str, FieldType], ...] = ()
    schemas: SchemaPlace = SchemaPlace()

    def __post_init__(self) -> None:
        if self.time_unit not in NS_PER_UNIT:
            raise OptionsError(f"unknown time unit {self.time_unit!r}", action="use ns, us, ms, s, m or h")
        if self.time_column in self.tags:
            raise OptionsError(f"column {self.time_column!r} cannot be both time and a tag")
        if len(self.delimiter.encode()) != 1 or self.delimiter in '"\n\r':
            raise OptionsError(f"delimiter {self.delimiter!r} is not a single plain character")
        if self.time_format is not None and _FRACTION_ALONE.search(self.time_format):
            raise OptionsError(
                f"the time format {self.time_format!r} has %f without a point",
                action="write .%f, or %3f, %6f or %9f for so many digits",
            )
        for name in dict(self.static_tags):
            # One that is named like the time would be lost, and its series with others.
            if (error := name_error("tag", name)) is not None:
                raise OptionsError(error, action="rename it")

    @property
    def ns_per_unit(self) -> int:
        """Nanoseconds in one unit of an integer time."""
        return NS_PER_UNIT[self.time_unit]

    @property
    def paths(self) -> tuple[tuple[str, ...], ...]:
        """The paths of the values that are read; empty for all."""
        return tuple(path for path, _ in self.sources)

    def source_name(self, name: str) -> str:
        """What the input calls a column: the path of its value where one is mapped, its parts joined by dots."""
        return next((".".join(path) for path, mapped in self.sources if mapped == name), name)

    def declared_types(self, table: str) -> Mapping[str, FieldType]:
        """The declared types of the fields of `table`."""
        declared = self.declared.get(table, {})
        return {**dict(self.typed), **declared} if self.typed else declared


@dataclass(frozen=True, slots=True)
class ParseResult:
    """The rows of one input, and its rejected lines.

    `tables` has the rows of each table in order of the input: tags dictionary<int32, string>, `time` int64
    ns, fields float64, int64, bool or string, with the types that were seen; with `keep_lines` also `__line`
    (and `__message`) int64. `rejected` has `line` int64 and `reason` string in order of the input, and
    `message` int64 first if the input was messages. `lines` counts the lines of the input, blank ones too.
    """

    tables: dict[str, pa.Table]
    rejected: pa.Table
    lines: int

    @property
    def rows(self) -> int:
        """Rows in all tables."""
        return sum(table.num_rows for table in self.tables.values())

    def with_rejected(self, more: pa.Table) -> ParseResult:
        """The same with lines that were rejected before the others were read, in `REJECTED_MESSAGES`."""
        if not more.num_rows:
            return self
        order = [("message", "ascending"), ("line", "ascending")]
        return ParseResult(self.tables, pa.concat_tables([self.rejected, more]).sort_by(order), self.lines)

    def rejections(self, limit: int | None = None) -> list[RejectedLine]:
        """The rejected lines as objects, the first `limit` of them."""
        rows = (self.rejected if limit is None else self.rejected.slice(0, limit)).to_pylist()
        return [RejectedLine(row["line"], row["reason"], row.get("message")) for row in rows]


def rejected_messages(messages: npt.NDArray[np.int64], reason: str) -> pa.Table:
    """Whole messages that are rejected for one reason."""
    lines = pa.array(np.zeros(len(messages), np.int64))
    return pa.table([pa.array(messages), lines, pa.repeat(pa.scalar(reason), len(messages))], schema=REJECTED_MESSAGES)


def check_format(name: str) -> Format:
    """`name` as a format of files. Raises OptionsError if it is none."""
    for known in FORMATS:
        if name == known:
            return known
    raise OptionsError(f"unknown format {name!r}", action=f"use one of {', '.join(FORMATS)}")


def message_format(name: str) -> Format:
    """`name` as a format of raw messages. Raises OptionsError."""
    for known in MESSAGE_FORMATS:
        if name == known:
            return known
    raise OptionsError(f"format {name} is not read from topics", action=f"choose one of {', '.join(MESSAGE_FORMATS)}")


def default_times_of(default_times: DefaultTimes, lines: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The default time of each of `lines`."""
    if isinstance(default_times, np.ndarray):
        return default_times[lines]
    return np.full(len(lines), TIME_ABSENT if default_times is None else default_times, np.int64)


@lru_cache(maxsize=65_536)
def name_error(kind: str, name: str) -> str | None:
    """Why `name` cannot name a `kind` (table, tag, field); None if it can."""
    # Cached: every line of the scanner and every series asks for the same few names.
    try:
        check_name(kind, name)
    except HeadraceError as error:
        return error.message
    return None


def check_column(kind: str, name: str) -> None:
    """Raise InvalidLine unless `name` may name a `kind` (table, tag, field)."""
    error = name_error(kind, name)
    if error is not None:
        raise InvalidLine(error)
