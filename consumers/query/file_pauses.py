"""How often a scan pauses behind its files, where a selective condition keeps it from the pauses within them.

DuckDB plans each part between two such pauses apart, which takes milliseconds. A query that is alone pays for few.
"""

from __future__ import annotations

STEP_VALUES_MAX = 768 * 1024
"""Values that a scan of files may read at once. DuckDB does so in about 4 ms; to pause there costs 1 ms of it."""
FILE_PAUSES_MAX = 24
"""Pauses behind files in one statement: each costs DuckDB a scan more, a millisecond before the first row."""
PART_VALUES = 8 * 1024 * 1024
"""Values between two pauses between the files of one driver. DuckDB aggregates and filters what is between two of them
apart, which takes about 9 ms and a megabyte each.
"""
PART_PAUSES_MAX = 8
"""The most such pauses: with twice as many an aggregate does not fit into the memory that a driver has."""
ALONE_VALUES = 32 * 1024 * 1024
"""Values between two pauses of a query that is alone. A query that comes meanwhile waits about 50 ms once, at most."""


def pauses_of_statement(values: int, *, alone: bool) -> int:
    """How many parts a statement has that reads so many values of files by itself, at least 1."""
    return _parts(values, ALONE_VALUES if alone else STEP_VALUES_MAX, FILE_PAUSES_MAX)


def pauses_of_driver(values: int, *, alone: bool) -> int:
    """How many parts a driver of a fragment has that reads so many values, at least 1."""
    return _parts(values, ALONE_VALUES if alone else PART_VALUES, PART_PAUSES_MAX)


def _parts(values: int, step: int, most: int) -> int:
    return max(1, min(most, -(-values // step)))
