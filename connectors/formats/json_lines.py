"""The parser of JSON readings, column by column: one flat object a line.

Lines of one producer have the same members in the same order, so they share a template and are parsed
together (`json_templates`). All other lines go through the scanner, which defines what a line means. Both
paths give the same rows and the same rejections.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
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
    reorder,
)
from headrace.connectors.formats.interface import (
    TABLE_ACTION,
    TIME_ABSENT,
    DefaultTimes,
    FormatOptions,
    InvalidLine,
    OptionsError,
    ParseResult,
    default_times_of,
)
from headrace.connectors.formats.json_scanner import MemberMapping, Scalar, parse_objects
from headrace.connectors.formats.json_templates import (
    JsonShape,
    Signature,
    TagRun,
    column_values,
    infer_shape,
    some_value,
    tag_codes,
)
from headrace.connectors.formats.lines import Booleans, Integers, Lines
from headrace.connectors.formats.table_builder import TableBuilder
from headrace.connectors.formats.templates import MatchedLines, Matcher
from headrace.connectors.formats.text_columns import (
    and_masks,
    encode_tags,
    present_tags,
    time_refusals,
    times_of_text,
    to_arrow,
    valid_mask,
)


@dataclass(slots=True)
class _RowGroup:
    """Rows of one table with the same tags and fields, as a list of arrays for each batch of lines."""

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
) -> ParseResult:
    """The readings in `lines`. Lines without a time get theirs from `default_times`.

    `fast=False` sends every line through the scanner, which is slow and defines the result.
    """
    if options.table is None and options.table_column is None:
        raise OptionsError("JSON readings need a table", action=TABLE_ACTION)
    parser = _Parser(lines, options, default_times)
    parser.run(fast=fast)
    builder = TableBuilder(
        options, lines, parser.rejections, lambda keys, rows: present_tags(keys, rows, options), keep_lines
    )
    return builder.build(parser.chunks())


class _Parser:
    """One parse: owns the groups of rows and the rejected lines."""

    def __init__(self, lines: Lines, options: FormatOptions, default_times: DefaultTimes) -> None:
        self.lines = lines
        self.options = options
        self.rejections = Rejections()
        self._mapping = MemberMapping(options)
        self._default_times = default_times
        self._groups: dict[Signature, _RowGroup] = defaultdict(_RowGroup)
        self._scanned: ScannedRows[dict[str, str | None], str | None] = ScannedRows()

    def run(self, *, fast: bool) -> None:
        """Parse every line into a group, a scanned row or a rejection."""
        matcher = Matcher(self.lines, lambda line: infer_shape(self.lines.text(line), self._mapping), self._accept)
        wanted = self.lines.ends > self.lines.starts
        for first, last in multiline_documents(self.lines, wanted).items():
            wanted[first : last + 1] = False
            self._scan(first, last)
        for first, last in self.lines.batches():
            rows = first + np.flatnonzero(wanted[first:last])
            for row in (matcher.consume(rows) if fast else rows).tolist():
                self._scan(row, row)

    def chunks(self) -> Iterator[TableChunk]:
        """The rows, one chunk for each signature, then the scanned ones."""
        for (table, tag_names, signature), group in self._groups.items():
            tags = {name: concat_arrays([part[index] for part in group.tags]) for index, name in enumerate(tag_names)}
            fields = {
                name: concat_arrays([part[index] for part in group.fields]) for index, (name, _) in enumerate(signature)
            }
            yield from _in_line_order(
                TableChunk(table, np.concatenate(group.lines), np.concatenate(group.times), tags, fields)
            )
        yield from self._scanned_chunks()

    def _accept(self, shape: JsonShape, matched: MatchedLines) -> Integers:
        """Store the rows of a match that the scanner would read in the same way; returns their lines."""
        # Whatever is doubtful goes to the scanner, which words the rejection.
        times = pl.Series(values=self._default_times_of(matched.rows))
        good: Booleans | None = None
        tags: list[pa.Array] = []
        fields: list[pl.Series] = []
        for index, column in enumerate(shape.values):
            if isinstance(column, TagRun):
                run_codes, valid = column.codes(matched.dictionary(index))
                tags.extend(run_codes)
                good = and_masks(good, valid)
                continue
            if column.role == "tag":
                codes, valid = tag_codes(column, matched.dictionary(index))
                tags.append(codes)
            else:
                values, valid = column_values(shape.table, column, matched, index, self.options)
            good = and_masks(good, valid)
            if column.role == "time":
                times = values
            elif column.role == "field" and column.kind is not None:
                fields.append(values)
        good = and_masks(and_masks(good, valid_mask(times.set(times == TIME_ABSENT, None))), some_value(fields))
        kept = matched.rows
        if good is not None and not good.all():
            kept, keep = kept[good], pl.Series(good)
            times, tags, fields = (
                times.filter(keep),
                [tag.filter(pa.array(good)) for tag in tags],
                [values.filter(keep) for values in fields],
            )
        if len(kept):
            self._groups[shape.signature].add(kept, times.to_numpy(), tags, [to_arrow(values) for values in fields])
        return kept

    def _default_times_of(self, lines: Integers) -> Integers:
        return default_times_of(self._default_times, lines)

    def _scan(self, first: int, last: int) -> None:
        """Scan one logical line, made of the physical lines `first` to `last`."""
        try:
            text = self.lines.text(first, last).decode()
            if not text.strip(" \t\r\n"):
                return
            readings = parse_objects(text)
        except UnicodeDecodeError:
            self.rejections.add([first], "the line is not UTF-8")
        except InvalidLine as error:
            self.rejections.add([first], str(error))
        else:
            for index, reading in enumerate(readings):
                self._add_or_reject(first, reading, f"element {index}: " if text.lstrip().startswith("[") else "")

    def _add_or_reject(self, line: int, reading: dict[str, Scalar] | InvalidLine, where: str) -> None:
        try:
            if isinstance(reading, InvalidLine):
                raise reading
            self._add(line, reading)
        except InvalidLine as error:
            self.rejections.add([line], f"{where}{error}")

    def _add(self, line: int, reading: Mapping[str, Scalar]) -> None:
        table = self._mapping.table(reading)
        time = self._time(line, reading)
        self._scanned.add(table, line, self._mapping.tags(reading), time, self._mapping.fields(table, reading))

    def _time(self, line: int, reading: Mapping[str, Scalar]) -> str | None:
        time = reading.get(self.options.time_column)
        if isinstance(time, bool):
            raise InvalidLine(f"the time {str(time).lower()} is not a time")
        if time is None and int(self._default_times_of(np.array([line]))[0]) == TIME_ABSENT:
            member = self.options.source_name(self.options.time_column)
            raise InvalidLine(f"the line has no time (member {member!r})")
        return time

    def _scanned_chunks(self) -> Iterator[TableChunk]:
        # Times stay text until here, so that those of all scanned lines are converted in one call.
        for table, chunk in self._scanned.chunks():
            lines = chunk.lines
            texts = pl.Series(chunk.times, dtype=pl.String)
            defaults = pl.Series(values=self._default_times_of(lines))
            times = times_of_text(texts, self.options).zip_with(texts.is_not_null(), defaults)
            good = times.is_not_null()
            if not good.all():
                self.rejections.add(lines[(~good).to_numpy()], time_refusals(texts.filter(~good), self.options))
            mask = pa.array(good.to_numpy())
            tags = {
                name: encode_tags(pa.array([row.get(name) for row in chunk.keys], pa.string()).filter(mask))
                for name in self.options.tags
            }
            fields = {name: column.filter(mask) for name, column in chunk.columns().items()}
            yield from _in_line_order(
                TableChunk(table, lines[good.to_numpy()], times.drop_nulls().to_numpy(), tags, fields)
            )


def _in_line_order(chunk: TableChunk) -> Iterator[TableChunk]:
    """The chunk with its lines ascending, if it has any."""
    # Shapes of one signature may alternate in the input.
    if not len(chunk.lines):
        return
    order = None if is_sorted(chunk.lines) else pa.array(np.argsort(chunk.lines, kind="stable"))
    tags = {name: reorder(column, order) for name, column in chunk.keys.items()}
    fields = {name: reorder(column, order) for name, column in chunk.fields.items()}
    rows = slice(None) if order is None else order.to_numpy()
    yield TableChunk(chunk.table, chunk.lines[rows], chunk.times[rows], tags, fields)


def multiline_documents(lines: Lines, wanted: Booleans) -> dict[int, int]:
    """The messages of several lines that are one JSON document: first to last line."""
    if lines.messages is None or lines.numbers is None or lines.count < 2:
        return {}
    several = np.append((lines.messages[1:] == lines.messages[:-1]), False) & (lines.numbers == 0)
    documents: dict[int, int] = {}
    for first in np.flatnonzero(several).tolist():
        # A first line that is an object by itself means one reading a line: the whole need not be parsed.
        last = int(np.searchsorted(lines.messages, lines.messages[first], side="right")) - 1
        if not _is_object_line(lines, first, wanted) and _is_json(lines.text(first, last)):
            documents[first] = last
    return documents


def _is_object_line(lines: Lines, first: int, wanted: Booleans) -> bool:
    text = lines.text(first).strip()
    return bool(wanted[first]) and text[:1] == b"{" and text[-1:] == b"}"


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
