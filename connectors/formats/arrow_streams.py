"""Messages that are Arrow IPC streams: each has a schema, rows, and the mark of its end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from headrace.connectors.formats.chunks import Rejections, TableBuilder, TableChunk
from headrace.connectors.formats.interface import (
    TABLE_ACTION,
    TAG_TYPE,
    DefaultTimes,
    FormatOptions,
    OptionsError,
    ParseResult,
)
from headrace.connectors.formats.lines import Integers
from headrace.connectors.formats.text_columns import present_tags
from headrace.connectors.formats.typed_rows import TypedRows, chosen_columns, numbered_lines, typed_chunks

END_MARK = b"\xff\xff\xff\xff\x00\x00\x00\x00"
CUT = "the Arrow stream is cut: the mark of its end is missing"


class _NotAStream(Exception):
    """Why a message cannot be read."""


def parse_arrow(
    values: pa.Array, options: FormatOptions, default_times: Integers | None, *, keep_lines: bool = False
) -> ParseResult:
    """The readings of messages; `default_times` are those of the messages."""
    if options.table is None and options.table_column is None:
        raise OptionsError("Arrow readings need a table", action=TABLE_ACTION)
    tables: dict[int, pa.Table] = {}
    faults: dict[int, str] = {}
    # One step a message, which is a stream of many rows.
    for message, value in enumerate(values):
        if not value.is_valid or not value.as_buffer().size:
            continue
        try:
            tables[message] = _read(value.as_py())
        except _NotAStream as error:
            faults[message] = str(error)
    # A message that cannot be read has one line, to be rejected.
    counts = np.zeros(len(values), np.int64)
    for message, table in tables.items():
        counts[message] = table.num_rows
    counts[list(faults)] = 1
    firsts = np.cumsum(counts) - counts
    messages = np.repeat(np.arange(len(values)), counts)
    lines = numbered_lines(messages, np.arange(len(messages)) - firsts[messages])
    rejections = Rejections()
    rejections.add([int(firsts[message]) for message in faults], list(faults.values()))
    times = default_times[messages] if default_times is not None else None
    builder = TableBuilder(options, lines, rejections, lambda keys, rows: present_tags(keys, rows, options), keep_lines)
    return builder.build(_chunks(tables, firsts, options, times, rejections))


def _read(value: bytes) -> pa.Table:
    """The rows of one message. Raises _NotAStream."""
    # Arrow takes the end of the bytes for the end of the stream: a cut between two batches would go unseen.
    if not value.endswith(END_MARK):
        raise _NotAStream(CUT)
    source = pa.BufferReader(value)
    try:
        with pa.ipc.open_stream(source) as reader:
            table = reader.read_all()
        if source.tell() != len(value):
            raise _NotAStream("the message has bytes behind its Arrow stream")
        names = list(table.column_names)
        # Any function may fail on an array with an offset out of range, or end the process.
        table.validate(full=True)
    except (pa.ArrowException, OSError, UnicodeDecodeError, ValueError) as error:
        raise _NotAStream(f"the message is no Arrow stream: {str(error)[:200]}") from None
    for name in names:
        if names.count(name) > 1:
            raise _NotAStream(f"column {name!r} is there twice")
    return table


def _chunks(
    tables: dict[int, pa.Table],
    firsts: Integers,
    options: FormatOptions,
    default_times: DefaultTimes,
    rejections: Rejections,
) -> Iterator[TableChunk]:
    for messages in _by_schema(tables):
        table = _joined([tables[message].replace_schema_metadata() for message in messages])
        numbers = np.concatenate([firsts[each] + np.arange(tables[each].num_rows) for each in messages])
        named = chosen_columns(_columns(table, options), options)
        if not named:
            rejections.add(numbers, "the stream has none of the columns that are read")
            continue
        rows = TypedRows(pa.table(named), numbers)
        yield from typed_chunks(rows, options, default_times, rejections)


def _by_schema(tables: dict[int, pa.Table]) -> Iterable[list[int]]:
    """The messages with rows, those of one schema together."""
    found: dict[pa.Schema, list[int]] = defaultdict(list)
    last: pa.Schema | None = None
    messages: list[int] = []
    for message, table in tables.items():
        # Most messages have the schema of the one before, and to compare two takes a hundredth of hashing one.
        if last is None or not table.schema.equals(last):
            last = table.schema.remove_metadata()
            messages = found[last]
        if table.num_rows:
            messages.append(message)
    return filter(None, found.values())


def _joined(tables: list[pa.Table]) -> pa.Table:
    """The rows of messages of one schema as one table; numbers, and tags that are encoded, each in one chunk."""
    table = pa.concat_tables(tables)
    for index, (field, column) in enumerate(zip(table.schema, table.columns, strict=True)):
        if field.type == TAG_TYPE:
            try:
                # Decoding the text of each row costs several times what joining the dictionaries does.
                column = column.unify_dictionaries()
            except pa.ArrowException:
                # One has a null, which Arrow cannot join.
                continue
        elif not pa.types.is_primitive(field.type):
            continue
        table = table.set_column(index, field, pa.chunked_array([column.combine_chunks()]))
    return table


def _columns(table: pa.Table, options: FormatOptions) -> dict[tuple[str, ...], pa.ChunkedArray]:
    """The columns by their paths: all of them, or those of `sources`, also inside of structs."""
    if not options.sources:
        return {(name,): column for name, column in zip(table.column_names, table.columns, strict=True)}
    found = {}
    for path in options.paths:
        column = table.column(path[0]) if path[0] in table.column_names else None
        for name in path[1:]:
            if column is None or not pa.types.is_struct(column.type) or column.type.get_field_index(name) < 0:
                column = None
                break
            column = _member(column, name)
        if column is not None:
            found[path] = column
    return found


def _member(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """A member of structs, null where the struct is."""
    kind = column.type.field(name).type
    chunks = []
    for chunk in column.chunks:
        index = chunk.type.get_field_index(name)
        # Unlike `struct_field`, flatten gives the nulls of the struct to its members.
        chunks.append(chunk.flatten()[index])
    return pa.chunked_array(chunks, kind)
