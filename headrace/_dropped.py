"""Tables that were dropped: has somebody written to them since?"""

from __future__ import annotations

from collections.abc import Callable, Collection

from headrace._answers import QueryResult
from headrace._asking import NO_ANSWER

TableKey = tuple[str, str]


def listed_again(query: Callable[[str], QueryResult], dropped: Collection[TableKey]) -> set[TableKey]:
    """Those of some dropped tables, as (database, table), that have rows; none when no node answers.

    `query` gives answers that contain what the same client wrote. Its errors of writing are raised.
    """
    # A list alone is not enough: a node that has not read the drop yet lists the table, and one that lacks a group
    # cannot know that the table is empty.
    if not dropped:
        return set()
    try:
        shown = {(row["database"], row["table"]) for row in query("SHOW TABLES").to_dicts()}
    except NO_ANSWER:
        return set()
    return {key for key in dropped if key in shown and has_rows(query, *key)}


def has_rows(query: Callable[[str], QueryResult], database: str, table: str) -> bool:
    """Whether a table has rows; not when no node answers, or knows it."""
    try:
        return len(query(f"SELECT 1 FROM {_quoted(database)}.{_quoted(table)} LIMIT 1")) > 0
    except NO_ANSWER:
        return False


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
