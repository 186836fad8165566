"""Lines of many requests are parsed together, and each request sees only its own."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from headrace.connectors.formats.interface import FormatOptions, TimeUnit
from headrace.producers.line_requests import (
    LineAnswer,
    LineRequest,
    RefusedLine,
    answers,
    nanoseconds_by_size,
    parse_requests,
)

RECEIVED_MS = 1_700_000_000_123


def request(body: str, unit: TimeUnit | None = "ns", received_ms: int = RECEIVED_MS) -> LineRequest:
    """A request to database `db`."""
    return LineRequest("db", unit, body.encode(), received_ms)


def answered(*requests: LineRequest) -> tuple[list[tuple[int, object]], list[LineAnswer]]:
    """((time, v) of every row of table m, the answers)."""
    parsed = parse_requests(requests, FormatOptions())
    rows = parsed.tables.get("m", pa.table({"time": [], "v": []}))
    pairs = list(zip(rows.column("time").to_pylist(), rows.column("v").to_pylist(), strict=True))
    return pairs, answers(requests, list(parsed.tables.values()), parsed.rejected)


def test_each_request_has_its_rows_and_the_numbers_of_its_lines() -> None:
    """Lines count from 1 in their request, blank ones and comments too; bodies may lack the last line end."""
    rows, found = answered(
        request("m v=1 1\nm v=2 2"),
        request(""),
        request("# note\n\nbad\nm v=3 3\nm,=x v=1 4\n"),
        request("m v=4 4\r\n"),
    )
    assert [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)] == rows
    assert [2, 0, 1, 1] == [each.rows for each in found]
    assert [[], [], [3, 5], []] == [[line.line for line in each.refused] for each in found]


def test_a_missing_quote_costs_its_own_request_only() -> None:
    """Text behind an open quote is not searched in the lines of the next client, even if that would be a record."""
    rows, found = answered(request('m v=1,s="open 1'), request('m v=2,s="close" 2'), request("m v=3 3"))
    assert [(2, 2.0), (3, 3.0)] == rows
    assert [(0, 1), (1, 0), (1, 0)] == [(each.rows, len(each.refused)) for each in found]


@pytest.mark.parametrize(
    ("unit", "factor"), [("ns", 1), ("us", 10**3), ("ms", 10**6), ("s", 10**9), ("m", 60 * 10**9), ("h", 3_600 * 10**9)]
)
def test_times_have_the_unit_of_their_request(unit: TimeUnit, factor: int) -> None:
    """Lines without a time have the moment at which their own request came; a time that does not fit is refused."""
    rows, found = answered(
        request("m v=1 5\nm v=2", unit), request(f"m v=3\nm v=4 {2**63 // factor + 1}", unit, RECEIVED_MS + 7)
    )
    assert [(5 * factor, 1.0), (RECEIVED_MS * 10**6, 2.0), ((RECEIVED_MS + 7) * 10**6, 3.0)] == rows
    assert [(2, []), (1, [2])] == [(each.rows, [line.line for line in each.refused]) for each in found]


def test_without_a_unit_each_time_has_that_of_its_size() -> None:
    """The same second in four units, before and after 1970; and lines without a time."""
    second = 1_700_000_000
    body = "\n".join(f"m v=1 {sign * second * factor}" for factor in (1, 10**3, 10**6, 10**9) for sign in (1, -1))
    rows, found = answered(request(body + "\nm v=2", None))
    assert [sign * second * 10**9 for _ in range(4) for sign in (1, -1)] == [time for time, _ in rows[:-1]]
    assert ((RECEIVED_MS * 10**6, 2.0), [LineAnswer(9)]) == (rows[-1], found)


def test_the_ends_of_int64_are_nanoseconds_by_size() -> None:
    """The least int64 has no positive counterpart, and is no small time all the same."""
    ends = np.array([-(2**63), 2**63 - 1], np.int64)
    times, fits = nanoseconds_by_size(ends)
    assert (list(ends), [True, True]) == (list(times), list(fits))


def test_of_many_bad_lines_the_first_are_named_and_all_are_counted() -> None:
    """In each request for itself."""
    _, found = answered(request("bad\n" * 5_000), request("m v=1 1"), request("bad\n" * 3))
    assert [(5_000, 100), (0, 0), (3, 3)] == [(each.refused_count, len(each.refused)) for each in found]
    assert [1, 100, 1] == [found[0].refused[0].line, found[0].refused[-1].line, found[2].refused[0].line]


def test_a_refused_line_has_its_reason() -> None:
    """As the parser of files gives it."""
    _, (found,) = answered(request("m v=1x 1"))
    assert [1] == [line.line for line in found.refused]
    assert isinstance(found.refused[0], RefusedLine)
    assert "v" in found.refused[0].reason
