"""Query results as bytes: JSON, CSV and Arrow IPC, encoded by whole columns.

JSON is an array of row objects. Integers, HUGEINT and DECIMAL are numbers, and a time is ISO-8601 with nine
digits, with Z where it is UTC. NaN and infinities are null, bytes are base64; lists, structs and maps nest.
CSV has a header line, RFC 4180 quoting, nothing for null and `""` for empty text; nested values are JSON.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from headrace.consumers.query.far_times import with_far_values
from headrace.schemas.errors import HeadraceError

MEDIA_TYPES = {
    "json": "application/json",
    "csv": "text/csv; charset=utf-8",
    "arrow": "application/vnd.apache.arrow.stream",
}
"""Every format of a result, with its media type."""

Chunk = bytes | memoryview
"""A part of a result: to copy a large one takes as long as to encode it."""
_SMALL_BATCH_ROWS = 8_192
_FEW_ROWS = 16
"""Batches of so many rows are written value by value: kernels take longer to call than that."""
_to_json = json.JSONEncoder(ensure_ascii=False).encode
"""As `json.dumps`, which makes an encoder for each value where it is not to write ASCII."""
_JSON_SPECIAL = r'[\x00-\x1f"\\]'
_CSV_SPECIAL = r'[",\r\n]'
_DIGITS_MISSING = {"s": ".000000000", "ms": "000000", "us": "000", "ns": ""}
_DATE_END = 10
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
"""The end of an Arrow IPC stream, as its format names it."""


class FormatUnknown(HeadraceError):
    """A format that is not offered."""


def encode(name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[Chunk]:
    """A result in one of MEDIA_TYPES, in chunks. Names in `schema` are unique. Raises FormatUnknown."""
    encoder = _ENCODERS.get(name)
    if encoder is None:
        raise FormatUnknown(f"there is no format {name!r}", action=f"use one of {', '.join(MEDIA_TYPES)}")
    return encoder(schema, batches)


def encode_json(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """A JSON array of row objects, one line per row."""
    keys = [key_text(name) for name in schema.names]
    opened = False
    for batch in _small(batches):
        rows = _few_json(keys, batch) if batch.num_rows <= _FEW_ROWS else _many_json(keys, batch)
        yield (b",\n" if opened else b"[") + rows
        opened = True
    yield b"]\n" if opened else b"[]\n"


def _many_json(keys: Sequence[str], batch: pa.RecordBatch) -> bytes:
    parts: list[pa.Array | pa.Scalar] = []
    for number, key in enumerate(keys):
        parts += [pa.scalar(f"{',' if number else '{'}{key}:"), json_text(batch.column(number))]
    return _joined(pc.binary_join_element_wise(*parts, pa.scalar("}"), ""), ",\n")


def _few_json(keys: Sequence[str], batch: pa.RecordBatch) -> bytes:
    columns = [
        [f"{key}:{text}" for text in _few_texts(column)] for key, column in zip(keys, batch.columns, strict=True)
    ]
    return ",\n".join("{" + ",".join(row) + "}" for row in zip(*columns, strict=True)).encode()


def _few_texts(column: pa.Array) -> list[str]:
    """See `json_text`."""
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or _is_text(kind):
        return [_to_json(value) for value in column.to_pylist()]
    if pa.types.is_float64(kind):
        # Python writes some numbers in another way.
        texts = zip(_float_text(column).to_pylist(), column.to_pylist(), strict=True)
        return [text if value is not None and math.isfinite(value) else "null" for text, value in texts]
    found: list[str] = json_text(column).to_pylist()
    return found


def encode_csv(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """A header line, then one line per row; lines end in LF."""
    header = csv_text(pa.array(schema.names, pa.string()))
    yield _joined(header, ",") + b"\n"
    for batch in _small(batches):
        cells = [csv_text(column) for column in batch.columns]
        yield _joined(pc.binary_join_element_wise(*cells, ","), "\n") + b"\n"


def encode_arrow(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[Chunk]:
    """An Arrow IPC stream."""
    if not any(map(_has_dictionary, schema.types)):
        yield memoryview(schema.serialize())
        for batch in batches:
            yield memoryview(batch.serialize())
        yield _END_OF_STREAM
        return
    # Only Arrow's writer writes dictionaries. It needs a file, which takes ten times as long, and the caller takes
    # chunks: the sink stands between the two.
    sink = _ChunkSink()
    with pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), schema) as writer:
        yield sink.take()
        for batch in batches:
            writer.write_batch(batch)
            yield sink.take()
    yield sink.take()


_Encoder = Callable[[pa.Schema, Iterable[pa.RecordBatch]], Iterator[Chunk]]
_ENCODERS: dict[str, _Encoder] = {"json": encode_json, "csv": encode_csv, "arrow": encode_arrow}


def _small(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in smaller batches."""
    # A batch of the session has up to 32,768 rows; each running query holds one chunk of text in memory.
    for batch in batches:
        if 0 < batch.num_rows <= _SMALL_BATCH_ROWS:
            yield batch
            continue
        for start in range(0, batch.num_rows, _SMALL_BATCH_ROWS):
            yield batch.slice(start, _SMALL_BATCH_ROWS)


