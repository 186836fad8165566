"""JSON readings as whole columns: one flat object a line.

Lines that one producer wrote have the same members in the same order: they form a template and are taken apart together (`templates`). Every other
line is read by the scanner, which defines what a line means; both ways give the same rows and the same refusals.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from connectors.formats.json_scanner import Member, Number, Scalar, plain_members, read_objects
from connectors.formats.line_scanner import BadLine, check_column
from connectors.formats.lines import Booleans, Integers, Lines
from connectors.formats.matcher import Matcher
from connectors.formats.parsed import TIME_ABSENT, DefaultTimes, FormatOptions, OptionsError, Parsed, default_times_of
from connectors.formats.pieces import Assembly, Piece, Rejections, ascending, in_order, joined_array
from connectors.formats.scanned import ScannedRows
from connectors.formats.tags import encoded, seen_tags
from connectors.formats.templates import Matched, Template
from connectors.formats.times import times_of_text
from connectors.formats.values import (
    INTEGER_TEXT,
    NOT_FINITE_TEXT,
    arrow_of,
    booleans,
    both,
    finite_floats,
    float_of,
    integer_of,
    integers,
    plain_strings,
    usable,
)
from schemas.tables import FieldType

COMMA = 44
EXACT_FLOAT_MAX = 2.0**53
JSON_TRUE, JSON_FALSE = frozenset(("true",)), frozenset(("false",))

Signature = tuple[str, tuple[str, ...], tuple[tuple[str, FieldType], ...]]


@dataclass(frozen=True, slots=True)
class _Column:
    """One member of a shape: what it is for, and how its value is written. `kind` is that of a field, None for one that is always null."""

    name: str
    role: str
    kind: FieldType | None
    quoted: bool
    number: bool


@dataclass(frozen=True, slots=True)
class _Shape:
    """A template of JSON with the meaning of its values; its lines belong to `table`."""

    template: Template
    table: str
    columns: tuple[_Column, ...]

    @property
    def signature(self) -> Signature:
        """The columns its rows have."""
        tags = tuple(column.name for column in self.columns if column.role == "tag")
        fields = tuple(
            (column.name, column.kind) for column in self.columns if column.role == "field" and column.kind is not None
        )
        return self.table, tags, fields


@dataclass(slots=True)
class _Group:
    """Rows of one table with the same tags and the same fields, in parts."""

    lines: list[Integers] = field(default_factory=list)
    times: list[Integers] = field(default_factory=list)
    tags: list[list[pa.Array]] = field(default_factory=list)
    fields: list[list[pa.Array]] = field(default_factory=list)

    def add(self, lines: Integers, times: Integers, tags: list[pa.Array], fields: list[pa.Array]) -> None:
        """Append rows."""
        self.lines.append(lines)
        self.times.append(times)
        self.tags.append(tags)
        self.fields.append(fields)


def parse_json_lines(
    lines: Lines, options: FormatOptions, default_times: DefaultTimes, *, keep_lines: bool = False, fast: bool = True
) -> Parsed:
    """The readings in `lines`. `default_times` as for line protocol; `fast=False` sends every line through the scanner."""
    if options.table is None and options.table_column is None:
        raise OptionsError("JSON readings need a table", action="name the table, or the member that names it")
    parser = _Parser(lines, options, default_times)
    parser.run(fast=fast)
    assembly = Assembly(
        options, lines, parser.rejections, lambda keys, rows: seen_tags(keys, rows, options), keep_lines
    )
    return assembly.parsed(parser.pieces())


class _Parser:
    """One parse: owns the known shapes, the groups of rows and the refused lines."""

    def __init__(self, lines: Lines, options: FormatOptions, default_times: DefaultTimes) -> None:
        self.lines = lines
        self.options = options
        self.rejections = Rejections()
        self._tags = frozenset(options.tags)
        self._default_times = default_times
        self._groups: dict[Signature, _Group] = defaultdict(_Group)
        self._scanned: ScannedRows[dict[str, str | None], str | None] = ScannedRows()

    def run(self, *, fast: bool) -> None:
        """Read every line into groups or refusals."""
        matcher = Matcher(self.lines, (COMMA,), self._shape_of, self._take)
        wanted = self.lines.ends > self.lines.starts
        for first, last in whole_documents(self.lines, wanted).items():
            wanted[first : last + 1] = False
            self._scan(first, last)
        for first, last in self.lines.chunks():
            rows = np.flatnonzero(wanted[first:last])
            if len(rows):
                left = matcher.leave(first, last, rows) if fast else rows
                for row in left.tolist():
                    self._scan(first + row, first + row)

    def pieces(self) -> Iterator[Piece]:
        """The rows, a piece for each table and set of columns."""
        for (table, tag_names, signature), group in self._groups.items():
            tags = {name: joined_array([part[place] for part in group.tags]) for place, name in enumerate(tag_names)}
            fields = {
                name: joined_array([part[place] for part in group.fields]) for place, (name, _) in enumerate(signature)
            }
            yield from _in_line_order(
                Piece(table, np.concatenate(group.lines), np.concatenate(group.times), tags, fields)
            )
        yield from self._scanned_pieces()

    def _shape_of(self, line: int) -> _Shape | None:
        text = self.lines.text(line)
        members = plain_members(text)
        if members is None or len({member.name for member in members}) < len(members):
            return None
        try:
            table = self._table({member.name: member.value for member in members})
            columns = tuple(self._column(table, member) for member in members)
        except BadLine:
            return None
        shape = _Shape(_template(text, members), table, columns)
        return shape if shape.signature[2] else None

    def _column(self, table: str, member: Member) -> _Column:
        value, number = member.value, isinstance(member.value, Number)
        quoted = isinstance(value, str) and not number
        if member.name == self.options.table_column:
            return _Column(member.name, "table", None, quoted, number)
        if member.name == self.options.time_column:
            return _Column(member.name, "time", None, quoted, number)
        if member.name in self._tags:
            return _Column(member.name, "tag", None, quoted, number)
        check_column("field", member.name)
        kind = None if value is None else self._value(table, member.name, value)[0]
        return _Column(member.name, "field", kind, quoted, number)

    def _take(self, first: int, shape: _Shape, matched: Matched) -> Integers:
        """Keep the rows of a match that mean beyond doubt what the scanner would read; answers which lines those are."""
        times = pl.Series(values=self._defaults(first + matched.rows))
        good: Booleans | None = None
        tags: list[pa.Array] = []
        fields: list[pl.Series] = []
        for column, texts in zip(shape.columns, matched.texts, strict=True):
            if column.role == "tag":
                codes, valid = _tag_codes(column, texts)
                tags.append(codes)
            else:
                values, valid = self._values(shape, column, texts)
            if column.number:
                valid = both(valid, json_numbers(matched, texts))
            good = both(good, valid)
            if column.role == "time":
                times = values
            elif column.role == "field" and column.kind is not None:
                fields.append(values)
        good = both(both(good, usable(times.set(times == TIME_ABSENT, None))), _some_value(fields))
        kept = matched.rows
        if good is not None and not good.all():
            kept, keep = kept[good], pl.Series(good)
            times, tags, fields = (
                times.filter(keep),
                [tag.filter(pa.array(good)) for tag in tags],
                [values.filter(keep) for values in fields],
            )
        if len(kept):
            self._groups[shape.signature].add(
                first + kept, times.to_numpy(), tags, [arrow_of(values) for values in fields]
            )
        return kept

    def _values(self, shape: _Shape, column: _Column, texts: pl.Series) -> tuple[pl.Series, Booleans | None]:
        plain = plain_strings(texts) if column.quoted else None
        if column.role == "table":
            return texts, both(plain, (texts == shape.table).fill_null(value=False).to_numpy())
        if column.role == "time":
            times = times_of_text(texts, self.options)
            return times, both(plain, usable(times))
        if column.quoted:
            return texts, plain
        if column.kind is None:
            return texts, _null(texts).to_numpy()
        values = _typed(column.kind, texts)
        valid = usable(values)
        return values, None if valid is None else valid | _null(texts).to_numpy()

    def _defaults(self, lines: Integers) -> Integers:
        return default_times_of(self._default_times, lines)

    def _scan(self, first: int, last: int) -> None:
        """Read one logical line, made of physical lines `first` to `last`, by the scanner."""
        try:
            text = self.lines.text(first, last).decode()
            if not text.strip(" \t\r\n"):
                return
            readings = read_objects(text)
        except UnicodeDecodeError:
            self.rejections.add([first], "the line is not UTF-8")
        except BadLine as error:
            self.rejections.add([first], str(error))
        else:
            for place, reading in enumerate(readings):
                self._keep_or_refuse(first, reading, f"element {place}: " if text.lstrip().startswith("[") else "")

    def _keep_or_refuse(self, line: int, reading: dict[str, Scalar] | BadLine, where: str) -> None:
        try:
            if isinstance(reading, BadLine):
                raise reading
            self._keep(line, reading)
        except BadLine as error:
            self.rejections.add([line], f"{where}{error}")

    def _keep(self, line: int, reading: Mapping[str, Scalar]) -> None:
        table = self._table(reading)
        time = self._time(line, reading)
        self._scanned.add(table, line, self._tags_of(reading), time, self._fields_of(table, reading))

    def _table(self, reading: Mapping[str, Scalar]) -> str:
        if self.options.table_column is None:
            return self.options.table or ""
        named = reading.get(self.options.table_column)
        if named is None and self.options.table is not None:
            return self.options.table
        if not isinstance(named, str) or isinstance(named, Number):
            raise BadLine(f"member {self.options.table_column!r} does not name a table")
        check_column("table", named)
        return named

    def _time(self, line: int, reading: Mapping[str, Scalar]) -> str | None:
        time = reading.get(self.options.time_column)
        if isinstance(time, bool):
            raise BadLine(f"the time {str(time).lower()} is not a time")
        if time is None and int(self._defaults(np.array([line]))[0]) == TIME_ABSENT:
            raise BadLine(f"the line has no time (member {self.options.time_column!r})")
        return time

    def _tags_of(self, reading: Mapping[str, Scalar]) -> dict[str, str | None]:
        present = {name: reading[name] for name in self.options.tags if name in reading}
        return {name: str(value).lower() if isinstance(value, bool) else value for name, value in present.items()}

    def _fields_of(
        self, table: str, reading: Mapping[str, Scalar]
    ) -> dict[str, tuple[FieldType, float | int | bool | str]]:
        fields = {}
        for name, value in reading.items():
            if name in self._tags or name in (self.options.time_column, self.options.table_column):
                continue
            check_column("field", name)
            if value is not None:
                fields[name] = self._value(table, name, value)
        if not fields:
            raise BadLine("no field has a value")
        return fields

    def _value(self, table: str, name: str, value: Number | str | bool) -> tuple[FieldType, float | int | bool | str]:
        if isinstance(value, bool):
            return FieldType.BOOL, value
        if not isinstance(value, Number):
            return FieldType.STRING, value
        if self.options.declared_types(table).get(name) is FieldType.INT64:
            whole = _integral(name, value)
            if whole is not None:
                return FieldType.INT64, whole
        number = float(value) if NOT_FINITE_TEXT.fullmatch(value) else float_of(value)
        if number is None:
            raise BadLine(f"the number of member {name!r} does not fit float64")
        return FieldType.FLOAT64, number

    def _scanned_pieces(self) -> Iterator[Piece]:
        for table, part in self._scanned.parts():
            lines = part.lines
            texts = pl.Series(part.times, dtype=pl.String)
            defaults = pl.Series(values=self._defaults(lines))
            times = times_of_text(texts, self.options).zip_with(texts.is_not_null(), defaults)
            good = times.is_not_null()
            bad = texts.filter(~good)
            self.rejections.add(lines[(~good).to_numpy()], [f"the time {text[:60]!r} cannot be read" for text in bad])
            mask = pa.array(good.to_numpy())
            tags = {
                name: encoded(pa.array([row.get(name) for row in part.keys], pa.string()).filter(mask))
                for name in self.options.tags
            }
            fields = {name: column.filter(mask) for name, column in part.columns().items()}
            yield from _in_line_order(Piece(table, lines[good.to_numpy()], times.drop_nulls().to_numpy(), tags, fields))


def _in_line_order(piece: Piece) -> Iterator[Piece]:
    if not len(piece.lines):
        return
    order = None if ascending(piece.lines) else pa.array(np.argsort(piece.lines, kind="stable"))
    tags = {name: in_order(column, order) for name, column in piece.keys.items()}
    fields = {name: in_order(column, order) for name, column in piece.fields.items()}
    taken = slice(None) if order is None else order.to_numpy()
    yield Piece(piece.table, piece.lines[taken], piece.times[taken], tags, fields)


def whole_documents(lines: Lines, wanted: Booleans) -> dict[int, int]:
    """Messages of several lines that are one JSON document together: first to last line."""
    if lines.messages is None or lines.numbers is None or lines.count < 2:
        return {}
    several = np.append((lines.messages[1:] == lines.messages[:-1]), False) & (lines.numbers == 0)
    documents: dict[int, int] = {}
    for first in np.flatnonzero(several).tolist():
        last = int(np.searchsorted(lines.messages, lines.messages[first], side="right")) - 1
        if not _ends_like_object(lines, first, wanted) and _is_json(lines.text(first, last)):
            documents[first] = last
    return documents


def _ends_like_object(lines: Lines, first: int, wanted: Booleans) -> bool:
    text = lines.text(first).strip()
    return bool(wanted[first]) and text[:1] == b"{" and text[-1:] == b"}"


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def json_numbers(matched: Matched, texts: pl.Series) -> Booleans | None:
    """Which texts are written as JSON writes numbers (or null), given that they are numbers: no plus, no leading zero, digits around the point.

    Comparing text is the cheapest test there is: of all numbers only those that start with a sign or a point come before "0", and only those
    with a zero and another digit at the start lie between "00" and "0:".
    """
    wrong = (texts >= "00") & (texts < "0:")
    low = texts < "0"
    if low.any():
        negative = (texts >= "-0") & (texts < "-:") & ~((texts >= "-00") & (texts < "-0:"))
        wrong |= low & ~negative
    if matched.chunk.has_bare_point:
        wrong |= texts.str.contains(r"\.(?:[eE]|$)")
    return None if not wrong.any() else ~wrong.to_numpy()


def _typed(kind: FieldType, texts: pl.Series) -> pl.Series:
    if kind is FieldType.BOOL:
        return booleans(texts, JSON_TRUE, JSON_FALSE)
    return finite_floats(texts) if kind is FieldType.FLOAT64 else integers(texts)


def _tag_codes(column: _Column, texts: pl.Series) -> tuple[pa.Array, Booleans | None]:
    """A column of tags, and which of them are written plainly; every distinct text is looked at once."""
    found = pc.dictionary_encode(texts.to_arrow())
    distinct = pl.Series(values=pl.from_arrow(found.dictionary))
    if column.quoted:
        plain = plain_strings(distinct)
    else:
        known = finite_floats(distinct).is_not_null() | distinct.is_in(["true", "false", "null"])
        plain = None if known.all() else known.to_numpy()
    codes = encoded(found, absent="" if column.quoted else "null")
    return codes, None if plain is None else plain[np.asarray(found.indices)]


def _some_value(fields: list[pl.Series]) -> Booleans | None:
    """Which rows have a value in any of the columns."""
    valid = [usable(values) for values in fields]
    if any(mask is None for mask in valid):
        return None
    some: Booleans = np.logical_or.reduce([mask for mask in valid if mask is not None])
    return some


def _null(texts: pl.Series) -> pl.Series:
    return (texts == "null").fill_null(value=False)


def _integral(name: str, text: str) -> int | None:
    """A number as int64; None when it has a fraction. Raises BadLine for an integer that does not fit."""
    if INTEGER_TEXT.fullmatch(text):
        whole = integer_of(text)
        if whole is None:
            raise BadLine(f"the integer of member {name!r} does not fit int64")
        return whole
    number = float_of(text)
    return int(number) if number is not None and number.is_integer() and abs(number) < EXACT_FLOAT_MAX else None


def _template(line: bytes, members: list[Member]) -> Template:
    """The template of a line whose values stand where `members` say, cut at the commas between them."""
    before, after = [], []
    start = 0
    for member in members:
        before.append(line[start : member.start])
        following = line.find(b",", member.end)
        start = len(line) if following < 0 else following
        after.append(line[member.end : start])
    return Template(tuple(before), tuple(after))
