"""CSV in messages: lines under the columns that the options name, or under a header in each message.

Messages with the same header are read together.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from headrace.connectors.formats.chunks import Rejections, TableChunk
from headrace.connectors.formats.csv_lines import Header, cells_of, read_chunks
from headrace.connectors.formats.interface import (
    TABLE_ACTION,
    ColumnMissing,
    DefaultTimes,
    FormatError,
    FormatOptions,
    OptionsError,
    ParseResult,
)
from headrace.connectors.formats.lines import Booleans, Integers, Lines
from headrace.connectors.formats.paths import text_of
from headrace.connectors.formats.table_builder import TableBuilder
from headrace.connectors.formats.text_columns import present_tags
from headrace.schemas.tables import TIME_COLUMN

NO_LINES = "the message has one line, its header: name the columns if it is none"


def parse_csv_messages(
    lines: Lines, options: FormatOptions, times: Integers | None, *, keep_lines: bool = False
) -> ParseResult:
    """The readings of messages; `times` are their default times. Raises OptionsError."""
    if options.table is None and options.table_column is None:
        raise OptionsError("CSV readings need a table", action=TABLE_ACTION)
    assert lines.messages is not None
    rejections = Rejections()
    defaults = None if times is None else times[lines.messages]
    groups = _by_header(lines, options, rejections)
    if options.columns:
        _check_columns(options)
        groups = iter([(header_of_names(options.columns, options), lines)])
    builder = TableBuilder(options, lines, rejections, lambda keys, rows: present_tags(keys, rows, options), keep_lines)
    return builder.build(_chunks(groups, options, defaults, rejections))


def _check_columns(options: FormatOptions) -> None:
    """Raises ColumnMissing for what no message can have: its columns are those of the options."""
    # Without a path the time may be that of the message, if no other one is named.
    timed = options.time_column == TIME_COLUMN or options.sources
    for path in options.paths if timed else ((options.time_column,),):
        if len(path) > 1 or path[0] not in options.columns:
            columns = f"the columns are {', '.join(options.columns)}"
            raise ColumnMissing(f"there is no column {text_of(path)!r}", action=columns)


def header_of_names(names: tuple[str, ...], options: FormatOptions) -> Header:
    """A header; with `sources` of the columns that they name, which get other names. Raises FormatError."""
    if not options.sources:
        return Header(names, options)
    renamed = dict(options.sources)
    unknown = [path for path in renamed if path[-1] not in names or len(path) > 1]
    for name in names:
        if names.count(name) > 1:
            raise OptionsError(f"the header has column {name!r} twice", action="rename one of them")
    kept = {name: renamed.get((name,)) for name in names}
    missing = tuple(renamed[path] for path in unknown)
    # A column that no path names keeps a name that no field can have, and is left out.
    return Header(
        tuple(new if new is not None else f"__{name}" for name, new in kept.items()),
        replace(options, tags=tuple(tag for tag in options.tags if tag not in missing)),
        ignored=frozenset(f"__{name}" for name, new in kept.items() if new is None),
    )


def _chunks(
    groups: Iterator[tuple[Header, Lines]], options: FormatOptions, defaults: DefaultTimes, rejections: Rejections
) -> Iterator[TableChunk]:
    for header, lines in groups:
        # Tags that this header lacks are absent, as members are that an object lacks.
        bound = replace(header.options, declared=options.declared)
        yield from read_chunks(lines, replace(header, options=bound), defaults, rejections)


def _by_header(lines: Lines, options: FormatOptions, rejections: Rejections) -> Iterator[tuple[Header, Lines]]:
    """The headers, and the lines under each of them: all others are blank."""
    assert lines.messages is not None
    filled = np.flatnonzero(lines.ends > lines.starts)
    messages, places = np.unique(lines.messages[filled], return_index=True)
    firsts = filled[places]
    counts = np.bincount(lines.messages[filled], minlength=int(lines.messages[-1]) + 1 if lines.count else 0)
    alone = counts[messages] == 1
    rejections.add(firsts[alone], NO_LINES)
    by_text: dict[bytes, list[int]] = defaultdict(list)
    # One step a message, which has a header and many lines.
    for first in firsts[~alone].tolist():
        by_text[lines.text(first)].append(first)
    for text, owners in by_text.items():
        heads = np.array(owners, np.int64)
        own: Booleans = np.isin(lines.messages, lines.messages[heads])
        own[heads] = False
        try:
            header = header_of_names(tuple(cells_of(text.decode().removeprefix("\ufeff"), options.delimiter)), options)
        except (UnicodeDecodeError, csv.Error):
            rejections.add(heads, "the first line of the message is no CSV header")
        except FormatError as error:
            rejections.add(heads, str(error))
        else:
            yield header, replace(lines, ends=np.where(own, lines.ends, lines.starts))
