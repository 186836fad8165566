"""The parser of Influx line protocol, column by column.

Lines with the same fields share a template and are parsed together (`templates`); each series is parsed once
for all its rows (`series_registry`). Lines with escapes in their fields, unusual spacing or errors go through
the scanner, which defines what every line means. Both paths give the same rows and the same rejections.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import polars as pl
import pyarrow as pa

from headrace.connectors.formats.chunks import (
    Rejections,
    ScannedRows,
    TableChunk,
    concat_arrays,
    is_sorted,
)
from headrace.connectors.formats.interface import (
    TIME_ABSENT,
    DefaultTimes,
    FormatOptions,
    InvalidLine,
    OptionsError,
    ParseResult,
    default_times_of,
)
from headrace.connectors.formats.kernel_types import ValueKind
from headrace.connectors.formats.line_scanner import (
    ScannedField,
    ScannedLine,
    UnterminatedString,
    scan_line,
    time_to_ns,
)
from headrace.connectors.formats.line_triage import UNEXPLAINED, Triage, no_readings
from headrace.connectors.formats.lines import Booleans, Integers, Lines, QuotedRecords, find_quoted_records
from headrace.connectors.formats.series_registry import Codes, SeriesRegistry
from headrace.connectors.formats.table_builder import TableBuilder
from headrace.connectors.formats.templates import NUMBER_KINDS, MatchedLines, Matcher, Template
from headrace.connectors.formats.text_columns import Columns, and_masks, booleans, scaled, to_arrow, valid_mask
from headrace.schemas.tables import FieldType

HASH = 35
Signature = tuple[tuple[str, FieldType], ...]


@dataclass(slots=True)
class _LineShape:
    """A template of line protocol with the fields of its lines, and whether they have a time."""

    template: Template
    fields: Signature
    has_time: bool


@dataclass(slots=True)
class _RowGroup:
    """Rows with the same fields of the same types, as a list of arrays for each batch of lines."""

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
) -> ParseResult:
    """The readings in `lines`. Lines without a time get theirs from `default_times`. Raises OptionsError.

    `fast=False` sends every line through the scanner, which is slow and defines the result.
    """
    if options.tags:
        raise OptionsError("line protocol marks its own tags", action="leave them out; --tag adds one to every row")
    parser = _Parser(lines, options, default_times)
    parser.run(fast=fast)
    builder = TableBuilder(options, lines, parser.rejections, parser.tag_columns, keep_lines)
    return builder.build(parser.chunks())


class _Parser:
    """One parse: owns the registry of series, the groups of rows and the rejected lines."""

    def __init__(self, lines: Lines, options: FormatOptions, default_times: DefaultTimes) -> None:
        self.lines = lines
        self.options = options
        self.registry = SeriesRegistry(options)
        self.rejections = Rejections()
        self._default_times = default_times
        self._groups: dict[Signature, _RowGroup] = defaultdict(_RowGroup)
        self._scanned: ScannedRows[int, int] = ScannedRows()

    def run(self, *, fast: bool) -> None:
        """Parse every line into a group, a scanned row or a rejection."""
        matcher = Matcher(self.lines, self._infer_shape, self._accept)
        wanted, options = not_blank(self.lines), self.options
        triage = Triage(self.lines, options.explained_max, options.scanned_max)
        for first, last in line_records(self.lines, options.explained_max, options.scanned_max).spans.items():
            wanted[first : last + 1] = False
            self._scan(first, last)
        for first, last in self.lines.batches():
            rows = first + np.flatnonzero(wanted[first:last])
            odd, hopeless = triage.split(matcher.consume(rows) if fast else rows)
            self.rejections.add(hopeless, UNEXPLAINED)
            for row in odd.tolist():
                self._scan(row, row)

    def chunks(self) -> Iterator[TableChunk]:
        """The rows, one chunk for each table and signature, then the scanned ones."""
        for signature, group in self._groups.items():
            lines, series, times = (
                np.concatenate(group.lines),
                np.concatenate(group.series),
                np.concatenate(group.times),
            )
            columns = [concat_arrays([part[index] for part in group.columns]) for index in range(len(signature))]
            named = {name: column for (name, _), column in zip(signature, columns, strict=True)}
            yield from self._by_table(lines, series, times, named)
        for _, chunk in self._scanned.chunks():
            series, times = np.array(chunk.keys, np.int32), np.array(chunk.times, np.int64)
            yield from self._by_table(chunk.lines, series, times, chunk.columns())

    def _by_table(self, lines: Integers, series: Codes, times: Integers, columns: Columns) -> Iterator[TableChunk]:
        """The rows split by the table of their series, each chunk in order of the lines."""
        # A signature is shared by tables, so that measurements with equal fields are parsed in one pass.
        order = None if is_sorted(lines) else np.argsort(lines, kind="stable")
        for table, rows in self.registry.rows_by_table(series if order is None else series[order]).items():
            chosen = rows if order is None else order if rows is None else order[rows]
            if chosen is None:
                yield TableChunk(table, lines, times, {"series": pa.array(series)}, columns)
            else:
                fields = {name: column.take(pa.array(chosen)) for name, column in columns.items()}
                yield TableChunk(table, lines[chosen], times[chosen], {"series": pa.array(series[chosen])}, fields)

    def tag_columns(self, keys: Columns, _: int) -> Columns:
        """The tag columns of rows by the ids of their series."""
        return self.registry.tag_columns(keys["series"].to_numpy())

    def _infer_shape(self, line: int) -> _LineShape | None:
        try:
            text = self.lines.text(line).decode()
            scanned = scan_line(text)
        except (InvalidLine, UnicodeDecodeError):
            return None
        return None if scanned is None else _shape(text, scanned)

    def _accept(self, shape: _LineShape, matched: MatchedLines) -> Integers:
        """Store the rows of a match that the scanner would read in the same way; returns their lines."""
        # Whatever is doubtful, as an integer beyond int64, goes to the scanner, which words the rejection.
        series = self.registry.register_texts(matched.dictionary(0))
        times, good = self._times(shape, matched)
        good = and_masks(good, self.registry.disjoint_from((name for name, _ in shape.fields), series))
        columns: list[pl.Series] = []
        for index, (_, kind) in enumerate(shape.fields, 1):
            values, valid = _column(kind, matched, index)
            columns.append(values)
            good = and_masks(good, valid)
        kept = matched.rows
        if good is not None and not good.all():
            kept, series, times = kept[good], series[good], times[good]
            columns = [values.filter(pl.Series(good)) for values in columns]
        if len(kept):
            self._groups[shape.fields].add(kept, series, times, [to_arrow(values) for values in columns])
        return kept

    def _times(self, shape: _LineShape, matched: MatchedLines) -> tuple[Integers, Booleans | None]:
        if not shape.has_time:
            times = self._default_times_of(matched.rows)
            return times, times != TIME_ABSENT
        units, valid = matched.integers(len(shape.fields) + 1)
        values = scaled(units, self.options.ns_per_unit)
        return values.fill_null(0).to_numpy(), and_masks(valid, valid_mask(values))

    def _default_times_of(self, lines: Integers) -> Integers:
        return default_times_of(self._default_times, lines)

    def _scan(self, first: int, last: int) -> None:
        """Scan one logical line, made of the physical lines `first` to `last`."""
        try:
            scanned = scan_line(self.lines.text(first, last).decode())
            if scanned is not None:
                self._add(first, scanned)
        except UnicodeDecodeError:
            self.rejections.add([first], "the line is not UTF-8")
        except InvalidLine as error:
            self.rejections.add([first], str(error))

    def _add(self, line: int, scanned: ScannedLine) -> None:
        tags = {name for name, _ in (*scanned.series.tags, *self.options.static_tags)}
        for one in scanned.fields:
            if one.name in tags:
                raise InvalidLine(f"{one.name!r} is both a tag and a field")
        series = self.registry.register(scanned.series)
        time = self._scanned_time(line, scanned)
        # The registry has the table of each series, so scanned rows of all tables share one name.
        self._scanned.add("", line, series, time, {one.name: (one.kind, one.value) for one in scanned.fields})

    def _scanned_time(self, line: int, scanned: ScannedLine) -> int:
        if scanned.time is not None:
            return time_to_ns(scanned.time, self.options.ns_per_unit)
        default = int(self._default_times_of(np.array([line]))[0])
        if default == TIME_ABSENT:
            raise InvalidLine("the line has no time")
        return default


def line_records(lines: Lines, failures_max: int | None = None, looks_max: int | None = None) -> QuotedRecords:
    """The readings that span several lines inside a quoted string; see `find_quoted_records`."""
    return find_quoted_records(
        lines,
        not_blank(lines),
        is_record,
        escapes=True,
        may_continue=no_readings,
        failures_max=failures_max,
        looks_max=looks_max,
    )


def not_blank(lines: Lines) -> Booleans:
    """Which lines are neither empty nor begin as a comment; the scanner skips what has spaces before."""
    if not lines.count:
        return np.empty(0, np.bool_)
    comments: Booleans = lines.data[lines.starts] == HASH
    filled: Booleans = lines.ends > lines.starts
    return filled & ~comments


def is_record(text: bytes) -> bool | None:
    """Whether a text is one reading, a comment or blank; None when it ends inside a quoted string."""
    try:
        scan_line(text.decode())
    except UnterminatedString:
        return None
    except (InvalidLine, UnicodeDecodeError):
        return False
    return True


def _shape(text: str, scanned: ScannedLine) -> _LineShape | None:
    """The shape of a line; None if such lines can only be scanned."""
    before, after, kinds = [b""], [b""], [ValueKind.SERIES]
    for index, one in enumerate(scanned.fields):
        affixes = _affixes(text, one)
        if affixes is None:
            return None
        before.append((b"," if index else b" ") + text[one.name_start : one.value_start].encode() + affixes[0])
        after.append(affixes[1])
        kinds.append(NUMBER_KINDS.get(one.kind, ValueKind.TEXT))
    if scanned.time is not None:
        before.append(b" ")
        after.append(b"")
        kinds.append(ValueKind.INTEGER)
    fields = tuple((one.name, one.kind) for one in scanned.fields)
    return _LineShape(Template(tuple(before), tuple(after), tuple(kinds)), fields, scanned.time is not None)


def _affixes(text: str, one: ScannedField) -> tuple[bytes, bytes] | None:
    """The constant bytes around the text of a value; None if only the scanner can read such a value."""
    # An unsigned integer must not be negative, which the kernel does not check.
    if one.kind is FieldType.INT64:
        return (b"", b"i") if text[one.value_end - 1] == "i" else None
    return (b'"', b'"') if one.kind is FieldType.STRING else (b"", b"")


def _column(kind: FieldType, matched: MatchedLines, index: int) -> tuple[pl.Series, Booleans | None]:
    """The values of a column, and which of them are valid (None means all)."""
    if kind is FieldType.INT64:
        return matched.integers(index)
    if kind is FieldType.FLOAT64:
        return matched.floats(index)
    texts = matched.texts(index)
    if kind is FieldType.STRING:
        return texts, None
    values = booleans(texts)
    return values, valid_mask(values)
