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
import pyarrow.compute as pc

from connectors.formats.line_scanner import BadLine, OpenString, ScannedField, ScannedLine, scan_line, time_to_ns
from connectors.formats.lines import BACKSLASH, QUOTE, Booleans, Integers, Lines, positions_of
from connectors.formats.parsed import TIME_MAX_NS, TIME_MIN_NS, FormatOptions, Parsed
from connectors.formats.pieces import Assembly, Columns, Piece, Rejections, joined_array
from connectors.formats.series import UNREADABLE, Codes, SeriesRegistry
from connectors.formats.templates import Chunk, Template, chunk_of, match
from connectors.formats.values import both, booleans, finite_floats, integers, usable, whole
from schemas.tables import FieldType

COMMA, SPACE, HASH = 44, 32, 35
TEMPLATES_MAX = 64
NEW_TEMPLATES_PER_CHUNK = 8
SCAN_AT_ONCE = 24
OPEN_LINES_MAX = 256
OPEN_BYTES_MAX = 1 << 20

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
    lines: Lines, options: FormatOptions, default_times: Integers | int | None, *, keep_lines: bool = False, fast: bool = True
) -> Parsed:
    """The readings in `lines`. `default_times` (ns; one, or one a line with `TIME_ABSENT` for none) is for lines without a time.

    `fast=False` sends every line through the scanner: slow, and the definition of the result.
    """
    parser = _Parser(lines, options, default_times)
    parser.run(fast=fast)
    assembly = Assembly(options, lines, parser.rejections, parser.tag_columns, keep_lines)
    return assembly.parsed(parser.pieces())


TIME_ABSENT = TIME_MIN_NS