def _joined(texts: pa.Array, separator: str) -> bytes:
    """All texts of an array as one."""
    # One list that holds every row lets Arrow join them in one pass, without a Python object per row.
    whole = pa.LargeListArray.from_arrays(pa.array([0, len(texts)], pa.int64()), texts)
    return bytes(pc.binary_join(whole, separator)[0].as_buffer())


def _has_dictionary(kind: pa.DataType) -> bool:
    children = (kind.field(place).type for place in range(kind.num_fields))
    return pa.types.is_dictionary(kind) or any(map(_has_dictionary, children))


class _ChunkSink:
    """A file that returns the bytes written since the last call of `take`."""

    closed = False

    def __init__(self) -> None:
        self._written: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._written.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        """See io.IOBase: nothing is buffered."""

    def take(self) -> bytes:
        """The bytes since the last call."""
        written, self._written = b"".join(self._written), []
        return written


def key_text(name: str) -> str:
    """A column name as a JSON key."""
    return _to_json(name)


def json_text(column: pa.Array) -> pa.Array:
    """Every value of a column as JSON; nulls are `null`."""
    return pc.fill_null(_json(column), "null")


def csv_text(column: pa.Array) -> pa.Array:
    """Every value of a column as a CSV cell; nulls are empty."""
    return pc.fill_null(_csv(column), "")


def plain_text(column: pa.Array) -> pa.Array:
    """Every value of a column for a terminal: no quotes, times without trailing zeros, nulls empty."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if pa.types.is_timestamp(kind):
        text = pc.replace_substring_regex(_iso(column), r"\.?0*Z$", "")
        return pc.fill_null(pc.replace_substring(text, "T", " "), "")
    if _is_text(kind):
        return pc.fill_null(column.cast(pa.string()), "")
    if pa.types.is_floating(kind):
        return pc.fill_null(column.cast(pa.string()), "")
    if pa.types.is_list(kind) and _is_text(kind.value_type) and _are_words(column.flatten()):
        return pc.fill_null(pc.binary_join(column, ", "), "")
    return pc.fill_null(_json(column) if pa.types.is_nested(kind) else _plain(column), "")


def _are_words(texts: pa.Array) -> bool:
    """Whether the texts of a list can be distinguished without quotes."""
    return not texts.null_count and not pc.any(pc.match_substring_regex(texts, r'^$|[,"]')).as_py()


def _csv(column: pa.Array) -> pa.Array:
    """Like `csv_text`, but nulls stay null."""
    kind = column.type
    # Encoding a dictionary once per value, not once per row, is what makes tags cheap.
    if pa.types.is_dictionary(kind):
        return _csv(column.dictionary).take(column.indices)
    if _is_text(kind):
        return _csv_quoted(column.cast(pa.string()))
    if pa.types.is_floating(kind):
        return column.cast(pa.string())
    return _csv_quoted(_json(column)) if pa.types.is_nested(kind) else _plain(column)


def _json(column: pa.Array) -> pa.Array:
    """Like `json_text`, but nulls stay null."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _json(column.dictionary).take(column.indices)
    if _is_text(kind):
        return _json_quoted(column.cast(pa.string()))
    # JSON has neither NaN nor infinities, and a parser would refuse the whole answer for one of them.
    if pa.types.is_floating(kind):
        return pc.if_else(pc.is_finite(column), _float_text(column), pa.scalar(None, pa.string()))
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_decimal(kind):
        return column.cast(pa.string())
    if pa.types.is_map(kind):
        return _json_map(column)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _json_list(column)
    if pa.types.is_struct(kind):
        return _json_struct(column)
    return pc.binary_join_element_wise('"', _plain(column), '"', "")


def _float_text(column: pa.Array) -> pa.Array:
    # Many parsers read `-0` as an integer, which has no sign then.
    text = column.cast(pa.string())
    negative = pc.equal(text, "-0")
    return pc.if_else(negative, "-0.0", text) if pc.any(negative).as_py() else text


def _plain(column: pa.Array) -> pa.Array:
    """Values whose text needs no escaping: numbers, times, bytes."""
    kind = column.type
    if pa.types.is_null(kind):
        return pa.nulls(len(column), pa.string())
    if pa.types.is_timestamp(kind):
        return _iso(column)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return _base64(column)
    if pa.types.is_date32(kind) or pa.types.is_time(kind):
        return with_far_values(column, column.cast(pa.string()))
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_decimal(kind):
        return column.cast(pa.string())
    if pa.types.is_duration(kind) or pa.types.is_date(kind):
        return column.cast(pa.string())
    return _rare(column)


