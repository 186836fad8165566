"""The steps of a statement that cannot stop, each behind a turn that leaves a worker to other queries."""

from __future__ import annotations

import re

from headrace.consumers.query.guard import Statement
from headrace.consumers.query.views import SCANNED_COLUMN
from headrace.consumers.scheduling.threaded_driver import Turn

SOURCES_MAX = 16
"""Tables and subqueries that a statement reads: one with more is planned in several slices."""
SCANNED_COLUMNS_MAX = 32
"""Columns of all scans of files of a statement: DuckDB binds one that has more in several slices."""
SORT_PAUSES = 3
"""A statement that sorts holds many rows from so many blocks of a scan on."""
_SOURCE = re.compile(r"\b(?:from|join)\b", re.IGNORECASE)


class LongSteps:
    """See Turn: when one statement asks for a turn without a bound. Used by the thread of its driver."""

    def __init__(self, turn: Turn, sql: str) -> None:
        self._turn = turn
        self._reads_many = _sources_most(sql) > SOURCES_MAX and len(_SOURCE.findall(sql)) > SOURCES_MAX
        self._sorts = False
        self._blocks = 0

    def before_plan(self) -> None:
        """Before work on the text of the statement, until the next pause."""
        if self._reads_many:
            self._turn.set_unbounded_once()

    def before_bind(self, sql: str, viewed: int) -> None:
        """Before DuckDB binds SQL, until the next pause. `viewed` are the columns of scans in the views that it names."""
        if sql.count(SCANNED_COLUMN) + viewed > SCANNED_COLUMNS_MAX:
            self._turn.set_unbounded_once()

    def before_rows(self, statement: Statement, *, is_small: bool, outgrown: bool) -> None:
        """Before DuckDB runs a statement over few rows or many. `outgrown`: it did not fit into its memory."""
        self._sorts = statement.holds_rows
        # What does not fit holds many rows or groups, and is done with them in one step.
        if outgrown or statement.generates_rows or ((statement.joins or statement.holds_rows) and not is_small):
            self._turn.set_unbounded()

    def at_row(self, row: int) -> None:
        """See Pauses."""
        self._turn.pause()
        self._blocks += row > 0
        if self._sorts and self._blocks >= SORT_PAUSES:
            self._turn.set_unbounded()


def _sources_most(sql: str) -> int:
    """No statement has more sources than this: the words anywhere, whose count is quicker than a search."""
    lower = sql.lower()
    return lower.count("from") + lower.count("join")
