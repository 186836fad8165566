"""Splits what is typed or read into statements at `;`, outside of quotes and comments; and what it reads from files."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from headrace.terminal.command import UsageInvalid

BYTE_ORDER_MARK = "\ufeff"
# The alternatives without an end match a text that is still open at the end of the input.
_PARTS = re.compile(
    r"""
    (?P<comment>--[^\n]*|/\*.*?\*/)
    | (?P<quoted>[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|"(?:[^"]|"")*"|\$(?P<tag>[A-Za-z_]\w*|)\$.*?\$(?P=tag)\$)
    | (?P<open>/\*|['"]|\$(?:[A-Za-z_]\w*|)\$)
    | (?P<end>;)
    | (?P<other>\w+|\s+|.)
    """,
    re.DOTALL | re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Split:
    """The complete statements of a text, without their `;`, and the rest behind the last one."""

    statements: tuple[str, ...]
    rest: str

    @property
    def rest_has_content(self) -> bool:
        """Whether the rest has more than spaces and comments."""
        return any(_kind(part) != "comment" and not _is_space(part) for part in _parts(self.rest))


def split(text: str) -> Split:
    """Split a text at `;`. Statements without content, such as those of `;;`, are left out."""
    statements: list[str] = []
    begin, has_content = 0, False
    for part in _parts(text):
        kind = _kind(part)
        if kind == "open":
            break
        if kind == "end":
            if has_content:
                statements.append(text[begin : part.start()].strip())
            begin, has_content = part.end(), False
        elif kind == "quoted" or (kind == "other" and not _is_space(part)):
            has_content = True
    return Split(tuple(statements), text[begin:])


def read_statements(lines: Iterable[str]) -> Iterator[str]:
    """The statements of lines as they arrive, and at the end what has no `;`.

    Between two statements a line that begins with a backslash is a command of the shell.
    """
    held = ""
    for line in lines:
        if line.lstrip().startswith("\\") and not Split((), held).rest_has_content:
            yield line.strip()
            held = ""
            continue
        held += line
        # Most lines end no statement: those need no search from the beginning.
        if ";" in line:
            found = split(held)
            yield from found.statements
            held = found.rest
    found = split(held)
    yield from found.statements
    if found.rest_has_content:
        yield found.rest.strip()


def parameter_names(statement: str) -> set[str]:
    """The names that a statement writes as `$name`, in lower case; not those in texts, names and comments."""
    names = set[str]()
    before, last = "", ""
    for part in _parts(statement):
        # A `$` behind a letter is a part of a name.
        if last == "$" and not before[-1:].isalnum() and part["other"] and not _is_space(part):
            names.add(part[0].lower())
        before, last = last, part[0]
    return names


def read_sql(file: str) -> str:
    """The text of a file with SQL. Raises UsageInvalid."""
    try:
        return Path(file).expanduser().read_text(encoding="utf-8").removeprefix(BYTE_ORDER_MARK)
    except FileNotFoundError:
        raise UsageInvalid(f"{file}: no such file") from None
    except UnicodeDecodeError:
        raise UsageInvalid(f"{file} is not text in UTF-8", action="give a file with SQL") from None
    except RuntimeError as error:
        # Of `~NAME` where there is no user of the name.
        raise UsageInvalid(f"{file}: {error}") from None
    except OSError as error:
        raise UsageInvalid(f"{file}: {error.strerror}") from None


def input_lines(stream: TextIO) -> Iterator[str]:
    """The lines of a stream with SQL, as they arrive. Raises UsageInvalid for bytes that are no text."""
    if isinstance(stream, io.TextIOWrapper):
        # Under some locales Python lets such bytes pass.
        stream.reconfigure(errors="strict")
    try:
        yield from stream
    except UnicodeDecodeError:
        raise UsageInvalid("standard input is not text in UTF-8", action="give it SQL") from None


def _parts(text: str) -> Iterator[re.Match[str]]:
    return _PARTS.finditer(text)


def _kind(part: re.Match[str]) -> str:
    return next(name for name in ("comment", "quoted", "open", "end", "other") if part[name] is not None)


def _is_space(part: re.Match[str]) -> bool:
    return part[0].isspace()
