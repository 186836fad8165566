"""Influx line protocol as whole columns.

Lines of the same fields form a template and are taken apart together (`templates`); the series of a line is read once for all its rows
(`series`). Lines with escapes in their fields, odd spacing or errors go through the scanner, which defines what every line means; both ways give
the same rows and the same refusals.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import polars as pl
import pyarrow as pa

from connectors.formats.kernel_types import Kind
from connectors.formats.line_scanner import BadLine, OpenString, ScannedField, ScannedLine, scan_line, time_to_ns
from connectors.formats.lines import Booleans, Integers, Lines
from connectors.formats.matcher import Matcher
from connectors.formats.parsed import TIME_ABSENT, DefaultTimes, FormatOptions, Parsed, default_times_of
from connectors.formats.pieces import Assembly, Columns, Piece, Rejections, ascending, joined_array
from connectors.formats.records import Records, records_of
from connectors.formats.scanned import ScannedRows
from connectors.formats.series import Codes, SeriesRegistry
from connectors.formats.templates import Matched, Template
from connectors.formats.times import scaled
from connectors.formats.values import arrow_of, booleans, both, usable
from schemas.tables import FieldType

HASH = 35
KINDS = {FieldType.INT64: Kind.INTEGER, FieldType.FLOAT64: Kind.FLOAT}

Signature = tuple[tuple[str, FieldType], ...]


@dataclass(slots=True)
class _Shape:
    """A template of line protocol with the meaning of its values."""

    template: Template
    fields: Signature
    timed: bool


@dataclass(slots=True)
class _Group:
    """Rows with the same fields of the same types, in parts."""

    lines: list[Integers] = field(default_factory=list)
    series: list[Codes] = field(default_factory=list)
    times: list[Integers] = field(default_factory=list)
    columns: list[list[pa.Array]] = field(default_factory=list)

    def add(self, lines: Integers, series: Codes, times: Integers, columns: list[pa.Array]) -> None:
        """Append rows."""
        self.lines.append(lines)
        self.series.append(series)
        self.times.append(times)
        self.columns.append(columns)


def parse_line_protocol(
    lines: Lines,
    options: FormatOptions,
    default_times: DefaultTimes,
    *,
    keep_lines: bool = False,
    fast: bool = True,
) -> Parsed:
    """The readings in `lines`. `default_times` (ns; one, or one a line with `TIME_ABSENT` for none) is for lines without a time.

    `fast=False` sends every line through the scanner: slow, and the definition of the result.
    """
    parser = _Parser(lines, options, default_times)
    parser.run(fast=fast)
    assembly = Assembly(options, lines, parser.rejections, parser.tag_columns, keep_lines)
    return assembly.parsed(parser.pieces())


class _Parser:
    """One parse: owns the registry of series, the known shapes, the groups of rows and the refused lines."""

    def __init__(self, lines: Lines, options: FormatOptions, default_times: DefaultTimes) -> None:
        self.lines = lines
        self.options = options
        self.registry = SeriesRegistry(options)
        self.rejections = Rejections()
        self._default_times = default_times
        self._groups: dict[Signature, _Group] = defaultdict(_Group)
        self._scanned: ScannedRows[int, int] = ScannedRows()

    def run(self, *, fast: bool) -> None:
        """Read every line into groups or refusals."""
        matcher = Matcher(self.lines, self._shape_of, self._take)
        wanted = not_blank(self.lines)
        for first, last in line_records(self.lines).joined.items():
            wanted[first : last + 1] = False
            self._scan(first, last)
        for first, last in self.lines.chunks():
            rows = first + np.flatnonzero(wanted[first:last])
            for row in (matcher.leave(rows) if fast else rows).tolist():
                self._scan(row, row)

    def pieces(self) -> Iterator[Piece]:
        """The rows, one piece for each table and set of fields."""
        for signature, group in self._groups.items():
            lines, series, times = (
                np.concatenate(group.lines),
                np.concatenate(group.series),
                np.concatenate(group.times),
            )
            columns = [joined_array([part[place] for part in group.columns]) for place in range(len(signature))]
            named = {name: column for (name, _), column in zip(signature, columns, strict=True)}
            yield from self._by_table(lines, series, times, named)
        for _, part in self._scanned.parts():
            series, times = np.array(part.keys, np.int32), np.array(part.times, np.int64)
            yield from self._by_table(part.lines, series, times, part.columns())

    def _by_table(self, lines: Integers, series: Codes, times: Integers, columns: Columns) -> Iterator[Piece]:
        """The rows cut by the table of their series, each piece in order of the lines."""
        order = None if ascending(lines) else np.argsort(lines, kind="stable")
        for table, rows in self.registry.tables_of(series if order is None else series[order]).items():
            taken = rows if order is None else order if rows is None else order[rows]
            if taken is None:
                yield Piece(table, lines, times, {"series": pa.array(series)}, columns)
            else:
                chosen = {name: column.take(pa.array(taken)) for name, column in columns.items()}
                yield Piece(table, lines[taken], times[taken], {"series": pa.array(series[taken])}, chosen)

    def tag_columns(self, keys: Columns, _: int) -> Columns:
        """Tag columns from the series numbers."""
        return self.registry.tag_columns(keys["series"].to_numpy())

    def _shape_of(self, line: int) -> _Shape | None:
        try:
            text = self.lines.text(line).decode()
            scanned = scan_line(text)
        except (BadLine, UnicodeDecodeError):
            return None
        return None if scanned is None else _shape(text, scanned)

    def _take(self, shape: _Shape, matched: Matched) -> Integers:
        """Keep the rows of a match that mean beyond doubt what the scanner would read; answers which lines those are."""
        series = self.registry.numbers(matched.encoded(0))
        times, good = self._times(shape, matched)
        good = both(good, self.registry.without_fields((name for name, _ in shape.fields), series))
        columns: list[pl.Series] = []
        for place, (_, kind) in enumerate(shape.fields, 1):
            values, valid = _column(kind, matched, place)
            columns.append(values)
            good = both(good, valid)
        kept = matched.rows
        if good is not None and not good.all():
            kept, series, times = kept[good], series[good], times[good]
            columns = [values.filter(pl.Series(good)) for values in columns]
        if len(kept):
            self._groups[shape.fields].add(kept, series, times, [arrow_of(values) for values in columns])
        return kept

    def _times(self, shape: _Shape, matched: Matched) -> tuple[Integers, Booleans | None]:
        if not shape.timed:
            times = self._defaults(matched.rows)
            return times, times != TIME_ABSENT
        units, valid = matched.integers(len(shape.fields) + 1)
        values = scaled(units, self.options.ns_per_unit)
        return values.fill_null(0).to_numpy(), both(valid, usable(values))

    def _defaults(self, lines: Integers) -> Integers:
        return default_times_of(self._default_times, lines)

    def _scan(self, first: int, last: int) -> None:
        """Read one logical line, made of physical lines `first` to `last`, by the scanner."""
        try:
            scanned = scan_line(self.lines.text(first, last).decode())
            if scanned is not None:
                self._keep(first, scanned)
        except UnicodeDecodeError:
            self.rejections.add([first], "the line is not UTF-8")
        except BadLine as error:
            self.rejections.add([first], str(error))

    def _keep(self, line: int, scanned: ScannedLine) -> None:
        tags = {name for name, _ in (*scanned.series.tags, *self.options.static_tags)}
        for one in scanned.fields:
            if one.name in tags:
                raise BadLine(f"{one.name!r} is both a tag and a field")
        number = self.registry.number(scanned.series)
        time = self._scanned_time(line, scanned)
        self._scanned.add("", line, number, time, {one.name: (one.kind, one.value) for one in scanned.fields})

    def _scanned_time(self, line: int, scanned: ScannedLine) -> int:
        if scanned.time is not None:
            return time_to_ns(scanned.time, self.options.ns_per_unit)
        default = int(self._defaults(np.array([line]))[0])
        if default == TIME_ABSENT:
            raise BadLine("the line has no time")
        return default


def line_records(lines: Lines) -> Records:
    """The readings that go on over several lines inside a quoted string."""
    return records_of(lines, not_blank(lines), _reads, escapes=True)


def not_blank(lines: Lines) -> Booleans:
    """Which lines are neither empty nor a comment at first sight."""
    if not lines.count:
        return np.empty(0, np.bool_)
    marked: Booleans = lines.data[lines.starts] == HASH
    filled: Booleans = lines.ends > lines.starts
    return filled & ~marked


def _reads(text: bytes) -> bool | None:
    try:
        scan_line(text.decode())
    except OpenString:
        return None
    except (BadLine, UnicodeDecodeError):
        return False
    return True


def _shape(text: str, scanned: ScannedLine) -> _Shape | None:
    """The shape of a line, or None when its lines can only be scanned."""
    before, after, kinds = [b""], [b""], [Kind.SERIES]
    for place, one in enumerate(scanned.fields):
        affixes = _affixes(text, one)
        if affixes is None:
            return None
        before.append((b"," if place else b" ") + text[one.name_start : one.value_start].encode() + affixes[0])
        after.append(affixes[1])
        kinds.append(KINDS.get(one.kind, Kind.TEXT))
    if scanned.time is not None:
        before.append(b" ")
        after.append(b"")
        kinds.append(Kind.INTEGER)
    fields = tuple((one.name, one.kind) for one in scanned.fields)
    return _Shape(Template(tuple(before), tuple(after), tuple(kinds)), fields, scanned.time is not None)


def _affixes(text: str, one: ScannedField) -> tuple[bytes, bytes] | None:
    if one.kind is FieldType.INT64:
        return (b"", b"i") if text[one.value_end - 1] == "i" else None
    return (b'"', b'"') if one.kind is FieldType.STRING else (b"", b"")


def _column(kind: FieldType, matched: Matched, place: int) -> tuple[pl.Series, Booleans | None]:
    """The values of a column, and which of them are of its kind beyond doubt."""
    if kind is FieldType.INT64:
        return matched.integers(place)
    if kind is FieldType.FLOAT64:
        return matched.floats(place)
    texts = matched.texts(place)
    if kind is FieldType.STRING:
        return texts, None
    values = booleans(texts)
    return values, usable(values)
