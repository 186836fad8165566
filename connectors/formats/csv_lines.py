"""The parser of CSV, column by column: a header, then one reading a line.

Lines without quotes are split at their delimiters together (`templates`). Lines with quotes go one by one
through the `csv` module of Python. Both give columns of text, which are converted a column at a time.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from headrace.connectors.formats.chunks import Rejections, TableChunk, is_sorted
from headrace.connectors.formats.interface import (
    TABLE_ACTION,
    TIME_ABSENT,
    ColumnMissing,
    DefaultTimes,
    FormatOptions,
    InvalidLine,
    OptionsError,
    ParseResult,
    check_column,
    default_times_of,
)
from headrace.connectors.formats.kernel_types import ValueKind
from headrace.connectors.formats.lines import (
    QUOTE,
    Booleans,
    Integers,
    Lines,
    QuotedRecords,
    find_quoted_records,
    positions_of,
)
from headrace.connectors.formats.table_builder import TableBuilder
from headrace.connectors.formats.templates import Template, match
from headrace.connectors.formats.text_columns import (
    Columns,
    convert_column,
    encode_tags,
    present_tags,
    time_refusals,
    times_of_text,
    to_arrow,
)

BYTE_ORDER_MARK = "\ufeff"


@dataclass(frozen=True, slots=True)
class Header:
    """The column names of a CSV input. Raises a FormatError if they do not fit the options."""

    names: tuple[str, ...]
    options: FormatOptions
    ignored: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for name in self.names:
            if self.names.count(name) > 1:
                raise ColumnMissing(f"the header has column {name!r} twice", action="rename one of them")
        for name in (*self.options.tags, *filter(None, (self.options.table_column,))):
            self._require(name)
        try:
            for name in self.fields:
                check_column("field", name)
        except InvalidLine as error:
            columns = f"the time is read from {self.options.time_column!r}; the columns are {', '.join(self.names)}"
            raise OptionsError(str(error), action=columns) from None

    @property
    def fields(self) -> tuple[str, ...]:
        """The columns that are neither time nor tag nor the name of the table."""
        others = {self.options.time_column, self.options.table_column, *self.options.tags, *self.ignored}
        return tuple(name for name in self.names if name not in others)

    def require_time(self) -> None:
        """Raise ColumnMissing unless there is a time column."""
        self._require(self.options.time_column)

    def _require(self, name: str) -> None:
        if name not in self.names:
            raise ColumnMissing(f"there is no column {name!r}", action=f"the columns are {', '.join(self.names)}")


def header_of(lines: Lines, options: FormatOptions) -> tuple[Header | None, int]:
    """The header (the first line that is not blank) and the line after it; None without lines."""
    for line in range(lines.count):
        text = lines.text(line)
        if text.strip():
            try:
                decoded = text.decode("utf-8").removeprefix(BYTE_ORDER_MARK)
                cells = cells_of(decoded, options.delimiter)
            except (UnicodeDecodeError, csv.Error):
                raise OptionsError(
                    "the first line of the CSV is no header", action="give the columns names in the first line"
                ) from None
            return Header(tuple(cells), options), line + 1
    return None, lines.count


def parse_csv(
    lines: Lines,
    options: FormatOptions,
    default_times: DefaultTimes,
    *,
    header: Header | None = None,
    first: int = 0,
    keep_lines: bool = False,
    fast: bool = True,
) -> ParseResult:
    """The readings in `lines` from line `first` on; without `header` the first filled line is the header.

    `fast=False` parses every line with the `csv` module, which defines the result.
    """
    if options.table is None and options.table_column is None:
        raise OptionsError("CSV readings need a table", action=TABLE_ACTION)
    if header is None:
        header, first = header_of(lines, options)
    else:
        # The declared types of a file change from block to block, so the header is bound to the options anew.
        header = Header(header.names, options)
    rejections = Rejections()
    builder = TableBuilder(options, lines, rejections, lambda keys, rows: present_tags(keys, rows, options), keep_lines)
    if header is None:
        return builder.build(())
    if default_times is None:
        header.require_time()
    return builder.build(read_chunks(lines, header, default_times, rejections, first=first, fast=fast))


def read_chunks(
    lines: Lines,
    header: Header,
    default_times: DefaultTimes,
    rejections: Rejections,
    *,
    first: int = 0,
    fast: bool = True,
) -> Iterator[TableChunk]:
    """The rows of each table from line `first` on, none of which is a header."""
    cells = _Cells(lines, header, rejections)
    cells.read(first, fast=fast)
    return _chunks(cells, header.options, default_times)


@dataclass(slots=True)
class _Cells:
    """The cells of an input as columns of text, with the lines they came from."""

    lines: Lines
    header: Header
    rejections: Rejections
    _numbers: list[Integers] = field(default_factory=list)
    _parts: list[list[pl.Series]] = field(default_factory=list)
    _single: list[tuple[int, list[str]]] = field(default_factory=list)

    def read(self, start: int, *, fast: bool) -> None:
        """Split all lines from `start` on into cells."""
        wanted: Booleans = self.lines.ends > self.lines.starts
        wanted[:start] = False
        quoted = np.zeros(self.lines.count, np.bool_)
        quoted[np.searchsorted(self.lines.newlines, positions_of(self.lines.data, QUOTE))] = True
        for first, last in csv_records(self.lines, self.header).spans.items():
            if first >= start:
                self._read_record(first, last)
                wanted[first : last + 1] = False
        for line in np.flatnonzero(wanted & quoted if fast else wanted).tolist():
            self._read_record(line, line)
            wanted[line] = False
        if fast:
            for first, last in self.lines.batches():
                self._read_batch(first + np.flatnonzero(wanted[first:last]))

    def columns(self) -> tuple[Integers, dict[str, pl.Series]]:
        """The line numbers, ascending, and the cells of each column; empty cells are null."""
        names = self.header.names
        if self._single:
            self._numbers.append(np.array([line for line, _ in self._single], np.int64))
            self._parts.append(
                [
                    pl.Series(list(cells), dtype=pl.String)
                    for cells in zip(*(cells for _, cells in self._single), strict=True)
                ]
            )
        if not self._numbers:
            return np.empty(0, np.int64), {name: pl.Series([], dtype=pl.String) for name in names}
        numbers = np.concatenate(self._numbers)
        order = None if is_sorted(numbers) else np.argsort(numbers, kind="stable")
        columns = {}
        for index, name in enumerate(names):
            texts = pl.concat([part[index] for part in self._parts])
            texts = texts if order is None else texts.gather(pl.Series(order))
            columns[name] = texts.set(texts == "", None)
        return numbers if order is None else numbers[order], columns

    def _read_batch(self, rows: Integers) -> None:
        delimiter = self.header.options.delimiter.encode()
        width = len(self.header.names)
        kinds = (ValueKind.TEXT,) * width
        template = Template((b"", *[delimiter] * (width - 1)), (b"",) * width, kinds, separator=delimiter[0])
        matched = match(self.lines, template, rows)
        if len(matched.rows):
            self._numbers.append(matched.rows)
            self._parts.append([matched.texts(column) for column in range(width)])
        for row in rows[~np.isin(rows, matched.rows, assume_unique=True)].tolist():
            self._read_record(row, row)

    def _read_record(self, first: int, last: int) -> None:
        """Split one record, made of lines `first` to `last`."""
        try:
            cells = cells_of(self.lines.text(first, last).decode(), self.header.options.delimiter)
        except UnicodeDecodeError:
            self.rejections.add([first], "the line is not UTF-8")
        except csv.Error as error:
            self.rejections.add([first], f"the line is not CSV: {error}")
        else:
            if len(cells) == len(self.header.names):
                self._single.append((first, cells))
            else:
                self.rejections.add(
                    [first], f"the line has {len(cells)} columns and the header {len(self.header.names)}"
                )


def csv_records(lines: Lines, header: Header) -> QuotedRecords:
    """The records that span several lines inside quotes."""

    def is_record(text: bytes) -> bool | None:
        try:
            return len(cells_of(text.decode(), header.options.delimiter)) == len(header.names)
        except UnicodeDecodeError:
            return False
        except csv.Error as error:
            # The csv module has one error class, so only its message distinguishes an open quote.
            return None if "unexpected end" in str(error) else False

    return find_quoted_records(lines, lines.ends > lines.starts, is_record, escapes=False)


def cells_of(text: str, delimiter: str) -> list[str]:
    """The cells of one record. Raises csv.Error."""
    return next(csv.reader([text], delimiter=delimiter, strict=True), [])


def _chunks(cells: _Cells, options: FormatOptions, default_times: DefaultTimes) -> Iterator[TableChunk]:
    """The rows of each table, with every column converted; rows that cannot be converted are rejected."""
    numbers, columns = cells.columns()
    if not len(numbers):
        return
    times, good = _times(numbers, columns, options, default_times, cells.rejections)
    if options.table_column is None:
        yield from _table_chunk(options.table or "", good, numbers, times, columns, cells)
        return
    names = columns[options.table_column]
    names = names if options.table is None else names.fill_null(options.table)
    for name in names.unique(maintain_order=True).to_list():
        own_rows = (names == name).fill_null(value=False).to_numpy() if name is not None else names.is_null().to_numpy()
        try:
            check_column("table", name or "")
        except InvalidLine as error:
            cells.rejections.add(numbers[own_rows], str(error))
            continue
        yield from _table_chunk(name, own_rows & good, numbers, times, columns, cells)


def _times(
    numbers: Integers,
    columns: dict[str, pl.Series],
    options: FormatOptions,
    default_times: DefaultTimes,
    rejections: Rejections,
) -> tuple[Integers, Booleans]:
    defaults = pl.Series(values=default_times_of(default_times, numbers))
    texts = columns.get(options.time_column)
    if texts is None:
        texts = pl.repeat(None, len(numbers), dtype=pl.String, eager=True)
    times = times_of_text(texts, options)
    if times.null_count():
        stripped = texts.str.strip_chars()
        times = times_of_text(stripped.set(stripped == "", None), options)
        times = times.zip_with(texts.is_not_null(), defaults)
    times = times.set(times == TIME_ABSENT, None)
    good = times.is_not_null()
    absent, bad = ~good & texts.is_null(), ~good & texts.is_not_null()
    rejections.add(numbers[absent.to_numpy()], "the line has no time")
    if bad.any():
        rejections.add(numbers[bad.to_numpy()], time_refusals(texts.filter(bad), options))
    return times.fill_null(0).to_numpy(), good.to_numpy()


def _table_chunk(
    table: str, own_rows: Booleans, numbers: Integers, times: Integers, columns: dict[str, pl.Series], cells: _Cells
) -> Iterator[TableChunk]:
    options = cells.header.options
    declared = options.declared_types(table)
    keep = pl.Series(own_rows)
    texts = {name: columns[name].filter(keep) for name in (*options.tags, *cells.header.fields)}
    numbers, times = numbers[own_rows], times[own_rows]
    good = np.ones(len(numbers), np.bool_)
    converted: dict[str, pl.Series] = {}
    for name in cells.header.fields:
        column = convert_column(texts[name], declared.get(name))
        if column is None:
            continue
        converted[name] = column.values
        bad = column.invalid.to_numpy()
        if bad.any():
            cells.rejections.add(
                numbers[bad],
                [
                    f"{text[:60]!r} in column {name!r} is no {column.kind}"
                    for text in texts[name].filter(column.invalid)
                ],
            )
            good &= ~bad
    valued = np.zeros(len(numbers), np.bool_)
    for name in cells.header.fields:
        valued |= texts[name].is_not_null().to_numpy()
    cells.rejections.add(numbers[~valued], "no column of the line has a value")
    good &= valued
    kept = pl.Series(good)
    tags: Columns = {name: encode_tags(texts[name].filter(kept).to_arrow()) for name in options.tags}
    fields: Columns = {name: to_arrow(values.filter(kept)) for name, values in converted.items()}
    yield TableChunk(table, numbers[good], times[good], tags, fields)