def _iso(column: pa.Array) -> pa.Array:
    """Times as `2026-01-31T12:00:00.000000000Z`, or `infinity`. Times without a zone are UTC in all of Headrace."""
    kind = column.type
    text = with_far_values(column, column.cast(pa.timestamp(kind.unit)).cast(pa.string()))
    day, rest = pc.utf8_slice_codeunits(text, 0, _DATE_END), pc.utf8_slice_codeunits(text, _DATE_END + 1)
    between = pc.utf8_slice_codeunits(text, _DATE_END, _DATE_END + 1)
    if pc.any(pc.not_equal(between, " ")).as_py():
        # A year before 0 or after 9999 has more characters, so the date ends where the blank is.
        far = [value and _iso_text(value, _DIGITS_MISSING[kind.unit]) for value in text.to_pylist()]
        return pa.array(far, pa.string())
    return pc.binary_join_element_wise(day, "T", rest, f"{_DIGITS_MISSING[kind.unit]}Z", "")


def _iso_text(text: str, digits_missing: str) -> str:
    day, blank, rest = text.partition(" ")
    return f"{day}T{rest}{digits_missing}Z" if blank else day


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _json_quoted(column: pa.Array) -> pa.Array:
    if pc.any(pc.match_substring_regex(column, _JSON_SPECIAL)).as_py():
        # Arrow has no kernel for the escapes of JSON, so Python escapes, but only once per distinct value:
        # tags and states repeat.
        encoded = column.dictionary_encode()
        escaped = [value and _to_json(value)[1:-1] for value in encoded.dictionary.to_pylist()]
        column = pa.array(escaped, pa.string()).take(encoded.indices)
    return pc.binary_join_element_wise('"', column, '"', "")


def _csv_quoted(column: pa.Array) -> pa.Array:
    special = pc.or_(pc.match_substring_regex(column, _CSV_SPECIAL), pc.equal(column, ""))
    if not pc.any(special).as_py():
        return column
    quoted = pc.binary_join_element_wise('"', pc.replace_substring(column, '"', '""'), '"', "")
    return pc.if_else(special, quoted, column)


def _json_list(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_fixed_size_list(kind):
        column = column.cast(pa.list_(kind.value_type))
    values = json_text(column.flatten())
    lengths = pc.fill_null(pc.list_value_length(column), 0)
    return _bracketed(column, "[", values, lengths, "]")


def _json_map(column: pa.Array) -> pa.Array:
    # `keys` and `items` of a sliced map are those of the whole array. A copy of the rows has no offset.
    column = column.take(pa.array(range(len(column)), pa.int32())) if column.offset else column
    start, end = column.offsets[0].as_py(), column.offsets[-1].as_py()
    keys = pc.coalesce(_plain_key(column.keys.slice(start, end - start)), pa.scalar("null"))
    pairs = pc.binary_join_element_wise(_json_quoted(keys), json_text(column.items.slice(start, end - start)), ":")
    lengths = pc.subtract(column.offsets.slice(1), column.offsets.slice(0, len(column)))
    return _bracketed(column, "{", pairs, lengths, "}")


def _plain_key(keys: pa.Array) -> pa.Array:
    """Keys of a map as text, since JSON has no other keys."""
    if pa.types.is_dictionary(keys.type):
        keys = keys.dictionary_decode()
    if _is_text(keys.type):
        return keys.cast(pa.string())
    return (
        keys.cast(pa.string())
        if pa.types.is_floating(keys.type)
        else _plain(keys)
        if not pa.types.is_nested(keys.type)
        else _json(keys)
    )


def _bracketed(column: pa.Array, opening: str, values: pa.Array, lengths: pa.Array, closing: str) -> pa.Array:
    """The texts of each row's values between brackets; null where the row of `column` is null."""
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths.cast(pa.int64()))])
    joined = pc.binary_join(pa.LargeListArray.from_arrays(offsets, values), ",")
    text = pc.binary_join_element_wise(opening, joined, closing, "")
    return pc.if_else(pc.is_valid(column), text, pa.scalar(None, pa.string()))


def _json_struct(column: pa.Array) -> pa.Array:
    parts: list[pa.Array | pa.Scalar] = []
    for number, (field, values) in enumerate(zip(column.type, column.flatten(), strict=True)):
        parts += [pa.scalar(f"{',' if number else '{'}{key_text(field.name)}:"), json_text(values)]
    text = pc.binary_join_element_wise(*parts, "}" if parts else "{}", "")
    return pc.if_else(pc.is_valid(column), text, pa.scalar(None, pa.string()))


def _base64(column: pa.Array) -> pa.Array:
    encoded = column.cast(pa.binary()).dictionary_encode()
    texts = [value if value is None else base64.b64encode(value).decode() for value in encoded.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(encoded.indices)


def _rare(column: pa.Array) -> pa.Array:
    """Types that Arrow cannot write as text, such as intervals."""
    # One value at a time: no stored column has such a type, so they come from expressions, in few rows.
    texts = [None if value is None else _rare_text(value) for value in column.to_pylist()]
    return pa.array(texts, pa.string())


def _rare_text(value: object) -> str:
    if isinstance(value, pa.MonthDayNano):
        return f"P{value.months}M{value.days}DT{value.nanoseconds / 1_000_000_000:.9f}".rstrip("0").rstrip(".") + "S"
    return _to_json(str(value))[1:-1]
