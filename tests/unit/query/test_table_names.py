"""How names in a statement resolve to tables."""

from __future__ import annotations

import pytest

from headrace.consumers.query.guard import TableName
from headrace.consumers.query.query_errors import UnknownTable
from headrace.consumers.query.table_names import resolve

KNOWN = [
    ("iot", "readings"),
    ("iot", "Diagnostics"),
    ("Plant A", "Line 1"),
    ("lab", "readings"),
    ("a.b", "c"),
    ("a", "b.c"),
]


def names(*paths: tuple[str, ...]) -> list[TableName]:
    """Table names without positions."""
    return [TableName(path) for path in paths]


def test_database_and_table_are_found_whatever_their_case() -> None:
    """`database.table` is compared as SQL compares names."""
    found = resolve(names(("IOT", "READINGS"), ("plant a", "line 1")), frozenset(), KNOWN)
    assert (("Plant A", "Line 1"), ("iot", "readings")) == found.tables


def test_a_bare_name_is_enough_where_one_database_has_it() -> None:
    """A table's name alone is enough when it is the only one of that name."""
    assert {("diagnostics",): ("iot", "Diagnostics")} == resolve(names(("diagnostics",)), frozenset(), KNOWN).by_path


def test_a_bare_name_of_several_databases_is_refused_with_the_choices() -> None:
    """Nothing is guessed where two databases have the table."""
    with pytest.raises(UnknownTable) as raised:
        resolve(names(("readings",)), frozenset(), KNOWN)
    assert "iot.readings" in raised.value.action
    assert "lab.readings" in raised.value.action


@pytest.mark.parametrize(
    ("path", "near"),
    [
        (("iot", "reading"), "iot.readings"),
        (("iott", "readings"), "iot.readings"),
        (("nowhere", "diagnostics"), "iot.Diagnostics"),
        (("diagnostic",), "iot.Diagnostics"),
    ],
)
def test_an_unknown_table_is_answered_with_near_names(path: tuple[str, ...], near: str) -> None:
    """The error for a misspelt name has near names."""
    with pytest.raises(UnknownTable) as raised:
        resolve(names(path), frozenset(), KNOWN)
    assert near in raised.value.action


def test_a_near_name_is_quoted_as_sql_needs_it() -> None:
    """With a quote or a space in it, a digit at its start, or as a keyword; letters of any language need none."""
    known = [("Größe", 'ta ble"q'), ("order", "readings"), ("lab", "1st")]
    for path, near in (
        (("größe", "tableq"), 'Größe."ta ble""q"'),
        (("orders", "readings"), '"order".readings'),
        (("lab", "st"), 'lab."1st"'),
    ):
        with pytest.raises(UnknownTable) as raised:
            resolve(names(path), frozenset(), known)
        assert f"did you mean {near}?" == raised.value.action
    with pytest.raises(UnknownTable, match="several") as raised:
        resolve(names(("a b",)), frozenset(), [("x", "a b"), ("y", "a b")])
    assert 'write x."a b" or y."a b"' == raised.value.action


@pytest.mark.parametrize(
    "path", [("memory", "iot", "readings"), ("information_schema", "tables"), ("/etc/passwd",), ("duckdb_settings",)]
)
def test_catalogs_of_the_engine_and_files_are_no_tables(path: tuple[str, ...]) -> None:
    """Names that DuckDB would resolve are unknown tables here."""
    with pytest.raises(UnknownTable):
        resolve(names(path), frozenset(), KNOWN)


def test_names_with_dots_do_not_mix() -> None:
    """`"a.b"."c"` and `a."b.c"` are two tables."""
    found = resolve(names(("a.b", "c"), ("a", "b.c")), frozenset(), KNOWN)
    assert {("a.b", "c"): ("a.b", "c"), ("a", "b.c"): ("a", "b.c")} == found.by_path


def test_a_name_of_a_with_clause_needs_no_table() -> None:
    """A name that WITH defines and no database has is not looked up."""
    assert () == resolve(names(("recent",)), frozenset({"recent"}), KNOWN).tables


def test_a_table_under_the_name_of_a_with_clause_is_marked() -> None:
    """Where WITH reuses the name of a table, the table is still provided, and marked so that nothing is narrowed."""
    assert (
        frozenset({("iot", "Diagnostics")})
        == resolve(names(("diagnostics",)), frozenset({"diagnostics"}), KNOWN).shadowed
    )


def test_an_empty_cluster_has_its_own_message() -> None:
    """In an empty cluster the message says that there are no tables."""
    with pytest.raises(UnknownTable) as raised:
        resolve(names(("iot", "readings")), frozenset(), [])
    assert "nothing has been written yet" == raised.value.action
