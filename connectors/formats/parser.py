"""The entry point of all formats: parses a buffer, or the messages of a topic, into tables of readings."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.formats.arrow_tables import parse_parquet
from headrace.connectors.formats.csv_lines import Header, parse_csv
from headrace.connectors.formats.interface import (
    TIME_ABSENT,
    TIME_MAX_NS,
    DefaultTimes,
    Format,
    FormatError,
    FormatOptions,
    OptionsError,
    ParseResult,
    check_format,
    message_format,
    rejected_messages,
)
from headrace.connectors.formats.json_lines import parse_json_lines
from headrace.connectors.formats.line_protocol import parse_line_protocol
from headrace.connectors.formats.lines import Integers, Lines, lines_of_buffer, lines_of_messages
from headrace.connectors.formats.text_columns import times_of_text

NS_PER_MS = 1_000_000
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

Buffer: TypeAlias = bytes | bytearray | memoryview | pa.Buffer


def parse_buffer(
    format: str, data: Buffer, options: FormatOptions, *, default_time_ns: int | None = None, keep_lines: bool = False
) -> ParseResult:
    """Parse the bytes of a file. Lines of `rejected` count from 0.

    Readings without a time get `default_time_ns`, or are rejected if it is None.
    """
    known = check_format(format)
    if known == "parquet":
        return parse_parquet(pa.py_buffer(data), options, keep_lines=keep_lines)
    view = memoryview(data)
    if view[:3] == BYTE_ORDER_MARK:
        view = view[3:]
    return parse_text(known, lines_of_buffer(view), options, default_time_ns, keep_lines=keep_lines)


def parse_text(
    format: Format,
    lines: Lines,
    options: FormatOptions,
    default_times: DefaultTimes,
    *,
    header: Header | None = None,
    first: int = 0,
    keep_lines: bool = False,
) -> ParseResult:
    """Parse lines of a text format; in CSV, `header` is the one of the file and `first` the line after it."""
    if format == "influx":
        return parse_line_protocol(lines, options, default_times, keep_lines=keep_lines)
    if format == "json":
        return parse_json_lines(lines, options, default_times, keep_lines=keep_lines)
    return parse_csv(lines, options, default_times, header=header, first=first, keep_lines=keep_lines)


def parse_messages(
    format: str,
    values: pa.Array | pa.ChunkedArray,
    timestamps_ms: pa.Array | pa.ChunkedArray | None,
    options: FormatOptions,
    *,
    keep_lines: bool = False,
) -> ParseResult:
    """Parse messages of a topic: values of one or many lines or rows, and their Kafka timestamps.

    A reading without a time gets the timestamp of its message; without timestamps it is rejected. `rejected`
    has the number of the message, the line in it and the reason. The valid lines of such a message are in the
    tables, and the whole message belongs on the dead letter queue. Null and empty messages have no lines.
    """
    if timestamps_ms is None:
        return _parse_messages(format, values, None, options, keep_lines=keep_lines)
    if len(timestamps_ms) != len(values):
        raise OptionsError(f"{len(values)} messages but {len(timestamps_ms)} timestamps")
    milliseconds = timestamps_ms.cast(pa.int64())
    known = pc.fill_null(milliseconds, -1)
    # A client may send any timestamp: one before 1970 or beyond int64 nanoseconds is no default time.
    valid = np.asarray(pc.and_(pc.greater_equal(known, 0), pc.less_equal(known, TIME_MAX_NS // NS_PER_MS)))
    times = np.where(valid, np.asarray(known) * np.where(valid, NS_PER_MS, 0), TIME_ABSENT)
    return _parse_messages(format, values, times, options, keep_lines=keep_lines)


def check_options(format: str, options: FormatOptions) -> None:
    """Raises OptionsError for options that no message could be read with."""
    # Parsing nothing validates them at once, instead of in a worker after Spark's start.
    try:
        parse_messages(format, pa.array([], pa.binary()), pa.array([], pa.int64()), options)
        times_of_text(pl.Series(["0"]), options)
    except OptionsError:
        raise
    except FormatError as error:
        raise OptionsError(error.message, action=error.action) from error


def _parse_messages(
    format: str, values: pa.Array | pa.ChunkedArray, times: Integers | None, options: FormatOptions, *, keep_lines: bool
) -> ParseResult:
    known = message_format(format)
    if options.columns and known != "csv":
        raise OptionsError(f"columns are of CSV, not of {known}", action="leave them out")
    if options.sources and known == "influx":
        raise OptionsError("line protocol names its own tags and fields", action="leave them out of the mapping")
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    return _parse_values(known, array, times, options, keep_lines=keep_lines)


def _parse_values(
    format: Format, values: pa.Array, times: Integers | None, options: FormatOptions, *, keep_lines: bool
) -> ParseResult:
    if format in ("avro", "confluent-avro"):
        from headrace.connectors.formats.avro_messages import parse_avro

        return parse_avro(values, options, times, framed=format == "confluent-avro", keep_lines=keep_lines)
    if format == "arrow":
        from headrace.connectors.formats.arrow_streams import parse_arrow

        return parse_arrow(values, options, times, keep_lines=keep_lines)
    if format == "confluent-json":
        from headrace.connectors.formats.avro_messages import NO_FRAME, without_frames

        bare, bad = without_frames(values)
        parsed = _parse_values("json", bare, times, options, keep_lines=keep_lines)
        return parsed.with_rejected(rejected_messages(bad, NO_FRAME))
    values = _without_byte_order_marks(values)
    if format == "json" and options.sources:
        from headrace.connectors.formats.json_paths import flat_messages

        flat, rejected = flat_messages(values, options.sources)
        return _parse_lines_of(format, flat, times, options, keep_lines=keep_lines).with_rejected(rejected)
    if format == "csv":
        from headrace.connectors.formats.csv_messages import parse_csv_messages

        return parse_csv_messages(lines_of_messages(values), options, times, keep_lines=keep_lines)
    return _parse_lines_of(format, values, times, options, keep_lines=keep_lines)


def _parse_lines_of(
    format: Format, values: pa.Array, times: Integers | None, options: FormatOptions, *, keep_lines: bool
) -> ParseResult:
    lines = lines_of_messages(values)
    assert lines.messages is not None
    # Each line of a message gets the timestamp of its message.
    default_times = None if times is None else times[lines.messages]
    return parse_text(format, lines, options, default_times, keep_lines=keep_lines)


def _without_byte_order_marks(values: pa.Array) -> pa.Array:
    """Windows programs begin a text with one, which would become part of the name of a table."""
    marked = pc.fill_null(pc.starts_with(values, BYTE_ORDER_MARK), fill_value=False)
    if not pc.any(marked).as_py():
        return values
    bare = pc.replace_substring(values.filter(marked), BYTE_ORDER_MARK, b"", max_replacements=1)
    return pc.replace_with_mask(values, marked, bare)
