"""One door to all formats: a buffer, or messages of a topic, to tables of readings."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from connectors.formats.arrow_tables import parse_parquet
from connectors.formats.csv_lines import parse_csv
from connectors.formats.json_lines import parse_json_lines
from connectors.formats.line_protocol import parse_line_protocol
from connectors.formats.lines import Integers, lines_of_buffer, lines_of_messages
from connectors.formats.parsed import TIME_ABSENT, TIME_MAX_NS, FormatOptions, OptionsError, Parsed, check_format

NS_PER_MS = 1_000_000
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

Buffer: TypeAlias = bytes | bytearray | memoryview | pa.Buffer


def parse(
    format: str,
    data: Buffer | pa.Array | pa.ChunkedArray,
    options: FormatOptions,
    *,
    default_time_ns: int | None = None,
    keep_lines: bool = False,
) -> Parsed:
    """Parse a buffer, or a binary array of messages, each of one or many lines. `default_time_ns` is for readings without a time."""
    if isinstance(data, pa.Array | pa.ChunkedArray):
        times = None if default_time_ns is None else pa.repeat(pa.scalar(default_time_ns, pa.int64()), len(data))
        return _parse_messages(
            format, data, None if times is None else np.asarray(times), options, keep_lines=keep_lines
        )
    return parse_buffer(format, data, options, default_time_ns=default_time_ns, keep_lines=keep_lines)


def parse_buffer(
    format: str, data: Buffer, options: FormatOptions, *, default_time_ns: int | None = None, keep_lines: bool = False
) -> Parsed:
    """Parse the bytes of a file. Lines of `rejected` count from 0; a line without a time is refused unless a default is given."""
    known = check_format(format)
    if known == "parquet":
        return parse_parquet(pa.py_buffer(data), options, keep_lines=keep_lines)
    view = memoryview(data)
    if view[:3] == BYTE_ORDER_MARK:
        view = view[3:]
    lines = lines_of_buffer(view)
    if known == "influx":
        return parse_line_protocol(lines, options, default_time_ns, keep_lines=keep_lines)
    if known == "json":
        return parse_json_lines(lines, options, default_time_ns, keep_lines=keep_lines)
    return parse_csv(lines, options, default_time_ns, keep_lines=keep_lines)


def parse_messages(
    format: str,
    values: pa.Array | pa.ChunkedArray,
    timestamps_ms: pa.Array | pa.ChunkedArray | None,
    options: FormatOptions,
    *,
    keep_lines: bool = False,
) -> Parsed:
    """Parse messages of a topic (influx or json): binary values, each of one or many lines, and their Kafka timestamps in milliseconds.

    A reading without a time takes the timestamp of its message; without timestamps it is refused. `rejected` has the number of the message,
    the line in the message and the reason: the good lines of a bad message are in the tables all the same, and the whole message belongs
    on the dead letter queue. Null and empty messages have no lines.
    """
    if timestamps_ms is None:
        return _parse_messages(format, values, None, options, keep_lines=keep_lines)
    if len(timestamps_ms) != len(values):
        raise OptionsError(f"{len(values)} messages but {len(timestamps_ms)} timestamps")
    milliseconds = timestamps_ms.cast(pa.int64())
    known = pc.fill_null(milliseconds, -1)
    usable = np.asarray(pc.and_(pc.greater_equal(known, 0), pc.less_equal(known, TIME_MAX_NS // NS_PER_MS)))
    times = np.where(usable, np.asarray(known) * np.where(usable, NS_PER_MS, 0), TIME_ABSENT)
    return _parse_messages(format, values, times, options, keep_lines=keep_lines)


def _parse_messages(
    format: str, values: pa.Array | pa.ChunkedArray, times: Integers | None, options: FormatOptions, *, keep_lines: bool
) -> Parsed:
    known = check_format(format)
    if known not in ("influx", "json"):
        raise OptionsError(
            f"messages cannot be {known}", action="messages are line protocol or JSON; read CSV and Parquet from files"
        )
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    lines = lines_of_messages(array)
    assert lines.messages is not None
    default_times = None if times is None else times[lines.messages]
    if known == "influx":
        return parse_line_protocol(lines, options, default_times, keep_lines=keep_lines)
    return parse_json_lines(lines, options, default_times, keep_lines=keep_lines)
