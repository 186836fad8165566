"""The parts of the shell that need no terminal and no node."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.shell.catalogue import TableNotFound, find_table, tables_of
from headrace.shell.completion import candidates
from headrace.shell.history import HISTORY_BYTES_MAX, history_path, prepare_history
from headrace.shell.line_editor import is_complete
from headrace.shell.statements import parameter_names, read_statements, split
from headrace.shell.variables import VariableInvalid, Variables

TABLES = tables_of(
    [
        {
            "database": "plant",
            "table": "pumps",
            "tags": ["site", "pump"],
            "fields": [{"name": "flow", "type": "float64"}, {"name": "odd name", "type": "bool"}],
        },
        {"database": "iot", "table": "readings", "tags": [], "fields": [{"name": "velocity", "type": "int64"}]},
        {"database": "test", "table": "readings", "tags": [], "fields": []},
    ]
)


@pytest.mark.parametrize(
    ("text", "statements", "rest"),
    [
        ("SELECT 1; SELECT 2", ("SELECT 1",), " SELECT 2"),
        ("SELECT ';' || \"a;b\" || $$;$$ || $x$;$y$;$x$;", ("SELECT ';' || \"a;b\" || $$;$$ || $x$;$y$;$x$",), ""),
        ("SELECT 'it''s;' -- a; b\n; /* ; */ ;;", ("SELECT 'it''s;' -- a; b",), ""),
        (r"SELECT e'\';';", (r"SELECT e'\';'",), ""),
        ("SELECT $name; SELECT 'open; ", ("SELECT $name",), " SELECT 'open; "),
        ("SELECT 1 /* open; ", (), "SELECT 1 /* open; "),
        ("", (), ""),
    ],
)
def test_statements_end_at_a_semicolon(text: str, statements: tuple[str, ...], rest: str) -> None:
    """A `;` in a text, a name or a comment ends nothing; what is open stays."""
    found = split(text)
    assert (statements, rest) == (found.statements, found.rest)


def test_statements_are_read_as_they_arrive() -> None:
    """A statement runs when its `;` is there, and the last one at the end of the input."""
    arrived: list[str] = []

    def lines() -> list[str]:
        return ["SELECT\n", "1; SELECT 2;\n", "-- end\n", "SELECT 3\n"]

    for statement in read_statements(line for line in lines() if not arrived.append(line)):  # type: ignore[func-returns-value]
        if statement == "SELECT\n1":
            assert 2 == len(arrived)
    assert ["SELECT\n1", "SELECT 2", "-- end\nSELECT 3"] == list(read_statements(lines()))
    assert [] == list(read_statements(["-- only a comment\n"]))


def test_a_command_of_the_shell_is_a_line_between_statements() -> None:
    """A backslash within a statement, a text or a comment is part of it."""
    lines = ["-- values\n", "\\set n 1\n", "SELECT 'a\n", "\\d';\n", "  \\x on\n", "SELECT /*\n", "\\q */ 2\n"]
    assert ["\\set n 1", "SELECT 'a\n\\d'", "\\x on", "SELECT /*\n\\q */ 2"] == list(read_statements(lines))


def test_a_statement_gets_the_variables_that_it_names() -> None:
    """A node refuses a value that its SQL does not name; `$` in texts, names and comments names nothing."""
    sql = "SELECT $Pump, '$a', \"$b\", $$ $c $$, x$d /* $e */ FROM t WHERE v > $least -- $f"
    assert {"pump", "least"} == parameter_names(sql)
    variables = Variables({"Pump": "p1", "a": 1})
    variables.set("$LEAST", "2.5")
    assert {"pump": "p1", "least": 2.5} == variables.used_by(sql)
    variables.set("least", "'2.5'")
    assert [("a", 1), ("least", "2.5"), ("pump", "p1")] == variables.items()
    variables.unset("least")
    for wrong in ("least", "a b", ""):
        with pytest.raises(VariableInvalid):
            variables.unset(wrong)


def test_enter_runs_a_complete_input() -> None:
    """Commands and statements with their `;` run; another line is asked for otherwise."""
    assert all(map(is_complete, ("", "\\d", "quit", "SELECT 1;", "SELECT 1; -- done", "SELECT 1; SELECT 2;")))
    assert not any(map(is_complete, ("SELECT 1", "SELECT ';", "SELECT 1; SELECT 2")))


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("SELECT * FROM pl", "", "plant.pumps"),
        ("SELECT * FROM pu", "", "pumps"),
        ("SELECT fl", " FROM plant.pumps", "flow"),
        ("SELECT avg(fl", ") FROM pumps", "flow"),
        ("SEL", "", "SELECT"),
        ("sel", "", "select"),
        ("\\t", "", "\\timing"),
        ("\\d pl", "", "plant.pumps"),
        ("SELECT vel", "", "velocity"),
    ],
)
def test_completion(before: str, after: str, expected: str) -> None:
    """Tables behind FROM, columns of the tables that are named, keywords in the user's case, commands."""
    texts = [text for text, length in candidates(before, before + after, TABLES) if before.endswith(before[-length:])]
    assert expected == texts[0]


def test_names_with_spaces_are_quoted() -> None:
    """A completed name is one that SQL takes."""
    assert '"odd name"' in [text for text, _ in candidates('SELECT "o', 'SELECT "o FROM pumps', TABLES)]


def test_a_table_is_found_by_any_name() -> None:
    """With or without its database, in any case; an unknown or ambiguous name names what to write."""
    assert "plant.pumps" == find_table(TABLES, "PUMPS").full_name == find_table(TABLES, '"plant".pumps').full_name
    with pytest.raises(TableNotFound, match=r"did you mean plant\.pumps"):
        find_table(TABLES, "pump")
    with pytest.raises(TableNotFound, match=r"iot\.readings or test\.readings"):
        find_table(TABLES, "readings")


def test_the_history_is_private_and_bounded(tmp_path: Path) -> None:
    """It is in the state directory, for its user alone, and loses its older half when it is too large."""
    path = history_path({"XDG_STATE_HOME": str(tmp_path / "state")})
    assert tmp_path / "state" / "headrace" / "sql_history" == path
    assert Path("/home/me/.local/state/headrace/sql_history") == history_path(
        {"XDG_STATE_HOME": "x", "HOME": "/home/me"}
    )
    prepare_history(path)
    assert 0o600 == path.stat().st_mode & 0o777
    entry = "\n# 2026-01-01 00:00:00\n+SELECT {};\n"
    path.write_text("".join(entry.format(number) for number in range(30_000)))
    assert path.stat().st_size > HISTORY_BYTES_MAX
    prepare_history(path)
    kept = path.read_text()
    assert len(kept) <= HISTORY_BYTES_MAX // 2
    assert kept.startswith("\n# 2026")
    assert kept.endswith("SELECT 29999;\n")
    assert 0o600 == path.stat().st_mode & 0o777
