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

from connectors.formats.json_columns import column_values, some_value, tag_codes
from connectors.formats.json_readings import Meaning
from connectors.formats.json_scanner import Scalar, read_objects
from connectors.formats.json_shapes import Shape, Signature, shape_of
from connectors.formats.json_tags import TagRun
from connectors.formats.line_scanner import BadLine
from connectors.formats.lines import Booleans, Integers, Lines
from connectors.formats.matcher import Matcher
from connectors.formats.parsed import TIME_ABSENT, DefaultTimes, FormatOptions, OptionsError, Parsed, default_times_of
from connectors.formats.pieces import Assembly, Piece, Rejections, ascending, in_order, joined_array
from connectors.formats.scanned import ScannedRows
from connectors.formats.tags import encoded, seen_tags
from connectors.formats.templates import Matched
from connectors.formats.times import times_of_text
from connectors.formats.values import arrow_of, both, usable


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
        self._meaning = Meaning(options)
        self._default_times = default_times
        self._groups: dict[Signature, _Group] = defaultdict(_Group)
        self._scanned: ScannedRows[dict[str, str | None], str | None] = ScannedRows()

    def run(self, *, fast: bool) -> None:
        """Read every line into groups or refusals."""
        matcher = Matcher(self.lines, lambda line: shape_of(self.lines.text(line), self._meaning), self._take)
        wanted = self.lines.ends > self.lines.starts
        for first, last in whole_documents(self.lines, wanted).items():
            wanted[first : last + 1] = False
            self._scan(first, last)
        for first, last in self.lines.chunks():
            rows = first + np.flatnonzero(wanted[first:last])
            for row in (matcher.leave(rows) if fast else rows).tolist():
                self._scan(row, row)

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

    def _take(self, shape: Shape, matched: Matched) -> Integers:
        """Keep the rows of a match that mean beyond doubt what the scanner would read; answers which lines those are."""
        times = pl.Series(values=self._defaults(matched.rows))
        good: Booleans | None = None
        tags: list[pa.Array] = []
        fields: list[pl.Series] = []
        for place, column in enumerate(shape.values):
            if isinstance(column, TagRun):
                codes_of_run, valid = column.codes(matched.encoded(place))
                tags.extend(codes_of_run)
                good = both(good, valid)
                continue
            if column.role == "tag":
                codes, valid = tag_codes(column, matched.encoded(place))
                tags.append(codes)
            else:
                values, valid = column_values(shape.table, column, matched, place, self.options)
            good = both(good, valid)
            if column.role == "time":
                times = values
            elif column.role == "field" and column.kind is not None:
                fields.append(values)
        good = both(both(good, usable(times.set(times == TIME_ABSENT, None))), some_value(fields))
        kept = matched.rows
        if good is not None and not good.all():
            kept, keep = kept[good], pl.Series(good)
            times, tags, fields = (
                times.filter(keep),
                [tag.filter(pa.array(good)) for tag in tags],
                [values.filter(keep) for values in fields],
            )
        if len(kept):
            self._groups[shape.signature].add(kept, times.to_numpy(), tags, [arrow_of(values) for values in fields])
        return kept

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
        table = self._meaning.table(reading)
        time = self._time(line, reading)
        self._scanned.add(table, line, self._meaning.tags(reading), time, self._meaning.fields(table, reading))

    def _time(self, line: int, reading: Mapping[str, Scalar]) -> str | None:
        time = reading.get(self.options.time_column)
        if isinstance(time, bool):
            raise BadLine(f"the time {str(time).lower()} is not a time")
        if time is None and int(self._defaults(np.array([line]))[0]) == TIME_ABSENT:
            raise BadLine(f"the line has no time (member {self.options.time_column!r})")
        return time

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
