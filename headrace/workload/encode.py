"""User tables as text: Influx line protocol and JSON lines, a column at a time.

What can be escaped once per series (table, tags) is escaped once per series; fields are turned to text by
column. Floats are written in the shortest form that reads back as the same float64. Null fields, and null or
empty tags, are left out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from headrace.schemas.errors import HeadraceError
from headrace.schemas.series import escape_tag
from headrace.schemas.tables import TIME_COLUMN
from headrace.workload.series import SeriesRows, series_rows, tag_names

_SERIES = "__series"


class NotEncodable(HeadraceError):
    """A value that the text format has no form for."""


def to_line_protocol(table_name: str, table: pa.Table, tags: Sequence[str] | None = None) -> pa.LargeStringArray:
    """One line a row, without line ends; a row without any field gives no line, as line protocol has no form
    for it.

    `tags` names the tag columns; None means the dictionary-typed ones. `time` is int64 ns. Integers carry
    `i`, strings are quoted.
    """
    return _line_protocol(table_name, table, tags, "")


def line_protocol_bytes(table_name: str, table: pa.Table, tags: Sequence[str] | None = None) -> bytes:
    """The lines of `to_line_protocol`, each ended by a newline."""
    return _bytes(_line_protocol(table_name, table, tags, "\n"))


def to_json_lines(table: pa.Table, tags: Sequence[str] | None = None) -> pa.LargeStringArray:
    """One JSON object a row: tags, `time` as int64 ns, then fields.

    Raises NotEncodable for NaN and infinities.
    """
    return _json_lines(table, tags, "")


def json_lines_bytes(table: pa.Table, tags: Sequence[str] | None = None) -> bytes:
    """The lines of `to_json_lines`, each ended by a newline."""
    return _bytes(_json_lines(table, tags, "\n"))


def _line_protocol(table_name: str, table: pa.Table, tags: Sequence[str] | None, end: str) -> pa.LargeStringArray:
    names = tag_names(table, tags)
    fields = [name for name in table.column_names if name not in names and name != TIME_COLUMN]
    series = series_rows(table, names)
    _check_names(table_name, names, fields, series)
    if not fields:
        return _nothing()
    frame = _frame(table, fields, series, series.keys(table_name))
    with_nulls = any(table[name].null_count for name in fields)
    if with_nulls:
        # Line protocol has no form for a point without fields.
        frame = frame.filter(pl.any_horizontal(pl.col(fields).is_not_null()))
    texts = [pl.lit(f",{escape_tag(name)}=") + _line_protocol_value(name, frame.schema[name]) for name in fields]
    body = pl.concat_str(texts, ignore_nulls=with_nulls).str.strip_prefix(",")
    return _evaluated(frame, [pl.col(_SERIES), pl.lit(" "), body, pl.lit(" "), _text(TIME_COLUMN), pl.lit(end)])


def _check_names(table_name: str, tags: Sequence[str], fields: Sequence[str], series: SeriesRows) -> None:
    """Refuse what would be read differently: line ends have no escape, and `#` begins a comment."""
    if table_name[:1] in ("", "#", "\t"):
        raise NotEncodable(f"line protocol cannot carry a table named {table_name!r}", action="use another format")
    for text in (table_name, *tags, *fields):
        if "\n" in text:
            raise NotEncodable(f"line protocol cannot carry the name {text!r}", action="use another format")
    for name, values in series.tags.items():
        if pc.any(pc.match_substring(values, "\n")).as_py():
            raise NotEncodable(f"line protocol cannot carry a line end in tag {name!r}", action="use another format")


def _line_protocol_value(name: str, kind: pl.DataType) -> pl.Expr:
    if kind.is_integer():
        return pl.concat_str(_text(name), pl.lit("i"))
    if kind == pl.String:
        escaped = pl.col(name).str.replace_all("\\", "\\\\", literal=True).str.replace_all('"', '\\"', literal=True)
        return pl.concat_str(pl.lit('"'), escaped, pl.lit('"'))
    return _text(name)


def _json_lines(table: pa.Table, tags: Sequence[str] | None, end: str) -> pa.LargeStringArray:
    names = tag_names(table, tags)
    fields = [name for name in table.column_names if name not in names and name != TIME_COLUMN]
    _check_finite(table, fields)
    series = series_rows(table, names)
    frame = _frame(table, fields, series, _json_heads(series))
    texts = [pl.lit(f",{json.dumps(name)}:") + _json_value(name, frame.schema[name]) for name in fields]
    return _evaluated(frame, [pl.col(_SERIES), _text(TIME_COLUMN), *texts, pl.lit("}" + end)])


def _json_heads(series: SeriesRows) -> pa.StringArray:
    """The beginning of the object of each series: its tags, and the name of the time."""
    columns = {name: values.to_pylist() for name, values in series.tags.items()}
    heads = [{name: values[row] for name, values in columns.items() if values[row]} for row in range(series.count)]
    texts = (json.dumps(head, ensure_ascii=False, separators=(",", ":"))[:-1] + ("," if head else "") for head in heads)
    return pa.array([f'{text}"{TIME_COLUMN}":' for text in texts], pa.string())


def _json_value(name: str, kind: pl.DataType) -> pl.Expr:
    if kind != pl.String:
        return _text(name)
    # polars encodes JSON only in structs: the wrapper around the value is cut off again.
    quoted = pl.struct(pl.col(name).alias("v")).struct.json_encode().str.strip_prefix('{"v":').str.strip_suffix("}")
    return pl.when(pl.col(name).is_not_null()).then(quoted)


def _check_finite(table: pa.Table, fields: Sequence[str]) -> None:
    for name in fields:
        if pa.types.is_floating(table[name].type) and not pc.all(pc.is_finite(table[name]), min_count=0).as_py():
            raise NotEncodable(
                f"field {name!r} holds NaN or an infinity, and JSON has no such numbers", action="use another format"
            )


def _frame(table: pa.Table, fields: Sequence[str], series: SeriesRows, heads: pa.StringArray) -> pl.DataFrame:
    """Text that begins each row, time and fields as one polars frame; no values are copied but the heads."""
    columns = {name: pl.Series(name, table[name]) for name in (*fields, TIME_COLUMN)}
    return pl.DataFrame({_SERIES: pl.Series(heads).gather(pl.Series(series.codes)), **columns})


def _text(name: str) -> pl.Expr:
    return pl.col(name).cast(pl.String)


def _evaluated(frame: pl.DataFrame, parts: Sequence[pl.Expr]) -> pa.LargeStringArray:
    lines = frame.select(pl.concat_str(parts, ignore_nulls=True).alias("line"))["line"]
    return lines.rechunk().to_arrow(compat_level=pl.CompatLevel.oldest())


def _nothing() -> pa.LargeStringArray:
    return pa.array([], pa.large_string())


def _bytes(lines: pa.LargeStringArray) -> bytes:
    """The concatenated texts."""
    # Straight from the buffers of Arrow: no Python string per line.
    if not len(lines):
        return b""
    _, offsets, data = lines.buffers()
    first, last = (
        int.from_bytes(offsets[8 * place : 8 * place + 8].to_pybytes(), "little")
        for place in (lines.offset, lines.offset + len(lines))
    )
    return bytes(data[first:last].to_pybytes())