class _Parser:
    """One parse: owns the registry of series, the known shapes, the groups of rows and the refused lines."""

    def __init__(self, lines: Lines, options: FormatOptions, default_times: Integers | int | None) -> None:
        self.lines = lines
        self.options = options
        self.registry = SeriesRegistry(options)
        self.rejections = Rejections()
        self._default_times = default_times
        self._shapes: list[_Shape] = []
        self._groups: dict[Signature, _Group] = defaultdict(_Group)
        self._scanned: dict[Signature, _ScannedRows] = defaultdict(_ScannedRows)
        self._time_min = -(-TIME_MIN_NS // -options.ns_per_unit) if TIME_MIN_NS % options.ns_per_unit else TIME_MIN_NS // options.ns_per_unit
        self._time_max = TIME_MAX_NS // options.ns_per_unit

    def run(self, *, fast: bool) -> None:
        """Read every line into groups or refusals."""
        wanted = self._not_blank()
        joined = open_strings(self.lines, wanted)
        for first, last in joined.items():
            wanted[first : last + 1] = False
            self._scan(first, last)
        for first, last in self.lines.chunks():
            rows = np.flatnonzero(wanted[first:last])
            if not len(rows):
                continue
            left = self._match_chunk(first, last, rows) if fast else rows
            for row in left:
                self._scan(first + int(row), first + int(row))

    def pieces(self) -> Iterator[Piece]:
        """The rows, one piece for each table and set of fields."""
        self._close_scanned()
        for signature, group in self._groups.items():
            lines, series, times = np.concatenate(group.lines), np.concatenate(group.series), np.concatenate(group.times)
            columns = [joined_array([part[place] for part in group.columns]) for place in range(len(signature))]
            ordered = bool(np.all(lines[1:] >= lines[:-1]))
            order = np.arange(len(lines)) if ordered else np.argsort(lines, kind="stable")
            for table, rows in self.registry.tables_of(series[order]).items():
                if rows is None and ordered:
                    yield Piece(table, lines, times, {"series": pa.array(series)}, _named(signature, columns))
                    continue
                taken = order if rows is None else order[rows]
                chosen = [column.take(pa.array(taken)) for column in columns]
                yield Piece(table, lines[taken], times[taken], {"series": pa.array(series[taken])}, _named(signature, chosen))

    def tag_columns(self, keys: Columns, rows: int) -> Columns:
        """Tag columns from the series numbers."""
        return self.registry.tag_columns(keys["series"].to_numpy())

    def _not_blank(self) -> Booleans:
        lines = self.lines
        return (lines.ends > lines.starts) & (lines.data[np.minimum(lines.starts, max(len(lines.data) - 1, 0))] != HASH)

    def _match_chunk(self, first: int, last: int, rows: Integers) -> Integers:
        """Take the regular lines of a chunk; the rest comes back."""
        chunk = chunk_of(self.lines, first, last, (COMMA, SPACE))
        irregular = rows[~chunk.regular[rows]]
        left = self._match_rows(chunk, first, rows[chunk.regular[rows]])
        if len(left) > SCAN_AT_ONCE and bool(np.any(chunk.data == QUOTE)):
            chunk = chunk_of(self.lines, first, last, (COMMA, SPACE), quoted=True)
            irregular = np.concatenate((irregular, left[~chunk.regular[left]]))
            left = self._match_rows(chunk, first, left[chunk.regular[left]])
        return np.sort(np.concatenate((irregular, left)))

    def _match_rows(self, chunk: Chunk, first: int, rows: Integers) -> Integers:
        for shape in self._shapes:
            if len(rows):
                rows = self._take(chunk, first, shape, rows)
        odd: list[int] = []
        for _ in range(NEW_TEMPLATES_PER_CHUNK):
            if len(rows) <= SCAN_AT_ONCE or len(self._shapes) >= TEMPLATES_MAX:
                break
            shape_of_first = self._shape_of(first + int(rows[0]))
            before = rows
            if shape_of_first is not None:
                rows = self._take(chunk, first, shape_of_first, rows)
            if shape_of_first is None or (len(rows) and rows[0] == before[0]):
                odd.append(int(before[0]))
                rows = rows[rows != before[0]]
            if shape_of_first is not None and len(before) - len(rows) > 1:
                self._shapes.append(shape_of_first)
        return np.concatenate((np.array(odd, np.int64), rows))

    def _shape_of(self, line: int) -> _Shape | None:
        try:
            text = self.lines.text(line).decode()
            scanned = scan_line(text)
        except (BadLine, UnicodeDecodeError):
            return None
        return None if scanned is None else _shape(text, scanned)

    def _take(self, chunk: Chunk, first: int, shape: _Shape, rows: Integers) -> Integers:
        """Take those of `rows` that have this shape; the others come back."""
        matched, texts = match(chunk, shape.template, rows)
        if not len(matched):
            return rows
        series = self.registry.numbers(texts[0])
        self._check_shape(shape, series)
        allowed = np.array([*(number in shape.checked for number in range(len(self.registry.tables))), False])
        good: Booleans | None = allowed[series]
        times, timely = self._times(shape, first + matched, texts[-1])
        good = both(good, timely)
        columns: list[pl.Series] = []
        for (_, kind), text in zip(shape.fields, texts[1:], strict=False):
            values, valid = _column(kind, text)
            columns.append(values)
            good = both(good, valid)
        if whole(good):
            kept, arrays = matched, [_arrow(values) for values in columns]
        else:
            assert good is not None
            kept, series, times = matched[good], series[good], times[good]
            arrays = [_arrow(values.filter(pl.Series(good))) for values in columns]
        if len(kept):
            self._groups[shape.fields].add(first + kept, series, times, arrays)
        return rows[~np.isin(rows, kept, assume_unique=True)] if len(kept) < len(rows) else rows[:0]

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
        values = integers(texts)
        valid = usable(values)
        times = values.fill_null(0).to_numpy()
        if self.options.ns_per_unit > 1:
            valid = both(valid, (times >= self._time_min) & (times <= self._time_max))
            times = np.where(valid, times, 0) * self.options.ns_per_unit if not whole(valid) else times * self.options.ns_per_unit
        return times, valid

    def _defaults(self, lines: Integers) -> Integers:
        if isinstance(self._default_times, np.ndarray):
            return self._default_times[lines]
        return np.full(len(lines), TIME_ABSENT if self._default_times is None else self._default_times, np.int64)

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
            columns = [pa.array(values, kind.arrow) for (_, kind), values in zip(signature, zip(*rows.values, strict=True), strict=True)]
            lines, times = np.array(rows.lines, np.int64), np.array(rows.times, np.int64)
            self._groups[signature].add(lines, np.array(rows.series, np.int32), times, columns)
        self._scanned.clear()


def open_strings(lines: Lines, wanted: Booleans) -> dict[int, int]:
    """Logical lines that hold newlines inside a quoted string: first to last physical line.

    A line that ends inside a string is joined with the next ones only if the whole is a good line; otherwise it stays alone (and is refused),
    so that one lost quote costs one line.
    """
    quotes = positions_of(lines.data, QUOTE)
    if not len(quotes):
        return {}
    per_line = np.bincount(np.searchsorted(lines.newlines, quotes), minlength=lines.count)
    suspicious = per_line % 2 == 1
    escaped = np.searchsorted(lines.newlines, positions_of(lines.data, BACKSLASH))
    suspicious[escaped[per_line[escaped] > 0]] = True
    joined: dict[int, int] = {}
    done = -1
    for first in np.flatnonzero(suspicious & wanted).tolist():
        if first > done:
            last = _closing_line(lines, first, per_line > 0)
            if last is not None:
                joined[first] = done = last
    return joined


def _closing_line(lines: Lines, first: int, with_quote: Booleans) -> int | None:
    if _reads(lines, first, first) is not None:
        return None
    for last in range(first + 1, min(first + OPEN_LINES_MAX, lines.count)):
        if not lines.same_message(first, last) or lines.ends[last] - lines.starts[first] > OPEN_BYTES_MAX:
            return None
        if with_quote[last]:
            outcome = _reads(lines, first, last)
            if outcome is not None:
                return last if outcome else None
    return None


def _reads(lines: Lines, first: int, last: int) -> bool | None:
    """Whether the physical lines make one good line; None when it ends inside a string."""
    try:
        scan_line(lines.text(first, last).decode())
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
        plain = ~(texts.str.contains('"', literal=True) | texts.str.contains("\\", literal=True)).fill_null(value=True)
        return texts, None if plain.all() else plain.to_numpy()
    values = finite_floats(texts) if kind is FieldType.FLOAT64 else integers(texts) if kind is FieldType.INT64 else booleans(texts)
    return values, usable(values)


def _arrow(values: pl.Series) -> pa.Array:
    array = values.to_arrow()
    return pc.cast(array, pa.string()) if array.type == pa.large_string() else array


def _named(signature: Signature, columns: list[pa.Array]) -> Columns:
    return {name: column for (name, _), column in zip(signature, columns, strict=True)}
