"""What a delete, a drop or a retention would remove."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import duckdb
import pytest

from headrace.consumers.replication.upkeep import expired_before
from headrace.removal import Removal, count_removal, counting_sql, expired_end, tag_values
from headrace.schemas.messages import Delete
from headrace.schemas.tables import KEEP_FOREVER_NS

DAY_NS = 86_400_000_000_000


class OneNode:
    """Answers queries with DuckDB over one table, and lists the files that a test gives."""

    def __init__(self, files: list[dict[str, int]]) -> None:
        self._files = files
        self._database = duckdb.connect()
        self._database.execute('CREATE SCHEMA "my db"')
        self._database.execute('CREATE TABLE "my db"."a""b" (time TIMESTAMP_NS, "the site" VARCHAR)')
        for number, site in enumerate(("north", "south", None)):
            self._database.execute(
                'INSERT INTO "my db"."a""b" VALUES (make_timestamp_ns(?), ?)', [number * DAY_NS, site]
            )

    def query(self, sql: str, *, format: str, parameters: dict[str, Any]) -> Iterator[bytes]:
        """Rows as JSON."""
        assert "json" == format
        (count,) = self._database.execute(sql, parameters).fetchone() or (0,)
        yield json.dumps([{"rows": count}]).encode()

    def files(self, database: str, table: str) -> dict[str, Any]:
        """The files."""
        assert ("my db", 'a"b') == (database, table)
        return {"slice_ns": DAY_NS, "files": self._files}

    def status(self) -> dict[str, Any]:
        """Every group is here."""
        return {"remote_groups": []}


FILES = [
    {"bytes": 10, "min_time_ns": 0, "max_time_ns": DAY_NS - 1},
    {"bytes": 100, "min_time_ns": DAY_NS, "max_time_ns": 2 * DAY_NS - 1},
    {"bytes": 1_000, "min_time_ns": 2 * DAY_NS, "max_time_ns": 2 * DAY_NS + 5},
]


@pytest.mark.parametrize(
    ("tags", "start_ns", "end_ns", "expected"),
    [
        ({}, None, None, Removal(3, 3, 1_110, 0)),
        ({}, DAY_NS, 2 * DAY_NS, Removal(1, 1, 100, 0)),
        ({}, None, DAY_NS + 1, Removal(2, 1, 10, 1)),
        ({}, 2 * DAY_NS + 1, None, Removal(0, 0, 0, 1)),
        ({"the site": ("north", "south")}, None, None, Removal(2, 0, 0, 3)),
        ({"the site": ("",)}, None, None, Removal(1, 0, 0, 3)),
        ({"the site": ("it's",)}, 0, None, Removal(0, 0, 0, 3)),
        ({}, 0, 0, Removal(0, 0, 0, 0)),
    ],
)
def test_rows_and_files_that_would_go_are_counted(
    tags: dict[str, tuple[str, ...]], start_ns: int | None, end_ns: int | None, expected: Removal
) -> None:
    """Ends are exclusive, an empty tag is an absent one, a file that may hold other rows is written again."""
    delete = Delete("my db", 'a"b', tags, start_ns, end_ns)
    assert expected == count_removal(OneNode(FILES), delete)  # type: ignore[arg-type]


def test_values_are_bound_and_never_pasted() -> None:
    """A value of a tag is a parameter of the query."""
    sql, parameters = counting_sql(Delete("d", "t", {"x": ("'; DROP",)}))
    assert "DROP" not in sql
    assert ["'; DROP"] == list(parameters.values())
    assert {"x": ("1", "2"), "y": ("3",)} == tag_values([("x", "1"), ("y", "3"), ("x", "2")])


def test_a_retention_removes_whole_slices() -> None:
    """A slice goes when its last row is too old. A table that keeps its rows for ever expires none."""
    assert 10 * DAY_NS == expired_end(12 * DAY_NS + 5, 2 * DAY_NS, DAY_NS)
    assert 9 * DAY_NS == expired_end(12 * DAY_NS - 5, 2 * DAY_NS, DAY_NS)
    assert [None, None, 3] == [expired_before(keep, 5) for keep in (None, KEEP_FOREVER_NS, 2)]
