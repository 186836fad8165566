"""What a command prints: data on stdout, everything else on stderr."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from headrace.terminal.progress_bar import Advance

_PLAIN_BORDERS = str.maketrans("┏┓┡┩└┘┳╇┴━─┃│…", "+++++++++--||~")


def terminal_width() -> int | None:
    """The columns of the terminal that stdout is; None for a pipe, which a script reads line by line."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def print_lines(lines: Iterable[str]) -> None:
    """Lines of data on stdout, with plain borders where its encoding has no others."""
    text = "".join(f"{line}\n" for line in lines)
    encoding = sys.stdout.encoding or "utf-8"
    if not encoding.lower().replace("-", "").startswith("utf"):
        text = text.translate(_PLAIN_BORDERS).encode(encoding, "backslashreplace").decode(encoding)
    sys.stdout.write(text)
    sys.stdout.flush()


def json_line(document: Any, stream: TextIO) -> str:
    """JSON for a stream, on one line: texts as they are, or escaped where the stream cannot have them."""
    text = json.dumps(document, default=str, ensure_ascii=False)
    try:
        # A name that is no UTF-8 has halves of surrogate pairs. As bytes they would make the document unreadable.
        text.encode(stream.encoding or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(document, default=str)
    return text


def print_remark(text: str) -> None:
    """Lines on stderr, dropped where they cannot be written, as after the end of a terminal."""
    # A command that stops its processes must not leave them because nobody can read about it.
    with suppress(OSError, ValueError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


class Output:
    """Where a command's data and remarks go. With `json_output` stdout gets exactly one JSON document."""

    def __init__(self, json_output: bool = False) -> None:
        self.json_output = json_output
        self.left_running = ""
        """What continues when Ctrl-C ends the command now, and what to do about it."""

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
        self.line(json_line(document, sys.stdout))

    def line(self, text: str) -> None:
        """A line of data on stdout."""
        sys.stdout.write(f"{text}\n")
        # A script that reads a pipe acts on each line while the command runs, such as on an address.
        sys.stdout.flush()

    def table(
        self, columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None, *, key: str = ""
    ) -> None:
        """A table for people on stdout; numbers are right-aligned, None is empty, and cells of column `key` are whole.

        Where a row does not fit the terminal, each row is a record of several lines.
        """
        from headrace.terminal.table_view import Column, render

        values = [tuple(row) for row in rows]
        numeric = [_is_numeric([row[index] for row in values]) for index in range(len(columns))]
        named = [Column(name, number, name == key) for name, number in zip(columns, numeric, strict=True)]
        if title:
            self.line(title)
        print_lines(render(named, [[_cell(value) for value in row] for row in values], terminal_width()))

    def note(self, message: str) -> None:
        """A remark for people on stderr, such as what the command waits for."""
        print_remark(message)

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


def one_line(document: Iterable[bytes]) -> Iterator[bytes]:
    """A JSON document without its line ends, which are between values alone, and with one at its end."""
    for part in document:
        yield part.replace(b"\n", b"")
    yield b"\n"


def counted(count: int, noun: str) -> str:
    """`1 row`, `2,000 rows`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def refused_lines(count: int, more: str = "") -> str:
    """`1 line refused`, `2 lines refused`."""
    return f"{count:,} {more}{'line' if count == 1 else 'lines'} refused"


def _no_display(count: int, total: int | None = None) -> None:
    del count, total


def _is_numeric(values: Sequence[object]) -> bool:
    """Whether a column has numbers, and nothing else but empty cells; yes and no are none."""
    known = [value for value in values if value is not None]
    return bool(known) and all(isinstance(value, int | float) and not isinstance(value, bool) for value in known)


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple | set):
        return ", ".join(map(str, value))
    return str(value)
