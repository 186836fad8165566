"""Rows as text for a terminal of a given width.

A table where a row fits; else the widest cells are cut; else each row is a record of `name  value` lines. A cut cell
ends with an ellipsis and the number of characters left out, so that no reader takes a part for the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len, set_cell_size

CELL_WIDTH_MIN = 16
"""A column is not cut below this, nor below its name: rows that need more become records."""
RECORD_VALUE_WIDTH_MIN = 8
_PADDING = 3
_CONTROL = {code: chr(0x2400 + code) for code in range(32)} | {0x7F: "␡"}
# What turns the direction of a line or joins it with the next one.
_CONTROL |= dict.fromkeys((*range(0x80, 0xA0), 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A)), "�")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; numbers are right-aligned. `whole`: a part of a cell is of no use, so none is cut."""

    name: str
    numeric: bool = False
    whole: bool = False


def render(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None, *, vertical: bool | None = None
) -> list[str]:
    """The lines of a table. `width` is that of the terminal; None for a pipe, where nothing is cut.

    `vertical` forces records, or a table that may be wider than the terminal.
    """
    if width is None:
        return _records(columns, rows, None) if vertical else _table(columns, rows, _widths(columns, rows))
    columns = [replace(column, name=printable(column.name)) for column in columns]
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = _widths(columns, rows)
    if vertical is False:
        return _table(columns, rows, widths)
    fitting = None if vertical else _fitted(columns, widths, width)
    return _records(columns, rows, width) if fitting is None else _table(columns, rows, fitting)


def printable(text: str) -> str:
    """A text on one line, with a picture for each control character: data must not steer a terminal."""
    return text.translate(_CONTROL)


def cut(text: str, width: int) -> str:
    """A text of at most `width` cells: its beginning, an ellipsis and the number of characters left out."""
    if cell_len(text) <= width:
        return text
    for shown in range(min(len(text), width), -1, -1):
        short = f"{text[:shown]}…+{len(text) - shown}"
        if cell_len(short) <= width:
            return short
    return set_cell_size("…", width)


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max([cell_len(column.name), *(_width(row[index]) for row in rows)]) for index, column in enumerate(columns)]


def _width(cell: str) -> int:
    return max(map(cell_len, cell.split("\n")))


def _fitted(columns: Sequence[Column], widths: list[int], width: int) -> list[int] | None:
    """Widths of columns that fit, the widest ones cut first; None where they would become too narrow."""
    # Numbers are never cut: a part of a number is another number.
    least = [
        each if column.numeric or column.whole else min(each, max(CELL_WIDTH_MIN, cell_len(column.name)))
        for column, each in zip(columns, widths, strict=True)
    ]
    left = width - 1 - _PADDING * len(columns)
    if sum(least) > left:
        return None
    # The largest common limit under which all fit.
    low, high = min(least, default=0), max(widths, default=0)
    while low < high:
        middle = (low + high + 1) // 2
        if sum(max(floor, min(each, middle)) for floor, each in zip(least, widths, strict=True)) <= left:
            low = middle
        else:
            high = middle - 1
    return [max(floor, min(each, low)) for floor, each in zip(least, widths, strict=True)]


def _table(columns: Sequence[Column], rows: Sequence[Sequence[str]], widths: Sequence[int]) -> list[str]:
    lines = [_border("┏", "━", "┳", "┓", widths), _row([column.name for column in columns], columns, widths, "┃")]
    lines.append(_border("┡", "━", "╇", "┩", widths))
    for row in rows:
        # Only for a pipe: on a terminal a newline is a picture by now.
        split = [cell.split("\n") for cell in row]
        for number in range(max(map(len, split), default=0)):
            parts = [cell[number] if number < len(cell) else "" for cell in split]
            lines.append(_row(parts, columns, widths, "│"))
    lines.append(_border("└", "─", "┴", "┘", widths))
    return lines


def _border(left: str, line: str, middle: str, right: str, widths: Sequence[int]) -> str:
    return left + middle.join(line * (width + 2) for width in widths) + right


def _row(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int], edge: str) -> str:
    padded = (
        _padded(cut(cell, width), width, column) for cell, width, column in zip(cells, widths, columns, strict=True)
    )
    return f"{edge} " + f" {edge} ".join(padded) + f" {edge}"


def _padded(cell: str, width: int, column: Column) -> str:
    space = " " * (width - cell_len(cell))
    return space + cell if column.numeric else cell + space


def _records(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    names = [column.name for column in columns]
    longest = max(map(cell_len, names), default=0)
    if width is not None:
        longest = min(longest, max(width // 2, width - RECORD_VALUE_WIDTH_MIN - 2))
    value_width = None if width is None else max(RECORD_VALUE_WIDTH_MIN, width - longest - 2)
    lines: list[str] = []
    for number, row in enumerate(rows, 1):
        title = f"── {number} "
        lines.append(title + "─" * (min(width or 40, 40) - len(title)))
        for name, cell in zip(names, row, strict=True):
            label = cut(name, longest)
            value = cell if value_width is None else cut(cell, value_width)
            lines.append(f"{label}{' ' * (longest - cell_len(label))}  {value}".rstrip())
    return lines
