"""Results of queries in Python, and parameters from Python and from a command line."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from headrace._answers import HTML_ROWS_MAX, QueryResult
from headrace._parameters import ParameterInvalid, query_parameters, typed_parameters

NAT = np.datetime64("NaT", "ns")
TABLE = pa.table({"site": ["<b>north</b>", "south"], "flow": [1.5, 2.5]})


def address(buffer: pa.Buffer) -> int:
    """Where a buffer is in memory."""
    return int(buffer.address)


def test_a_notebook_shows_the_first_rows() -> None:
    """Cells are escaped and cut, and the rows are bounded."""
    html = QueryResult(TABLE)._repr_html_()
    assert "&lt;b&gt;north&lt;/b&gt;" in html
    assert "<b>" not in html
    assert "2 rows" in html
    large = QueryResult(pa.table({"text": ["x" * 300] * (HTML_ROWS_MAX + 5)}))._repr_html_()
    assert HTML_ROWS_MAX + 1 == large.count("<tr>")
    assert f"{'x' * 200}…+100<" in large
    assert f"{HTML_ROWS_MAX + 5} rows, the first {HTML_ROWS_MAX} shown" in large


def test_a_data_frame_may_be_changed() -> None:
    """The frame is the caller's own by default, and the answer keeps its values."""
    result = QueryResult(TABLE)
    frame = result.to_pandas()
    frame.loc[0, "flow"] = 7.0
    assert [7.0, 2.5] == frame["flow"].tolist()
    assert [1.5, 2.5] == result.to_arrow()["flow"].to_pylist()


def test_a_data_frame_without_a_copy() -> None:
    """With `zero_copy` the columns are the answer's memory, of several batches too, and may still be replaced."""
    numbers = pa.chunked_array([[1.5, None], [2.5]])
    result = QueryResult(pa.table({"flow": numbers}))
    frame = result.to_pandas(zero_copy=True)
    shared = frame["flow"].array.__arrow_array__()
    assert [address(chunk.buffers()[1]) for chunk in numbers.chunks] == [
        address(chunk.buffers()[1]) for chunk in shared.chunks
    ]
    frame.loc[0, "flow"] = 9.0
    assert [1.5, None, 2.5] == result.to_arrow()["flow"].to_pylist()


def test_an_answer_can_give_its_memory_away() -> None:
    """With `self_destruct` the frame has the rows and the answer has none."""
    result = QueryResult(pa.table({"flow": [1.5, 2.5]}))
    assert [1.5, 2.5] == result.to_pandas(self_destruct=True)["flow"].tolist()
    assert 0 == len(result)


def test_parameters_of_a_command_line_are_typed() -> None:
    """Whole numbers, numbers, true and false are typed; all else is text, and so is what is quoted."""
    given = ["a=1", "b=-2.5e3", "c=true", "d=north", "$e='42'", 'f="true"', "g=", "h=x=y", "i=nan", "j=2026-01-01"]
    expected = {
        "a": 1,
        "b": -2500.0,
        "c": True,
        "d": "north",
        "e": "42",
        "f": "true",
        "g": "",
        "h": "x=y",
        "i": "nan",
        "j": "2026-01-01",
    }
    assert expected == typed_parameters(given)
    assert [int, float, bool] == [type(value) for value in list(typed_parameters(given).values())[:3]]
    for wrong in (["a"], ["=1"], ["a=1", "a=2"]):
        with pytest.raises(ParameterInvalid):
            typed_parameters(wrong)


def test_parameters_of_python() -> None:
    """Moments become UTC, numpy's numbers Python's; what no query can have is refused by name."""
    sent = query_parameters(
        {
            "moment": datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=2))),
            "plain": datetime(2026, 1, 1, 12, 0, 0, 5),
            "day": date(2026, 1, 1),
            "number": np.float64(1.5),
            "many": (1, np.int64(2)),
        }
    )
    assert {
        "moment": {"timestamp": "2026-01-01T10:00:00"},
        "plain": {"timestamp": "2026-01-01T12:00:00.000005"},
        "day": {"timestamp": "2026-01-01"},
        "number": 1.5,
        "many": [1, 2],
    } == sent
    assert {} == query_parameters(None)
    with pytest.raises(ParameterInvalid, match="'bad'"):
        query_parameters({"bad": {1: 2}})


def test_parameters_of_numpy_and_pandas() -> None:
    """Nanoseconds are a time and no number, and an array is refused by name, also one of a single value."""
    moment = np.datetime64("2026-01-01T12:00:00.123456789")
    sent = query_parameters({"ns": moment, "list": [moment], "us": np.datetime64("2026-01-01T12", "us"), "none": NAT})
    exact = {"timestamp": "2026-01-01T12:00:00.123456789"}
    assert {"ns": exact, "list": [exact], "us": {"timestamp": "2026-01-01T12:00:00"}, "none": None} == sent
    for wrong in (np.array([1, 2]), np.array(["a"]), pd.Series(["a"]), np.timedelta64(5, "ns")):
        with pytest.raises(ParameterInvalid, match="parameter 'bad' is a"):
            query_parameters({"bad": wrong})


def test_a_parameter_that_utc_does_not_have_is_refused() -> None:
    """By an error that names it."""
    with pytest.raises(ParameterInvalid, match="'bad'"):
        query_parameters({"bad": datetime.min.replace(tzinfo=timezone(timedelta(hours=5)))})
