"""What can follow at the cursor: commands, keywords, tables and columns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from headrace.shell.catalogue import Table

COMMANDS = (r"\?", r"\d", r"\i", r"\q", r"\set", r"\timing", r"\unset", r"\x")
_KEYWORDS = """
ALL AND AS ASC ASOF AVG BETWEEN BY CASE CAST COUNT CROSS DATE DATE_TRUNC DESC DESCRIBE DISTINCT ELSE END EPOCH_NS EXCEPT
EXISTS EXPLAIN FALSE FILTER FIRST FROM FULL GROUP HAVING HOUR IN INNER INTERSECT INTERVAL IS JOIN LAST LEFT LIKE LIMIT MAX
MEDIAN MIN MINUTE NOT NOW NULL NULLS OFFSET ON OR ORDER OVER PARTITION PIVOT QUALIFY QUANTILE RIGHT SECOND SELECT SHOW
STDDEV SUM SUMMARIZE TABLES THEN TIME_BUCKET TIMESTAMP TRUE UNION UNPIVOT USING VALUES WHEN WHERE WINDOW WITH
"""
KEYWORDS = tuple(_KEYWORDS.split())
_WORD = re.compile(r'[\w."\\?]*$')
_AFTER_TABLE_WORD = re.compile(r"\b(FROM|JOIN|DESCRIBE|SUMMARIZE|\\d)\s+[\w.\"]*$", re.IGNORECASE)
_PLAIN_NAME = re.compile(r"[A-Za-z_]\w*")


def candidates(before: str, text: str, tables: Sequence[Table]) -> Iterator[tuple[str, int]]:
    """Texts that can replace the word before the cursor, the best first, and the length of that word.

    `before` is the text up to the cursor, and `text` all of the input: columns of tables that it names come first.
    """
    found = _WORD.search(before)
    word = found[0] if found else ""
    seen = set[str]()
    for candidate in _ordered(before, word, text, tables):
        if candidate.lower().startswith(word.lower()) and candidate != word and candidate not in seen:
            seen.add(candidate)
            yield candidate, len(word)


def _ordered(before: str, word: str, text: str, tables: Sequence[Table]) -> Iterator[str]:
    if before.lstrip().startswith("\\") and before.lstrip() == word:
        yield from COMMANDS
        return
    if _AFTER_TABLE_WORD.search(before):
        yield from _table_names(tables)
        return
    if not word:
        return
    words = {part.lower() for part in re.findall(r"[\w.]+", text)}
    named = [table for table in tables if {table.full_name.lower(), table.name.lower()} & words]
    yield from (_quoted(column.name) for table in named for column in table.columns)
    # A keyword as the user writes: lower-case words continue in lower case.
    yield from (keyword.lower() if word.islower() else keyword for keyword in KEYWORDS)
    yield from _table_names(tables)
    if not named:
        yield from (_quoted(column.name) for table in tables for column in table.columns)


def _table_names(tables: Sequence[Table]) -> Iterator[str]:
    yield from (f"{_quoted(table.database)}.{_quoted(table.name)}" for table in tables)
    yield from (_quoted(table.name) for table in tables)


def _quoted(name: str) -> str:
    # A name that is a keyword, as `time` and `date` may be, needs no quotes as a column in DuckDB.
    return name if _PLAIN_NAME.fullmatch(name) else '"' + name.replace('"', '""') + '"'
