"""Messages that are Avro records: plain ones of a single schema, and those framed as Confluent's serializers do.

A frame is a zero byte and the id of the schema in four bytes, the highest first. Schemas may change from message to
message. Each is decoded by its own, and fields meet by their names.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import pyarrow as pa

from headrace.connectors.formats.avro_rows import REASONS, Payloads, decode_records
from headrace.connectors.formats.avro_schema import Program, SchemaUnusable, compile_schema, require_paths
from headrace.connectors.formats.chunks import Rejections, TableChunk
from headrace.connectors.formats.interface import (
    TABLE_ACTION,
    DefaultTimes,
    FormatOptions,
    OptionsError,
    ParseResult,
    SchemaPlace,
)
from headrace.connectors.formats.lines import Booleans, Integers, words_of
from headrace.connectors.formats.schema_store import SchemaUnknown, check_place, only_schema, schema_store
from headrace.connectors.formats.table_builder import TableBuilder
from headrace.connectors.formats.text_columns import present_tags
from headrace.connectors.formats.typed_rows import (
    TypedRows,
    chosen_columns,
    numbered_lines,
    paths_of_tags,
    typed_chunks,
)

FRAME_BYTES = 5
NO_FRAME = "the message has no Confluent frame: a zero byte and a schema id of four bytes"


def parse_avro(
    values: pa.Array, options: FormatOptions, default_times: DefaultTimes, *, framed: bool, keep_lines: bool = False
) -> ParseResult:
    """The readings of messages of one record each. Raises OptionsError, RegistryUnavailable."""
    if options.table is None and options.table_column is None:
        raise OptionsError("Avro readings need a table", action=TABLE_ACTION)
    check_place(options.schemas, numbered=framed)
    payloads = Payloads.of(values)
    count = np.arange(len(payloads))
    lines = numbered_lines(count, np.zeros(len(payloads), np.int64))
    rejections = Rejections()
    filled = count[payloads.ends > payloads.starts]
    parts = _framed(payloads, filled, options, rejections) if framed else _plain(payloads, filled, options)
    builder = TableBuilder(options, lines, rejections, lambda keys, rows: present_tags(keys, rows, options), keep_lines)
    return builder.build(_chunks(parts, options, default_times, rejections))


Part = tuple[Program, Payloads, Integers]
"""A schema, payloads of it, and their messages."""


def _plain(payloads: Payloads, filled: Integers, options: FormatOptions) -> Iterator[Part]:
    # Asked without messages too: a wrong schema is an error before the first message.
    yield _only_program(options.schemas, options.paths), payloads.select(filled), filled


@lru_cache(maxsize=64)
def _only_program(place: SchemaPlace, paths: tuple[tuple[str, ...], ...]) -> Program:
    schema, named = only_schema(place)
    # First: whatever it compiles has names that can be compared.
    program = compile_schema(schema, named, paths)
    require_paths(schema, named, paths)
    return program


def _framed(payloads: Payloads, filled: Integers, options: FormatOptions, rejections: Rejections) -> Iterator[Part]:
    framed = has_frame(payloads, filled)
    rejections.add(filled[~framed], NO_FRAME)
    filled = filled[framed]
    # The id is the last four of the frame's bytes, the highest first.
    heads = words_of(payloads.data)[payloads.select(filled).starts] >> np.uint64(8)
    ids = (heads & np.uint64(0xFFFFFFFF)).astype(np.uint32).byteswap()
    store = schema_store(options.schemas)
    same = len(ids) > 0 and bool((ids == ids[0]).all())
    for number in ids[:1].tolist() if same else np.unique(ids).tolist():
        own = filled if same else filled[ids == number]
        try:
            program = store.program(number, options.paths)
        except (SchemaUnknown, SchemaUnusable) as error:
            prefix = f"schema {number}: " if isinstance(error, SchemaUnusable) else ""
            rejections.add(own, f"{prefix}{error}")
            continue
        yield program, payloads.select(own, FRAME_BYTES), own


def has_frame(payloads: Payloads, messages: Integers) -> Booleans:
    """Which of these messages, none of which is empty, begin with a frame."""
    chosen = payloads.select(messages)
    framed: Booleans = (chosen.ends - chosen.starts >= FRAME_BYTES) & (payloads.data[chosen.starts] == 0)
    return framed


def without_frames(values: pa.Array) -> tuple[pa.Array, Integers]:
    """(the values without their frames, the messages that have none, which become null)."""
    payloads = Payloads.of(values)
    filled = np.flatnonzero(payloads.ends > payloads.starts)
    framed = np.zeros(len(payloads), np.bool_)
    framed[filled] = has_frame(payloads, filled)
    return payloads.array(framed, FRAME_BYTES), filled[~framed[filled]]


def _chunks(
    parts: Iterator[Part], options: FormatOptions, default_times: DefaultTimes, rejections: Rejections
) -> Iterator[TableChunk]:
    tag_paths = paths_of_tags(options)
    for program, payloads, messages in parts:
        if not len(messages):
            continue
        decoded, faults = decode_records(payloads, program, tag_paths)
        for fault in np.unique(faults[faults > 0]).tolist():
            rejections.add(messages[faults == fault], REASONS[fault])
        paths = [column.path for column in program.columns]
        named = chosen_columns(dict(zip(paths, decoded.columns, strict=True)), options)
        if not named:
            rejections.add(messages[faults == 0], "the schema has none of the fields that are read")
            continue
        rows = TypedRows(pa.table(named), messages).select(faults == 0)
        yield from typed_chunks(rows, options, default_times, rejections)
