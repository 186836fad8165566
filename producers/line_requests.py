"""Requests to write lines of many clients, parsed together. Pure.

Line protocol of requests that share database and precision is parsed as the messages of a topic are, so that no text
of one request can be taken for that of another. What is found of a line is given back to its request, under the
number that the line has there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.connectors.formats.interface import (
    LINE_COLUMN,
    MESSAGE_COLUMN,
    REJECTED_MESSAGES,
    TIME_MAX_NS,
    FormatOptions,
    ParseResult,
    TimeUnit,
)
from headrace.connectors.formats.parser import parse_messages
from headrace.schemas.tables import TIME_COLUMN

AUTO = "auto"
"""The unit of each time by its size, as InfluxDB 3 takes it."""
_AUTO_LIMITS = ((5 * 10**9, 1_000_000_000), (5 * 10**12, 1_000_000), (5 * 10**15, 1_000))
"""(times below this, nanoseconds in their unit); larger ones are nanoseconds."""
REFUSED_SHOWN = 100
"""Lines of a request that are named; the others are counted."""
_OUT_OF_RANGE = "time does not fit int64 nanoseconds since 1970"


@dataclass(frozen=True, slots=True)
class LineRequest:
    """Line protocol of one client, in UTF-8.

    `unit` is that of its times; None is AUTO. Lines without a time take `received_ms`. `whole`: either all its lines
    are written, or none.
    """

    database: str
    unit: TimeUnit | None
    body: bytes
    received_ms: int
    whole: bool = False

    @property
    def batch_key(self) -> tuple[str, TimeUnit | None]:
        """Requests with the same key can be parsed together."""
        return self.database, self.unit


@dataclass(frozen=True, slots=True)
class RefusedLine:
    """A line that is not written: its number from 1 in its request, and why."""

    line: int
    reason: str


@dataclass(slots=True)
class LineAnswer:
    """What became of a request: the rows that were written, and the first lines that were not, in order.

    `offsets` are the newest of each log that holds these rows, perhaps beside those of others.
    """

    rows: int = 0
    offsets: Mapping[str, int] = field(default_factory=dict)
    refused: list[RefusedLine] = field(default_factory=list)
    refused_count: int = 0


def parse_requests(requests: Sequence[LineRequest], options: FormatOptions) -> ParseResult:
    """The rows of requests with one `batch_key`, with the number of the request and of the line of each.

    `options.time_unit` is set here. Rejected lines are those of `parse_messages`.
    """
    unit = requests[0].unit
    values = pa.array([each.body for each in requests], pa.binary())
    received = pa.array([each.received_ms for each in requests], pa.int64())
    parsed = parse_messages("influx", values, received, replace(options, time_unit=unit or "ns"), keep_lines=True)
    return parsed if unit else _by_size(parsed)


def answers(requests: Sequence[LineRequest], written: Sequence[pa.Table], rejected: pa.Table) -> list[LineAnswer]:
    """The answer of each request, from the rows that were written and the lines that were not."""
    found = [LineAnswer() for _ in requests]
    for rows in written:
        counts = np.bincount(np.asarray(rows.column(MESSAGE_COLUMN)), minlength=len(found))
        for answer, count in zip(found, counts, strict=True):
            answer.rows += int(count)
    # Parsers, times and tables refuse lines at different moments, and an answer names the first ones.
    rejected = rejected.sort_by([("message", "ascending"), ("line", "ascending")])
    starts = np.searchsorted(np.asarray(rejected.column("message")), np.arange(len(found) + 1))
    for answer, start, end in zip(found, starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        answer.refused_count = end - start
        # A body may have millions of bad lines: only those that are shown become objects.
        shown = rejected.slice(start, min(end - start, REFUSED_SHOWN)).to_pylist()
        answer.refused = [RefusedLine(row["line"] + 1, row["reason"]) for row in shown]
    return found


def rejected_lines(rows: pa.Table, reason: str) -> pa.Table:
    """Rows as rejected lines, all for one reason."""
    reasons = pa.repeat(pa.scalar(reason), rows.num_rows)
    return pa.table([rows.column(MESSAGE_COLUMN), rows.column(LINE_COLUMN), reasons], schema=REJECTED_MESSAGES)


def _by_size(parsed: ParseResult) -> ParseResult:
    tables, rejected = dict[str, pa.Table](), [parsed.rejected]
    for name, rows in parsed.tables.items():
        times, fits = nanoseconds_by_size(np.asarray(rows.column(TIME_COLUMN)))
        timed = rows.set_column(rows.column_names.index(TIME_COLUMN), TIME_COLUMN, pa.array(times))
        tables[name] = timed if fits.all() else timed.filter(pa.array(fits))
        rejected.append(rejected_lines(rows.filter(pa.array(~fits)), _OUT_OF_RANGE))
    return replace(parsed, tables=tables, rejected=pa.concat_tables(chain(rejected)))


def nanoseconds_by_size(times: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """(times in ns, which of them fit int64) of times whose unit is that of AUTO."""
    # Not `np.abs`: the least int64 has no positive counterpart, and would be taken for a small time.
    sizes = [(times < limit) & (times > -limit) for limit, _ in _AUTO_LIMITS]
    factors = np.select(sizes, [factor for _, factor in _AUTO_LIMITS], 1).astype(np.int64)
    fits = (factors == 1) | ((times <= TIME_MAX_NS // factors) & (times >= -(TIME_MAX_NS // factors)))
    return np.where(fits, times, 0) * factors, fits
