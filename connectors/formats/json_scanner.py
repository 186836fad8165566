"""One JSON text, read with care: the definition of what a line of JSON means."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from connectors.formats.line_scanner import BadLine

_MEMBER = re.compile(
    rb'[ \t]*"(?P<name>[^"\\]*)"[ \t]*:[ \t]*'
    rb'(?:"(?P<text>[^"\\]*)"|(?P<number>-?[0-9][0-9.eE+-]*)|(?P<word>true|false|null))[ \t]*(?P<end>[,}])'
)


class Number(str):
    """A number as it stands in the text (`NaN`, `Infinity` and `-Infinity` too), so that nothing of it is lost before its type is known."""

    __slots__ = ()


Scalar = Number | str | bool | None


@dataclass(frozen=True, slots=True)
class Member:
    """A member of an object and where its value stands in the line; quotes are outside."""

    name: str
    value: Scalar
    start: int
    end: int


class _Objects(list[tuple[str, object]]):
    """The members of one object, in order, repeated names too."""


def read_objects(text: str) -> list[dict[str, Scalar] | BadLine]:
    """The objects of a text that is one object or an array of objects; a bad element is its error. Raises BadLine when the text is not JSON."""
    try:
        document = _DECODER.decode(text)
    except RecursionError:
        raise BadLine("the JSON is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise BadLine(f"not JSON: {error.msg} at character {error.pos}") from None
    except ValueError as error:
        raise BadLine(f"not JSON: {error}") from None
    if isinstance(document, list) and not isinstance(document, _Objects):
        return [_flat(element) for element in document]
    return [_flat(document)]


def plain_members(line: bytes) -> list[Member] | None:
    """The members of a flat object without escapes and where their values stand; None for any other line."""
    place = line.find(b"{") + 1
    if not place or line[: place - 1].strip(b" \t"):
        return None
    members: list[Member] = []
    while True:
        found = _MEMBER.match(line, place)
        if found is None:
            return None
        members.append(_member(found))
        place = found.end()
        if found["end"] == b"}":
            return members if not line[place:].strip(b" \t") else None


def _member(found: re.Match[bytes]) -> Member:
    group = "text" if found["text"] is not None else "number" if found["number"] is not None else "word"
    raw = found[group].decode()
    value: Scalar = raw
    if group == "number":
        value = Number(raw)
    elif group == "word":
        value = {"true": True, "false": False, "null": None}[raw]
    return Member(found["name"].decode(), value, found.start(group), found.end(group))


def _flat(document: object) -> dict[str, Scalar] | BadLine:
    if not isinstance(document, _Objects):
        return BadLine("a reading must be a JSON object")
    for problem in _problems(document):
        return BadLine(problem)
    return dict(document)  # type: ignore[arg-type]


def _problems(members: _Objects) -> Iterator[str]:
    seen: set[str] = set()
    for name, value in members:
        if name in seen:
            yield f"member {name!r} is given twice"
        seen.add(name)
        if isinstance(value, list):
            kind = "an object" if isinstance(value, _Objects) else "an array"
            yield f"member {name!r} is {kind}: readings are flat"
        for text in (name, value):
            if isinstance(text, str) and not text.isascii() and not _encodable(text):
                yield f"member {name!r} holds half of a character pair"


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


_DECODER = json.JSONDecoder(object_pairs_hook=_Objects, parse_int=Number, parse_float=Number, parse_constant=Number)
