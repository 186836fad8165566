"""Messages that are Arrow IPC streams: each has a schema, rows, and the mark of its end."""

from __future__ import annotations

from collections.abc import Iterator

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
from headrace.connectors.formats.row_rules import validate_but_for_times
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
    streams = _Streams()
    # A message that cannot be read has one line, to be rejected.
    faults: dict[int, str] = {}
    counts = np.zeros(len(values), np.int64)
    # One step a message, which is a stream of many rows.
    for message, value in enumerate(values):
        if not value.is_valid or not value.as_buffer().size:
            continue
        try:
            counts[message] = streams.add(message, value.as_py())
        except _NotAStream as error:
            faults[message], counts[message] = str(error), 1
    firsts = np.cumsum(counts) - counts
    messages = np.repeat(np.arange(len(values)), counts)
    lines = numbered_lines(messages, np.arange(len(messages)) - firsts[messages])
    rejections = Rejections()
    rejections.add([int(firsts[message]) for message in faults], list(faults.values()))
    times = default_times[messages] if default_times is not None else None
    builder = TableBuilder(options, lines, rejections, lambda keys, rows: present_tags(keys, rows, options), keep_lines)
    return builder.build(_chunks(streams, firsts, counts, options, times, rejections))


Rows = tuple[list[int], list[pa.RecordBatch]]
"""The messages of one schema that have rows, and their batches."""


class _Streams:
    """The rows of messages, those of one schema together."""

    def __init__(self) -> None:
        self.by_schema: dict[pa.Schema, Rows] = {}
        self._last: tuple[pa.Schema, Rows] | None = None

    def add(self, message: int, value: bytes) -> int:
        """Read a message; returns its rows. Raises _NotAStream."""
        schema, batches = _read(value)
        # Most messages have the schema of the one before, and to compare two takes less than to hash one.
        if self._last is None or not schema.equals(self._last[0]):
            _check_names(schema)
            bare = schema.remove_metadata()
            self._last = bare, self.by_schema.setdefault(bare, ([], []))
        rows = sum(len(batch) for batch in batches)
        if rows:
            messages, known = self._last[1]
            messages.append(message)
            known.extend(batches)
        return rows


def _read(value: bytes) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """The schema and the rows of one message. Raises _NotAStream."""
    # Arrow takes the end of the bytes for the end of the stream: a cut between two batches would go unseen.
    if not value.endswith(END_MARK):
        raise _NotAStream(CUT)
    source = pa.BufferReader(value)
    try:
        with pa.ipc.RecordBatchStreamReader(source) as reader:
            batches = list(reader)
        if source.tell() != len(value):
            raise _NotAStream("the message has bytes behind its Arrow stream")
        # Any function may fail on an array with an offset out of range, or end the process.
        for batch in batches:
            _validate(batch)
    except (pa.ArrowException, OSError, UnicodeDecodeError, ValueError) as error:
        raise _NotAStream(f"the message is no Arrow stream: {str(error)[:200]}") from None
    return reader.schema, batches


def _validate(batch: pa.RecordBatch) -> None:
    """Raises pa.ArrowInvalid."""
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid:
        for column in batch.columns:
            validate_but_for_times(column)


def _check_names(schema: pa.Schema) -> None:
    try:
        names = list(schema.names)
    except UnicodeDecodeError as error:
        raise _NotAStream(f"the message is no Arrow stream: {str(error)[:200]}") from None
    for name in names:
        if names.count(name) > 1:
            raise _NotAStream(f"column {name!r} is there twice")


def _chunks(
    streams: _Streams,
    firsts: Integers,
    counts: Integers,
    options: FormatOptions,
    default_times: DefaultTimes,
    rejections: Rejections,
) -> Iterator[TableChunk]:
    for schema, (messages, batches) in streams.by_schema.items():
        if not messages:
            continue
        table = _joined(pa.Table.from_batches([batch.replace_schema_metadata() for batch in batches], schema))
        numbers = np.concatenate([firsts[each] + np.arange(counts[each]) for each in messages])
        named = chosen_columns(_columns(table, options), options)
        if not named:
            rejections.add(numbers, "the stream has none of the columns that are read")
            continue
        rows = TypedRows(pa.table(named), numbers)
        yield from typed_chunks(rows, options, default_times, rejections)


def _joined(table: pa.Table) -> pa.Table:
    """The rows of messages of one schema; numbers, and tags that are encoded, each in one chunk."""
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
