"""The scanner of JSON readings: it defines which table, time, tags and fields a JSON text has.

A reading is a flat object. The options map its members to the table, the time and the tags; the others are
fields.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from headrace.connectors.formats.interface import FieldValue, FormatOptions, InvalidLine, check_column
from headrace.connectors.formats.text_columns import (
    EXACT_FLOAT_MAX,
    INTEGER_TEXT,
    NOT_FINITE_TEXT,
    float_of,
    integer_of,
)
from headrace.schemas.tables import FieldType

MemberRole = Literal["table", "time", "tag", "field"]

_MEMBER = re.compile(
    rb'[ \t]*"(?P<name>[^"\\]*)"[ \t]*:[ \t]*'
    rb'(?:"(?P<text>[^"\\]*)"|(?P<number>-?[0-9][0-9.eE+-]*)|(?P<word>true|false|null))[ \t]*(?P<end>[,}])'
)


class Number(str):
    """A number as it is written, `NaN`, `Infinity` and `-Infinity` too."""

    # Text until its type is known: float64 loses digits of large integers and times; a tag keeps its form.
    __slots__ = ()


Scalar = Number | str | bool | None


@dataclass(frozen=True, slots=True)
class Member:
    """A member of an object, and the positions of its value in the line without quotes."""

    name: str
    value: Scalar
    start: int
    end: int


class JsonMembers(list[tuple[str, object]]):
    """The members of one object in order, with repeated names, which a dict would drop."""


def parse_objects(text: str) -> list[dict[str, Scalar] | InvalidLine]:
    """The objects of a text that is one object or an array of objects; an invalid element is its error.

    Raises InvalidLine if the text is not JSON.
    """
    document = json_document(text)
    if isinstance(document, list) and not isinstance(document, JsonMembers):
        return [_flat(element) for element in document]
    return [_flat(document)]


def json_document(text: str) -> object:
    """A JSON text: objects as JsonMembers, numbers as they are written. Raises InvalidLine."""
    with _as_invalid_line():
        document: object = _DECODER.decode(text)
    return document


def json_documents(text: str) -> list[object]:
    """JSON texts one behind the other, each as `json_document` gives it. Raises InvalidLine."""
    documents: list[object] = []
    position, end = 0, len(text.rstrip(_JSON_SPACE))
    with _as_invalid_line():
        while position < end:
            while text[position] in _JSON_SPACE:
                position += 1
            document, position = _DECODER.raw_decode(text, position)
            documents.append(document)
    return documents


@contextmanager
def _as_invalid_line() -> Iterator[None]:
    """The errors of the decoder as InvalidLine."""
    try:
        yield
    except RecursionError:
        raise InvalidLine("the JSON is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise InvalidLine(f"not JSON: {error.msg.removesuffix(' at')} at character {error.pos}") from None
    except ValueError as error:
        raise InvalidLine(f"not JSON: {error}") from None


def plain_members(line: bytes) -> list[Member] | None:
    """The members of a flat object without escapes; None for any other line."""
    position = line.find(b"{") + 1
    if not position or line[: position - 1].strip(b" \t"):
        return None
    members: list[Member] = []
    while True:
        found = _MEMBER.match(line, position)
        if found is None:
            return None
        members.append(_member(found))
        position = found.end()
        if found["end"] == b"}":
            return members if not line[position:].strip(b" \t") else None


def _member(found: re.Match[bytes]) -> Member:
    group = "text" if found["text"] is not None else "number" if found["number"] is not None else "word"
    raw = found[group].decode()
    value: Scalar = raw
    if group == "number":
        value = Number(raw)
    elif group == "word":
        value = {"true": True, "false": False, "null": None}[raw]
    return Member(found["name"].decode(), value, found.start(group), found.end(group))


def _flat(document: object) -> dict[str, Scalar] | InvalidLine:
    if not isinstance(document, JsonMembers):
        return InvalidLine("a reading must be a JSON object")
    for problem in _problems(document):
        return InvalidLine(problem)
    return dict(document)  # type: ignore[arg-type]


def _problems(members: JsonMembers) -> Iterator[str]:
    seen: set[str] = set()
    for name, value in members:
        if name in seen:
            yield f"member {name!r} is given twice"
        seen.add(name)
        if isinstance(value, list):
            kind = "an object" if isinstance(value, JsonMembers) else "an array"
            yield f"member {name!r} is {kind}: readings are flat"
        for text in (name, value):
            # JSON can escape half of a surrogate pair, which has no UTF-8; Arrow would reject the column.
            if isinstance(text, str) and not text.isascii() and not _encodable(text):
                yield f"member {name!r} holds half of a character pair"


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


_JSON_SPACE = " \t\r\n"
_DECODER = json.JSONDecoder(object_pairs_hook=JsonMembers, parse_int=Number, parse_float=Number, parse_constant=Number)


@dataclass(frozen=True, slots=True)
class MemberMapping:
    """The mapping of members to table, time, tags and fields that the options define."""

    options: FormatOptions

    def role(self, name: str) -> MemberRole:
        """The role of the member `name`. Raises InvalidLine for a field that may not have that name."""
        if name == self.options.table_column:
            return "table"
        if name == self.options.time_column:
            return "time"
        if name in self.options.tags:
            return "tag"
        check_column("field", name)
        return "field"

    def table(self, reading: Mapping[str, Scalar]) -> str:
        """The table of a reading. Raises InvalidLine if it names none."""
        if self.options.table_column is None:
            return self.options.table or ""
        named = reading.get(self.options.table_column)
        if named is None and self.options.table is not None:
            return self.options.table
        if not isinstance(named, str) or isinstance(named, Number):
            member = self.options.source_name(self.options.table_column)
            raise InvalidLine(f"member {member!r} does not name a table")
        check_column("table", named)
        return named

    def tags(self, reading: Mapping[str, Scalar]) -> dict[str, str | None]:
        """The tags of a reading as they were written."""
        present = {name: reading[name] for name in self.options.tags if name in reading}
        return {name: str(value).lower() if isinstance(value, bool) else value for name, value in present.items()}

    def fields(self, table: str, reading: Mapping[str, Scalar]) -> dict[str, tuple[FieldType, FieldValue]]:
        """Type and value of every field that is not null. Raises InvalidLine if none has a value."""
        fields = {}
        for name, value in reading.items():
            if self.role(name) == "field" and value is not None:
                fields[name] = self.value(table, name, value)
        if not fields:
            raise InvalidLine("no field has a value")
        return fields

    def value(self, table: str, name: str, value: Number | str | bool) -> tuple[FieldType, FieldValue]:
        """Type and value of one field: a number is float64, or int64 if declared so and whole."""
        if isinstance(value, bool):
            return FieldType.BOOL, value
        if not isinstance(value, Number):
            return FieldType.STRING, value
        if self.options.declared_types(table).get(name) is FieldType.INT64:
            whole = _integral(name, value)
            if whole is not None:
                return FieldType.INT64, whole
        number = float(value) if NOT_FINITE_TEXT.fullmatch(value) else float_of(value)
        if number is None:
            raise InvalidLine(f"the number of member {name!r} does not fit float64")
        return FieldType.FLOAT64, number


def _integral(name: str, text: str) -> int | None:
    """A number as int64; None if it has a fraction. Raises InvalidLine for an integer that does not fit."""
    if INTEGER_TEXT.fullmatch(text):
        whole = integer_of(text)
        if whole is None:
            raise InvalidLine(f"the integer of member {name!r} does not fit int64")
        return whole
    number = float_of(text)
    return int(number) if number is not None and number.is_integer() and abs(number) < EXACT_FLOAT_MAX else None
