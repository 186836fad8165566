"""Arrow columns as text, one text a row, by whole columns: the cells of a JSON or CSV answer."""

from __future__ import annotations

import base64
import json

import pyarrow as pa
import pyarrow.compute as pc

_JSON_SPECIAL = r'[\x00-\x1f"\\]'
_CSV_SPECIAL = r'[",\r\n]'
_DIGITS_MISSING = {"s": ".000000000", "ms": "000000", "us": "000", "ns": ""}
_DATE_END = 10


def key_text(name: str) -> str:
    """A column name as a JSON key."""
    return json.dumps(name, ensure_ascii=False)


def json_text(column: pa.Array) -> pa.Array:
    """Every value of a column as JSON; nulls are `null`."""
    return pc.fill_null(_json(column), "null")


def csv_text(column: pa.Array) -> pa.Array:
    """Every value of a column as a CSV cell; nulls are empty."""
    return pc.fill_null(_csv(column), "")


def plain_text(column: pa.Array) -> pa.Array:
    """Every value of a column as people read it in a table, without quotes; times without needless digits; nulls are empty."""
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
    if pa.types.is_list(kind) and _is_text(kind.value_type):
        return pc.fill_null(pc.binary_join(column, ", "), "")
    return pc.fill_null(_json(column) if pa.types.is_nested(kind) else _plain(column), "")


def _csv(column: pa.Array) -> pa.Array:
    """The same with nulls left null."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _csv(column.dictionary).take(column.indices)
    if _is_text(kind):
        return _csv_quoted(column.cast(pa.string()))
    if pa.types.is_floating(kind):
        return column.cast(pa.string())
    return _csv_quoted(_json(column)) if pa.types.is_nested(kind) else _plain(column)


def _json(column: pa.Array) -> pa.Array:
    """The same with nulls left null."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _json(column.dictionary).take(column.indices)
    if _is_text(kind):
        return _json_quoted(column.cast(pa.string()))
    if pa.types.is_floating(kind):
        return pc.if_else(pc.is_finite(column), column.cast(pa.string()), pa.scalar(None, pa.string()))
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_decimal(kind):
        return column.cast(pa.string())
    if pa.types.is_map(kind):
        return _json_map(column)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _json_list(column)
    if pa.types.is_struct(kind):
        return _json_struct(column)
    return pc.binary_join_element_wise('"', _plain(column), '"', "")


def _plain(column: pa.Array) -> pa.Array:
    """Values that need no quoting inside quotes: numbers, times, bytes."""
    kind = column.type
    if pa.types.is_null(kind):
        return pa.nulls(len(column), pa.string())
    if pa.types.is_timestamp(kind):
        return _iso(column)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return _base64(column)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_decimal(kind) or pa.types.is_date(kind):
        return column.cast(pa.string())
    if pa.types.is_time(kind) or pa.types.is_duration(kind):
        return column.cast(pa.string())
    return _rare(column)


def _iso(column: pa.Array) -> pa.Array:
    """Times as `2026-01-31T12:00:00.000000000Z`. Times without a zone are UTC everywhere here."""
    kind = column.type
    text = column.cast(pa.timestamp(kind.unit)).cast(pa.string())
    day, rest = pc.utf8_slice_codeunits(text, 0, _DATE_END), pc.utf8_slice_codeunits(text, _DATE_END + 1)
    between = pc.utf8_slice_codeunits(text, _DATE_END, _DATE_END + 1)
    if pc.any(pc.not_equal(between, " ")).as_py():
        # A year before 0 or after 9999 is longer.
        split = pc.split_pattern(text, " ")
        day, rest = pc.list_element(split, 0), pc.list_element(split, 1)
    return pc.binary_join_element_wise(day, "T", rest, f"{_DIGITS_MISSING[kind.unit]}Z", "")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _json_quoted(column: pa.Array) -> pa.Array:
    if pc.any(pc.match_substring_regex(column, _JSON_SPECIAL)).as_py():
        # Escaping goes by distinct value, since tags and states repeat and no kernel knows JSON's escapes.
        encoded = column.dictionary_encode()
        escaped = [value and json.dumps(value, ensure_ascii=False)[1:-1] for value in encoded.dictionary.to_pylist()]
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
    column = column.take(pa.array(range(len(column)), pa.int32())) if column.offset else column
    start, end = column.offsets[0].as_py(), column.offsets[-1].as_py()
    keys = pc.coalesce(_plain_key(column.keys.slice(start, end - start)), pa.scalar("null"))
    pairs = pc.binary_join_element_wise(_json_quoted(keys), json_text(column.items.slice(start, end - start)), ":")
    lengths = pc.subtract(column.offsets.slice(1), column.offsets.slice(0, len(column)))
    return _bracketed(column, "{", pairs, lengths, "}")


def _plain_key(keys: pa.Array) -> pa.Array:
    """Keys of a map as text: JSON has no other keys."""
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
    """The texts of each row's values between brackets; null where the row of `column` is."""
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
    """Types that Arrow cannot write as text, such as intervals: by value, for they are the few rows of a finished answer."""
    texts = [None if value is None else _rare_text(value) for value in column.to_pylist()]
    return pa.array(texts, pa.string())


def _rare_text(value: object) -> str:
    if isinstance(value, pa.MonthDayNano):
        return f"P{value.months}M{value.days}DT{value.nanoseconds / 1_000_000_000:.9f}".rstrip("0").rstrip(".") + "S"
    return json.dumps(str(value), ensure_ascii=False)[1:-1]
