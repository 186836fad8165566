"""The columns of a rollup by name: what it has of each (series, hour), and what a query may want of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

HOUR_NS = 3_600_000_000_000
SERIES, HOUR, ROWS, FIRST_NS, LAST_NS = "series", "hour", "rows", "first_ns", "last_ns"
"""The columns that every rollup has: place in the runs, begin in ns, number of rows, first and last time in ns."""


class Rolled(StrEnum):
    """What a rollup has of the values of one field that are not null; `ROWS` and the times also of all rows."""

    ROWS = "rows"
    COUNT = "count"
    SUM = "sum"
    SUM_HIGH = "sum_high"
    """Of integers: the sum is `SUM_HIGH * 2**32 + SUM_LOW`, which has all of its 128 bits."""
    SUM_LOW = "sum_low"
    MIN = "min"
    MAX = "max"
    FIRST = "first"
    LAST = "last"
    FIRST_TIME = "first_time"
    LAST_TIME = "last_time"

    def of(self, field: str) -> str:
        """The name of the column in a rollup."""
        return f"{self.value}:{field}"


@dataclass(frozen=True, slots=True)
class RollupColumn:
    """One column that a query wants; of all rows without a field."""

    kind: Rolled
    field: str = ""


@dataclass(frozen=True, slots=True)
class RollupRequest:
    """What a query wants of the rollups of a table: some tags, the hour as `time`, and columns named `name(place)`."""

    tags: tuple[str, ...]
    columns: tuple[RollupColumn, ...]

    @staticmethod
    def name(place: int) -> str:
        """The name of a wanted column in the answer."""
        return f"{ROLLUP_PREFIX}{place}"


ROLLUP_PREFIX = "__rollup_"
