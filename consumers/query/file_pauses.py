"""How often a scan pauses behind its files, where a selective condition keeps it from the pauses within them.

DuckDB plans each part between two such pauses apart, which takes milliseconds. A query that is alone pays for few. Only
statements that give rows as they are found pause there: in one that collects rows, such as an aggregate or a sort,
DuckDB reads all of these pauses before the first file.
"""

from __future__ import annotations

from headrace.consumers.query.distribution import only_filters
from headrace.consumers.query.guard import Statement
from headrace.consumers.query.planner import Parsed

STEP_VALUES_MAX = 768 * 1024
"""Values that a scan of files may read at once. DuckDB does so in about 4 ms; to pause there costs 1 ms of it."""
STEP_ALONE_VALUES_MAX = 8 * 1024 * 1024
"""The same while no other query runs: about 50 ms, for which one that comes meanwhile waits once. To number the rows
takes a fifth of a scan of two columns.
"""
FILE_PAUSES_MAX = 24
"""Pauses behind files in one statement: each costs DuckDB a scan more, a millisecond before the first row."""
PART_VALUES = 8 * 1024 * 1024
"""Values between two pauses between the files of one driver. DuckDB filters what is between two of them apart, which
takes about 9 ms and a megabyte each.
"""
PART_PAUSES_MAX = 8
"""The most such pauses."""
ALONE_VALUES = 64 * 1024 * 1024
"""Values between two pauses of a query that is alone. One that comes meanwhile, and is not short, waits about 100 ms
once, at most.
"""


def step_values_max(*, alone: bool) -> int:
    """How many values a scan reads at once, without a pause."""
    return STEP_ALONE_VALUES_MAX if alone else STEP_VALUES_MAX


def parts_of_statement(statement: Statement, values: int, parsed: Parsed | None = None, *, alone: bool) -> int:
    """Into how many parts pauses behind files divide a statement that reads so many values of its only table."""
    parts = 1 if statement.holds_rows else parts_of_rows(values, alone=alone)
    return parts if parts > 1 and only_filters(statement, parsed) else 1


def parts_of_rows(values: int, *, alone: bool) -> int:
    """The same for a statement that is known to give rows as they are found."""
    return _parts(values, ALONE_VALUES if alone else STEP_VALUES_MAX, FILE_PAUSES_MAX)


def parts_of_driver(values: int, *, alone: bool) -> int:
    """The same for one of several drivers of such a statement."""
    return _parts(values, ALONE_VALUES if alone else PART_VALUES, PART_PAUSES_MAX)


def _parts(values: int, step: int, most: int) -> int:
    return max(1, min(most, -(-values // step)))
