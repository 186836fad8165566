"""Messages that are Arrow IPC streams: each has a schema, rows, and the mark of its end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.formats.alike_streams import (
    AlikeStreams,
    StreamLayout,
    layout_of,
)
from headrace.connectors.formats.chunks import Rejections, TableChunk
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
from headrace.connectors.formats.stream_reader import StreamUnreadable, read_stream
from headrace.connectors.formats.table_builder import TableBuilder
from headrace.connectors.formats.text_columns import present_tags
from headrace.connectors.formats.typed_rows import TypedRows, chosen_columns, numbered_lines, typed_chunks

MESSAGE_DECODED_BYTES_MAX = 128 * 1024 * 1024
"""Bytes that a message may take once it is decoded, and values that it may have: 4 KB may declare terabytes."""
LAYOUTS_MAX = 16
"""Layouts that are known at a time: a message is compared with each of its size."""


class _NotAStream(Exception):
    """Why a message cannot be read."""


def parse_arrow(
    values: pa.Array, options: FormatOptions, default_times: Integers | None, *, keep_lines: bool = False
) -> ParseResult:
    """The readings of messages; `default_times` are those of the messages."""
    if options.table is None and options.table_column is None:
        raise OptionsError("Arrow readings need a table", action=TABLE_ACTION)
    streams = _Streams(values)
    # A message that cannot be read has one line, to be rejected.
    faults: dict[int, str] = {}
    counts = np.zeros(len(values), np.int64)

    def read(messages: Iterable[int], add: Callable[[int], int]) -> None:
        # One step a message, which is a stream of many rows.
        for message in messages:
            try:
                counts[message] = add(message)
            except _NotAStream as error:
                faults[message], counts[message] = str(error), 1

    read(streams.present, streams.add)
    read(streams.take_unfit(), streams.add_alone)
    firsts = np.cumsum(counts) - counts
    messages = np.repeat(np.arange(len(values)), counts)
    lines = numbered_lines(messages, np.arange(len(messages)) - firsts[messages])
    rejections = Rejections()
    rejections.add([int(firsts[message]) for message in faults], list(faults.values()))
    times = default_times[messages] if default_times is not None else None
    builder = TableBuilder(options, lines, rejections, lambda keys, rows: present_tags(keys, rows, options), keep_lines)
    return builder.build(_chunks(streams, firsts, counts, options, times, rejections))


class _Streams:
    """The rows of messages, those of one schema together."""

    def __init__(self, values: pa.Array) -> None:
        texts = pc.fill_null(values, b"") if values.null_count else values
        _, offsets, data = texts.cast(pa.large_binary()).buffers()
        bounds = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1] if offsets else [0]
        self._bounds = list(pairwise(map(int, bounds)))
        self._data = data or pa.py_buffer(b"")
        self._bytes = np.frombuffer(self._data, np.uint8)
        self._layouts: dict[int, list[tuple[StreamLayout, AlikeStreams, int]]] = defaultdict(list)
        self._alike: dict[pa.Schema, AlikeStreams] = {}
        self._alone: dict[pa.Schema, tuple[list[int], list[pa.RecordBatch]]] = {}

    @property
    def present(self) -> list[int]:
        """The messages that have a value."""
        return [message for message, (start, end) in enumerate(self._bounds) if start < end]

    def add(self, message: int) -> int:
        """Read a message; returns its rows. Raises _NotAStream."""
        start, value = self._bounds[message][0], self._value(message)
        for layout, streams, number in self._layouts[value.size]:
            if layout.fits(value):
                return streams.add(message, start, number)
        value = _aligned(value)
        schema, batches = _read(value)
        known = sum(map(len, self._layouts.values()))
        found = layout_of(value, batches) if known < LAYOUTS_MAX else None
        if found is None:
            return self._add_batches(message, schema, batches)
        streams = self._alike.setdefault(schema, AlikeStreams(schema))
        number = streams.add_layout(found)
        self._layouts[value.size].append((found, streams, number))
        return streams.add(message, start, number)

    def add_alone(self, message: int) -> int:
        """As `add`, whatever other messages are like."""
        return self._add_batches(message, *_read(_aligned(self._value(message))))

    def _value(self, message: int) -> pa.Buffer:
        start, end = self._bounds[message]
        return self._data.slice(start, end - start)

    def _add_batches(self, message: int, schema: pa.Schema, batches: list[pa.RecordBatch]) -> int:
        rows = sum(map(len, batches))
        if rows:
            messages, known = self._alone.setdefault(schema, ([], []))
            messages.append(message)
            known.extend(batches)
        return rows

    def take_unfit(self) -> list[int]:
        """Leave out those that are not valid; these messages."""
        return [message for alike in self._alike.values() for message in alike.take_unfit(self._bytes)]

    def tables(self) -> Iterator[tuple[list[int], pa.Table]]:
        """The rows of those of one schema and form, with their messages."""
        for alike in self._alike.values():
            if alike.messages:
                yield alike.messages, alike.table(self._bytes)
        for schema, (messages, batches) in self._alone.items():
            yield messages, _joined(pa.Table.from_batches(batches, schema))


def _aligned(value: pa.Buffer) -> pa.Buffer:
    """A copy that begins where numbers may begin."""
    return pa.py_buffer(value.to_pybytes())


def _read(value: pa.Buffer) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """The schema, without metadata, and the rows of one message. Raises _NotAStream."""
    try:
        schema, batches = read_stream(value, MESSAGE_DECODED_BYTES_MAX)
        # Any function may fail on an array with an offset out of range, or end the process.
        for batch in batches:
            _validate(batch)
    except StreamUnreadable as error:
        raise _NotAStream(f"the message is {error}") from None
    except (pa.ArrowException, UnicodeDecodeError, ValueError) as error:
        raise _NotAStream(f"the message is no Arrow stream: {str(error)[:200]}") from None
    _check_names(list(schema))
    return schema.remove_metadata(), [batch.replace_schema_metadata() for batch in batches]


def _validate(batch: pa.RecordBatch) -> None:
    """Raises pa.ArrowInvalid."""
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid:
        for column in batch.columns:
            validate_but_for_times(column)


def _check_names(fields: list[pa.Field]) -> None:
    """Also of members of structs, of which a path could name either."""
    try:
        names = [each.name for each in fields]
    except UnicodeDecodeError as error:
        raise _NotAStream(f"the message is no Arrow stream: {str(error)[:200]}") from None
    for name in names:
        if names.count(name) > 1:
            raise _NotAStream(f"column {name!r} is there twice")
    for kind in [each.type for each in fields if pa.types.is_struct(each.type)]:
        _check_names([kind.field(index) for index in range(kind.num_fields)])


def _chunks(
    streams: _Streams,
    firsts: Integers,
    counts: Integers,
    options: FormatOptions,
    default_times: DefaultTimes,
    rejections: Rejections,
) -> Iterator[TableChunk]:
    for messages, table in streams.tables():
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
