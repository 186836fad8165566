"""What a command prints: data on stdout, everything else on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.terminal.progress_bar import Advance

WIDTH_OF_A_PIPE = 10_000


class Output:
    """Where a command's data and remarks go. With `json_output` stdout gets exactly one JSON document."""

    def __init__(self, json_output: bool = False) -> None:
        self.json_output = json_output

    def result(self, document: Mapping[str, Any], text: str | Callable[[], None] | None = None) -> None:
        """The result of a command: `document` as JSON, or for people `text` (or whatever calling it prints)."""
        if self.json_output:
            self.json(document)
        elif callable(text):
            text()
        elif text is not None:
            self.line(text)
        else:
            self.table(("name", "value"), ((name, _cell(value)) for name, value in document.items()))

    def json(self, document: Any) -> None:
        """One JSON document on a line of its own; paths and times as strings."""
        self.line(json.dumps(document, default=str, ensure_ascii=False))

    def line(self, text: str) -> None:
        """A line of data on stdout."""
        sys.stdout.write(f"{text}\n")
        # A script that reads a pipe acts on each line while the command runs, such as on an address.
        sys.stdout.flush()

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> None:
        """A table for people on stdout; numbers are right-aligned, None is empty."""
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        cells = [tuple(row) for row in rows]
        table = Table(title=title, title_justify="left")
        for index, column in enumerate(columns):
            numeric = bool(cells) and all(isinstance(row[index], int | float) for row in cells)
            table.add_column(column, justify="right" if numeric else "left", overflow="fold")
        for row in cells:
            # Text, because rich would take brackets in a plain string for markup and drop them.
            table.add_row(*(Text(_cell(value)) for value in row))
        # A pipe has no width: rich would fold at 80 columns what a script reads line by line.
        console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else WIDTH_OF_A_PIPE)
        console.print(table, crop=False)

    def note(self, message: str) -> None:
        """A remark for people on stderr, such as what the command waits for."""
        sys.stderr.write(f"{message}\n")
        sys.stderr.flush()

    @contextmanager
    def progress(self, description: str, total: int | None = None, unit: str = "rows") -> Iterator[Advance]:
        """A bar on stderr with rate and remaining time, on a terminal only.

        Yields the function that advances it.
        """
        if not sys.stderr.isatty():
            yield _no_display
            return
        # rich.progress is loaded for a terminal only: most commands run in scripts.
        from headrace.terminal.progress_bar import progress_bar

        with progress_bar(description, total, unit) as advance:
            yield advance


def refused_lines(count: int, more: str = "") -> str:
    """`1 line refused`, `2 lines refused`."""
    return f"{count:,} {more}{'line' if count == 1 else 'lines'} refused"


def _no_display(count: int, total: int | None = None) -> None:
    del count, total


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple | set):
        return ", ".join(map(str, value))
    return str(value)
