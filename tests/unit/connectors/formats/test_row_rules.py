"""Rows that no log takes are rejected lines in every format, and no other row is."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.connectors.formats import FormatOptions, parse_buffer, parse_messages
from headrace.connectors.formats.interface import ParseResult
from headrace.connectors.formats.row_rules import ArrayInvalid, check_arrays, rows_with_text
from headrace.schemas.tables import ROW_TIME_MAX_NS, ROW_TIME_MIN_NS
from tests.poison import LATIN_1, text_array

OPTIONS = FormatOptions(table="t", tags=("h",))
REFUSED_TIMES = (2**63 - 1, -(2**63) + 1)


def parquet(**columns: pa.Array) -> bytes:
    """A Parquet file, whose texts Arrow checks neither when it writes nor when it reads."""
    stream = io.BytesIO()
    pq.write_table(pa.table(columns), stream)
    return stream.getvalue()


def times_of(parsed: ParseResult) -> list[int]:
    """The times of the only table."""
    return list(parsed.tables["t"]["time"].to_pylist())


@pytest.mark.parametrize("column", ["h", "s", "d", "v"])
def test_a_row_of_parquet_with_text_in_latin_1_is_rejected(column: str) -> None:
    """Tags and fields, plain, as dictionaries and as views; the other rows are taken, and all of them are valid."""
    bad, texts = text_array([b"a", LATIN_1, b"c"]), pa.array(["x", "y", "z"])
    columns = {"h": texts, "s": texts, "d": texts, "v": texts} | {column: bad}
    columns["d"] = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2], pa.int32()), columns["d"])
    columns["v"] = columns["v"].cast(pa.string_view())
    parsed = parse_buffer("parquet", parquet(time=pa.array([1, 2, 3]), **columns), OPTIONS, keep_lines=True)
    assert [1, 3] == times_of(parsed)
    assert [(1, f"the text of '{column}' is not UTF-8")] == [(row.line, row.reason) for row in parsed.rejections()]
    assert [0, 2] == parsed.tables["t"]["__line"].to_pylist()
    check_arrays(parsed.tables["t"])


def test_a_column_of_parquet_with_values_outside_of_its_dictionary_is_refused() -> None:
    """By name: one wrong byte in a file makes such an index, and every access to it fails with an error of Arrow."""
    indices = pa.array([0, 5, 0], pa.int32())
    wrong = pa.DictionaryArray.from_arrays(indices, pa.array(["x"]), safe=False)
    with pytest.raises(ArrayInvalid, match="column 'd' is not valid: its values"):
        rows_with_text(pa.table({"time": [1, 2, 3], "d": wrong}))


@pytest.mark.parametrize(
    ("column", "advice"),
    [(text_array([LATIN_1]), "UTF-8"), (pa.array([1], pa.int64()).view(pa.date64()), "that date64[ms] has")],
)
def test_a_column_that_breaks_the_rules_of_arrow_has_advice_of_its_type(column: pa.Array, advice: str) -> None:
    """Text is to be decoded, and a part of a day is no text."""
    with pytest.raises(ArrayInvalid, match="column 'c' is not valid") as raised:
        check_arrays(pa.table({"c": column}))
    assert advice in raised.value.action
    assert ("UTF-8" in advice) == ("UTF-8" in raised.value.action)


def test_a_time_as_text_in_latin_1_is_rejected() -> None:
    """Polars, which reads it, would take any bytes for UTF-8."""
    parsed = parse_buffer(
        "parquet", parquet(time=text_array([b"1", LATIN_1]), v=pa.array([1, 2]), h=pa.array(["a", "a"])), OPTIONS
    )
    assert [1] == times_of(parsed)
    assert [1] == parsed.rejected["line"].to_pylist()


@pytest.mark.parametrize("refused", REFUSED_TIMES)
@pytest.mark.parametrize("keep_lines", [True, False])
@pytest.mark.parametrize("form", ["influx", "json", "csv", "parquet"])
def test_a_time_that_sql_does_not_have_is_a_rejected_line(form: str, keep_lines: bool, refused: int) -> None:
    """In every format, by its number and among other rejected lines; the ends of the range are taken."""
    times = [5, refused, ROW_TIME_MIN_NS, ROW_TIME_MAX_NS]
    data = {
        "influx": "".join(f"t,h=a v=1 {time}\n" for time in times) + "bad\n",
        "json": "".join(f'{{"time":{time},"h":"a","v":1}}\n' for time in times) + "bad\n",
        "csv": "time,h,v\n" + "".join(f"{time},a,1\n" for time in times) + "x,a,1\n",
    }
    typed = parquet(time=pa.array([*times, None]), h=pa.array(["a"] * 5), v=pa.array([1] * 5))
    content = data[form].encode() if form in data else typed
    options = FormatOptions() if form == "influx" else OPTIONS
    parsed = parse_buffer(form, content, options, keep_lines=keep_lines)
    first = 1 if form == "csv" else 0
    assert [first + 1, first + 4] == parsed.rejected["line"].to_pylist()
    assert "SQL" in parsed.rejections()[0].reason
    assert [5, ROW_TIME_MIN_NS, ROW_TIME_MAX_NS] == times_of(parsed)
    assert keep_lines == ("__line" in parsed.tables["t"].column_names)


@pytest.mark.parametrize("keep_lines", [True, False])
def test_a_message_with_such_a_time_is_rejected(keep_lines: bool) -> None:
    """With the number of the message and the line in it, as ingest needs for its dead letters."""
    values = pa.array([b"t,h=a v=1 1", b"t,h=a v=1 2\nt,h=a v=1 9223372036854775807"])
    parsed = parse_messages("influx", values, pa.array([1, 2]), FormatOptions(), keep_lines=keep_lines)
    assert [(1, 1)] == [(row.message, row.line) for row in parsed.rejections()]
    assert [1, 2] == times_of(parsed)
    assert keep_lines == ("__message" in parsed.tables["t"].column_names)


@given(st.lists(st.binary(max_size=6) | st.text(max_size=3).map(str.encode), max_size=12))
def test_the_pattern_of_utf_8_is_pythons(texts: list[bytes]) -> None:
    """A row is good exactly when Python decodes its text."""

    def decodes(text: bytes) -> bool:
        try:
            text.decode()
        except UnicodeDecodeError:
            return False
        return True

    _, good, _ = rows_with_text(pa.table({"s": text_array(texts)}))
    assert [decodes(text) for text in texts] == good.tolist()


def test_only_text_has_such_rows() -> None:
    """A column that is wrong in another way is an error of the whole table."""
    broken = pa.DictionaryArray.from_arrays(pa.array([9], pa.int32()), pa.array([1.0]), safe=False)
    with pytest.raises(ArrayInvalid, match="'d' is not valid"):
        rows_with_text(pa.table({"d": broken}))
