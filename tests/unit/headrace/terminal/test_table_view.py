"""Rows at the widths of terminals."""

from __future__ import annotations

import sys

import pytest
from rich.cells import cell_len

from headrace.terminal.output import Output, terminal_width
from headrace.terminal.table_view import Column, cut, render
from tests.terminal import terminal

COLUMNS = [Column("name"), Column("count", numeric=True), Column("text")]
ROWS = [["pump-1", "12345678", "short"], ["pump-2", "9", "a text that is far too long for a narrow terminal, " * 3]]


@pytest.mark.parametrize("width", [20, 40, 80, 200, None])
def test_no_line_is_wider_than_the_terminal(width: int | None) -> None:
    """Every line fits, numbers are whole, and a pipe gets everything."""
    lines = render(COLUMNS, ROWS, width)
    assert all(cell_len(line) <= (width or 10_000) for line in lines)
    text = "\n".join(lines)
    assert "12345678" in text
    assert (ROWS[1][2] in text) == (width in (200, None))


def test_a_row_that_does_not_fit_is_a_record() -> None:
    """Cells are cut while columns stay readable; below that each row is a record of name and value."""
    wide = render(COLUMNS, ROWS, 80)
    assert "┃ name   ┃    count ┃ text" in wide[1]
    assert "…+" in wide[4]
    narrow = render(COLUMNS, ROWS, 30)
    assert narrow[0].startswith("── 1 ─")
    assert "name   pump-1" == narrow[1]
    many = [Column(f"column_{number}", numeric=True) for number in range(30)]
    assert 31 == len(render(many, [[str(number) for number in range(30)]], 80))


def test_a_cut_cell_counts_what_is_left_out() -> None:
    """The characters shown and the number left out make the whole; wide characters count twice."""
    for text in ("x" * 100, "温度" * 50, "é" * 11):
        for width in range(5, 30):
            short = cut(text, width)
            assert cell_len(short) <= width
            if short != text:
                shown, _, hidden = short.partition("…+")
                assert len(text) == len(shown) + int(hidden)
    assert "short" == cut("short", 5)


def test_cells_of_a_key_are_whole() -> None:
    """What is named can be typed: the others are cut, and where that is not enough each row is a record."""
    key = "cluster.topic_min_insync_replicas"
    columns, rows = [Column("setting", whole=True), Column("meaning")], [[key, "copies that must have a record " * 3]]
    for width in (80, 60, 50):
        assert key in "\n".join(render(columns, rows, width))


def test_data_cannot_steer_the_terminal() -> None:
    """Escape sequences and newlines in data are pictures on a terminal, and stay as they are in a pipe."""
    rows = [["a\x1b[2Jb\nc", "1", "\u202eabc"]]
    for vertical in (None, True):
        text = "".join(render(COLUMNS, rows, 80, vertical=vertical))
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "a␛[2Jb␊c" in text
    assert "\x1b[2J" in "".join(render(COLUMNS, rows, None))


def test_no_rows_are_a_header() -> None:
    """An answer without rows still shows its columns where they fit."""
    assert 4 == len(render(COLUMNS, [], 80))


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_output_takes_the_width_of_its_terminal(columns: int) -> None:
    """A process in a pseudo-terminal renders for the width of that terminal."""
    code = (
        "from headrace.terminal.output import Output;"
        "Output().table(('group', 'role', 'address'), [('n1', 'leader', 'http://' + 'x' * 90)])"
    )
    with terminal(sys.executable, "-c", code, columns=columns) as running:
        status, text = running.wait()
    assert 0 == status
    assert max(map(cell_len, text.splitlines())) <= columns
    assert ("…+" in text) == (columns < 200)


def test_a_pipe_has_no_width(capsys: pytest.CaptureFixture[str]) -> None:
    """Where stdout is no terminal nothing is cut."""
    assert terminal_width() is None
    Output().table(("a",), [("x" * 500,)])
    assert "x" * 500 in capsys.readouterr().out
