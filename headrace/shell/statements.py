"""Splits what is typed or read into statements at `;`, outside of quotes and comments."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

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
    """The statements of lines as they arrive, and at the end what has no `;`."""
    held = ""
    for line in lines:
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


def _parts(text: str) -> Iterator[re.Match[str]]:
    return _PARTS.finditer(text)


def _kind(part: re.Match[str]) -> str:
    return next(name for name in ("comment", "quoted", "open", "end", "other") if part[name] is not None)


def _is_space(part: re.Match[str]) -> bool:
    return part[0].isspace()
