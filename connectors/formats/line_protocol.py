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

from connectors.formats.line_scanner import BadLine, OpenString, ScannedField, ScannedLine, scan_line, time_to_ns
from connectors.formats.lines import Booleans, Integers, Lines
from connectors.formats.matcher import Matcher
from connectors.formats.parsed import TIME_ABSENT, DefaultTimes, FormatOptions, Parsed, default_times_of
from connectors.formats.pieces import Assembly, Columns, Piece, Rejections, joined_array
from connectors.formats.records import Records, records_of
from connectors.formats.series import UNREADABLE, Codes, SeriesRegistry
from connectors.formats.templates import Matched, Template
from connectors.formats.times import scaled
from connectors.formats.values import arrow_of, booleans, both, finite_floats, integers, plain_strings, usable
from schemas.tables import FieldType

COMMA, SPACE, HASH = 44, 32, 35

Signature = tuple[tuple[str, FieldType], ...]


@dataclass(slots=True)
class _Shape:
    """A template of line protocol with the meaning of its values."""

    template: Template
    fields: Signature
    timed: bool
    checked: set[int] = field(default_factory=set)


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


@dataclass(slots=True)
class _ScannedRows:
    """Rows of one signature that came from the scanner."""

    lines: list[int] = field(default_factory=list)
    series: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    values: list[tuple[float | int | bool | str, ...]] = field(default_factory=list)


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
        self._scanned: dict[Signature, _ScannedRows] = defaultdict(_ScannedRows)

    def run(self, *, fast: bool) -> None:
        """Read every line into groups or refusals."""
        matcher = Matcher(self.lines, (COMMA, SPACE), self._shape_of, self._take)
        wanted = not_blank(self.lines)
        for first, last in line_records(self.lines).joined.items():
            wanted[first : last + 1] = False
            self._scan(first, last)
        for first, last in self.lines.chunks():
            rows = np.flatnonzero(wanted[first:last])
            if not len(rows):
                continue
            left = matcher.leave(first, last, rows) if fast else rows
            for row in left.tolist():
                self._scan(first + row, first + row)

    def pieces(self) -> Iterator[Piece]:
        """The rows, one piece for each table and set of fields."""
        self._close_scanned()
        for signature, group in self._groups.items():
            lines, series, times = (
                np.concatenate(group.lines),
                np.concatenate(group.series),
                np.concatenate(group.times),
            )
            columns = [joined_array([part[place] for part in group.columns]) for place in range(len(signature))]
            ordered = bool(np.all(lines[1:] >= lines[:-1]))
            order = np.arange(len(lines)) if ordered else np.argsort(lines, kind="stable")
            for table, rows in self.registry.tables_of(series[order]).items():
                if rows is None and ordered:
                    yield Piece(table, lines, times, {"series": pa.array(series)}, _named(signature, columns))
                    continue
                taken = order if rows is None else order[rows]
                chosen = [column.take(pa.array(taken)) for column in columns]
                yield Piece(
                    table, lines[taken], times[taken], {"series": pa.array(series[taken])}, _named(signature, chosen)
                )

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

    def _take(self, first: int, shape: _Shape, matched: Matched) -> Integers:
        """Keep the rows of a match that mean beyond doubt what the scanner would read; answers which lines those are."""
        texts = matched.texts
        series = self.registry.numbers(texts[0])
        self._check_shape(shape, series)
        allowed = np.array([*(number in shape.checked for number in range(len(self.registry.tables))), False])
        times, good = self._times(shape, first + matched.rows, texts[-1])
        good = both(good, allowed[series])
        columns: list[pl.Series] = []
        for (_, kind), text in zip(shape.fields, texts[1:], strict=False):
            values, valid = _column(kind, text)
            columns.append(values)
            good = both(good, valid)
        kept = matched.rows
        if good is not None and not good.all():
            kept, series, times = kept[good], series[good], times[good]
            columns = [values.filter(pl.Series(good)) for values in columns]
        if len(kept):
            self._groups[shape.fields].add(first + kept, series, times, [arrow_of(values) for values in columns])
        return kept

    def _check_shape(self, shape: _Shape, series: Codes) -> None:
        """Add to `shape.checked` the series of these rows whose tags are not also fields of the shape."""
        names = {name for name, _ in shape.fields}
        for number in self.registry.distinct(series[series != UNREADABLE]):
            if number not in shape.checked and names.isdisjoint(self.registry.tags[number]):
                shape.checked.add(number)

    def _times(self, shape: _Shape, lines: Integers, texts: pl.Series) -> tuple[Integers, Booleans | None]:
        if not shape.timed:
            times = self._defaults(lines)
            return times, times != TIME_ABSENT
        values = scaled(integers(texts), self.options.ns_per_unit)
        return values.fill_null(0).to_numpy(), usable(values)

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
        number = self.registry.number(scanned.series.table, scanned.series.tags)
        for one in scanned.fields:
            if one.name in self.registry.tags[number]:
                raise BadLine(f"{one.name!r} is both a tag and a field")
        time = self._scanned_time(line, scanned)
        rows = self._scanned[tuple((one.name, one.kind) for one in scanned.fields)]
        rows.lines.append(line)
        rows.series.append(number)
        rows.times.append(time)
        rows.values.append(tuple(one.value for one in scanned.fields))

    def _scanned_time(self, line: int, scanned: ScannedLine) -> int:
        if scanned.time is not None:
            return time_to_ns(scanned.time, self.options.ns_per_unit)
        default = int(self._defaults(np.array([line]))[0])
        if default == TIME_ABSENT:
            raise BadLine("the line has no time")
        return default

    def _close_scanned(self) -> None:
        for signature, rows in self._scanned.items():
            columns = [
                pa.array(values, kind.arrow)
                for (_, kind), values in zip(signature, zip(*rows.values, strict=True), strict=True)
            ]
            lines, times = np.array(rows.lines, np.int64), np.array(rows.times, np.int64)
            self._groups[signature].add(lines, np.array(rows.series, np.int32), times, columns)
        self._scanned.clear()


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
    before, after = [b""], [b""]
    for place, one in enumerate(scanned.fields):
        affixes = _affixes(text, one)
        if affixes is None:
            return None
        before.append((b"," if place else b" ") + text[one.name_start : one.value_start].encode() + affixes[0])
        after.append(affixes[1])
    if scanned.time is not None:
        before.append(b" ")
        after.append(b"")
    fields = tuple((one.name, one.kind) for one in scanned.fields)
    return _Shape(Template(tuple(before), tuple(after), open_start=True), fields, scanned.time is not None)


def _affixes(text: str, one: ScannedField) -> tuple[bytes, bytes] | None:
    if one.kind is FieldType.INT64:
        return (b"", b"i") if text[one.value_end - 1] == "i" else None
    return (b'"', b'"') if one.kind is FieldType.STRING else (b"", b"")


def _column(kind: FieldType, texts: pl.Series) -> tuple[pl.Series, Booleans | None]:
    """The values of a column of matched texts, and which of them are of its kind beyond doubt."""
    if kind is FieldType.STRING:
        return texts, plain_strings(texts)
    values = (
        finite_floats(texts)
        if kind is FieldType.FLOAT64
        else integers(texts)
        if kind is FieldType.INT64
        else booleans(texts)
    )
    return values, usable(values)


def _named(signature: Signature, columns: list[pa.Array]) -> Columns:
    return {name: column for (name, _), column in zip(signature, columns, strict=True)}
