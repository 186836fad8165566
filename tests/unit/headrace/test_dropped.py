"""Dropped tables that a client lists again: those that have rows, by answers that contain its own writes."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from headrace._answers import QueryResult
from headrace._connection import NoLogs
from headrace._dropped import has_rows, listed_again
from headrace._nodes import NodeDirectory
from headrace.client import Client
from headrace.connectors.http import NodeUnreachable
from headrace.consumers.query.query_errors import UnknownTable
from headrace.producers.deletes import DeleteInvalid
from headrace.producers.sender import WriteFailed
from headrace.schemas.tables import Catalogue, TableSchema
from headrace.settings import load_settings

GONE, BACK, LATE = ("d", "gone"), ("d", 'b"ack'), ("d", "late")


def answering(
    shown: list[tuple[str, str]], rows: dict[str, Any], asked: list[str] | None = None
) -> Callable[[str], QueryResult]:
    """A client's queries; `rows` of a table by the name in the SQL, or its error."""

    def query(sql: str) -> QueryResult:
        if asked is not None:
            asked.append(sql)
        if sql == "SHOW TABLES":
            return QueryResult(
                pa.table({"database": [name for name, _ in shown], "table": [name for _, name in shown]})
            )
        found = rows[sql.removeprefix("SELECT 1 FROM ").removesuffix(" LIMIT 1")]
        if isinstance(found, Exception):
            raise found
        return QueryResult(pa.table({"1": [1] * found}))

    return query


def test_a_dropped_table_is_listed_by_its_rows() -> None:
    """A node lists one that it has not read the drop of, and one that it cannot look into: both are empty."""
    query = answering([GONE, BACK, LATE], {'"d"."gone"': 0, '"d"."b""ack"': 1, '"d"."late"': UnknownTable("no")})
    assert {BACK} == listed_again(query, {GONE, BACK, LATE})
    assert [False, True, False] == [has_rows(query, *key) for key in (GONE, BACK, LATE)]


def test_tables_that_no_node_lists_are_not_looked_into() -> None:
    """One request answers for any number of them, and none is sent where nothing was dropped."""
    asked: list[str] = []
    query = answering([], {}, asked)
    assert set() == listed_again(query, {GONE, BACK})
    assert set() == listed_again(query, set())
    assert ["SHOW TABLES"] == asked


def test_an_error_of_writing_is_not_swallowed() -> None:
    """A query first flushes what the client wrote, and reports each failure once: it must reach the caller."""

    def query(_sql: str) -> QueryResult:
        raise WriteFailed("1 row was not written", rows=1)

    with pytest.raises(WriteFailed):
        listed_again(query, {GONE})
    with pytest.raises(WriteFailed):
        has_rows(query, *GONE)


@pytest.mark.parametrize("key", [GONE, BACK])
def test_what_was_dropped_is_gone_while_no_node_answers(key: tuple[str, str]) -> None:
    """The client knows the drop, and nobody knows of rows."""

    def query(_sql: str) -> QueryResult:
        raise NodeUnreachable("nobody")

    assert set() == listed_again(query, {key})
    assert not has_rows(query, *key)


class Growing(Catalogue):
    """Another thread learns of a table whenever one is looked at."""

    def is_dropped(self, database: str, table: str) -> bool:
        """See Catalogue."""
        self.tables.setdefault(("d", f"{table}+"), [TableSchema("d", f"{table}+", 1)])
        return super().is_dropped(database, table)


def test_tables_are_listed_while_another_thread_makes_some() -> None:
    """Those that were there are listed, and a table that is missing is named: neither ends with an error of Python."""
    schemas: Any = SimpleNamespace(
        catalogue=Growing(tables={("d", "a"): [TableSchema("d", "a", 1)]}), refresh=lambda: None
    )
    access: Any = SimpleNamespace(tables=schemas, close=lambda: None)
    with Client(access, load_settings({}), NodeDirectory(NoLogs())) as client:
        assert "a" in [each.table for each in client.tables()]
        with pytest.raises(DeleteInvalid, match="no table d.b"):
            client.table("d", "b")
