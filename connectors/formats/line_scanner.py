r"""The scanner of Influx line protocol: it defines what a line means.

The grammar is that of InfluxDB with the escapes of its version 3. In names and tags they are `\\`, `\,`, `\=`
and `\ ` (in a measurement not `\=`), in quoted strings `\"` and `\\`. Any other backslash is an ordinary
character.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from headrace.connectors.formats.interface import FieldValue, InvalidLine, check_column, name_error
from headrace.connectors.formats.text_columns import (
    FALSE_WORDS,
    FLOAT_TEXT,
    INTEGER_TEXT,
    NOT_FINITE_TEXT,
    TRUE_WORDS,
    float_of,
    integer_of,
)
from headrace.schemas.tables import FieldType

# Possessive quantifiers (`++`, `*+`) never backtrack: a line of any length is scanned in linear time.
_MEASUREMENT = re.compile(r"(?:[^ ,\\]++|\\.|\\\Z)*+", re.DOTALL)
_NAME = re.compile(r"(?:[^ ,=\\]++|\\.|\\\Z)*+", re.DOTALL)
_STRING = re.compile(r'"((?:[^"\\]++|\\.)*+)"', re.DOTALL)
_TOKEN = re.compile(r"[^ ,]*")
_MEASUREMENT_ESCAPE = re.compile(r"\\([\\, ])")
_NAME_ESCAPE = re.compile(r"\\([\\,= ])")
_STRING_ESCAPE = re.compile(r'\\([\\"])')


class UnterminatedString(InvalidLine):
    """The line ends inside a quoted string, which the next line may continue."""


@dataclass(frozen=True, slots=True)
class Series:
    """The part of a line that identifies its series: table and tags in the order of the line, up to `end`."""

    table: str
    tags: tuple[tuple[str, str], ...]
    end: int


@dataclass(frozen=True, slots=True)
class ScannedField:
    """One field: its value, and the positions of its name and of its value with quotes and suffix."""

    name: str
    kind: FieldType
    value: FieldValue
    name_start: int
    value_start: int
    value_end: int


@dataclass(frozen=True, slots=True)
class ScannedLine:
    """One reading. `time` is in the unit of the input; None if the line has none."""

    series: Series
    fields: tuple[ScannedField, ...]
    time: int | None


def scan_line(line: str) -> ScannedLine | None:
    """Read one line (without terminator); None for a blank line or a comment. Raises InvalidLine."""
    line = line.rstrip(" \t")
    start = len(line) - len(line.lstrip(" \t"))
    if start == len(line) or line[start] == "#":
        return None
    series = scan_series(line, start)
    position = _skip_spaces(line, series.end)
    if position == series.end:
        raise InvalidLine(
            "no fields after the measurement and its tags" if position == len(line) else "a space must follow the tags"
        )
    fields, position = _scan_fields(line, position)
    time = line[_skip_spaces(line, position) :]
    return ScannedLine(series, fields, _scan_time(time) if time else None)


def scan_series(line: str, start: int = 0) -> Series:
    """Read measurement and tags from `start` to the first unescaped space, or the end. Raises InvalidLine."""
    found = _match(_MEASUREMENT, line, start)
    if not found[0]:
        raise InvalidLine("the measurement is missing")
    table, position = _unescape(_MEASUREMENT_ESCAPE, found[0]), found.end()
    check_column("table", table)
    tags: dict[str, str] = {}
    while position < len(line) and line[position] == ",":
        name, value, position = _scan_tag(line, position + 1)
        if name in tags:
            raise InvalidLine(f"tag {name!r} is given twice")
        tags[name] = value
    return Series(table, tuple(tags.items()), position)


@lru_cache(maxsize=65_536)
def parse_series(text: str) -> Series | None:
    """The series that is the whole text; None if the text is anything else."""
    # Cached across parses: producers write the same series in every message.
    plain = _plain_series(text) if "\\" not in text else None
    if plain is not None or text.startswith("#") or ends_in_escape(text):
        return plain
    try:
        series = scan_series(text)
    except InvalidLine:
        return None
    return series if series.end == len(text) else None


def _plain_series(text: str) -> Series | None:
    """A series without escapes, split without regular expressions; None sends the text to the scanner."""
    table, *pairs = text.split(",")
    halves = [pair.split("=") for pair in pairs]
    if " " in text or not table or any(len(half) != 2 or not half[1] for half in halves) or text[0] == "#":
        return None
    if name_error("table", table) or not _tag_names_fit(tuple(half[0] for half in halves)):
        return None
    return Series(table, tuple((name, value) for name, value in halves), len(text))


@lru_cache(maxsize=4_096)
def _tag_names_fit(names: tuple[str, ...]) -> bool:
    return len(set(names)) == len(names) and not any(name_error("tag", name) for name in names)


def ends_in_escape(text: str) -> bool:
    """Whether the last backslash of `text` would escape what follows it."""
    return (len(text) - len(text.rstrip("\\"))) % 2 == 1


def _scan_tag(line: str, start: int) -> tuple[str, str, int]:
    found = _match(_NAME, line, start)
    name, position = _unescape(_NAME_ESCAPE, found[0]), found.end()
    if position >= len(line) or line[position] != "=":
        raise InvalidLine(f"tag {name!r} has no value" if name else "a tag is missing after a comma")
    check_column("tag", name)
    found = _match(_NAME, line, position + 1)
    if not found[0]:
        raise InvalidLine(f"tag {name!r} has no value")
    if found.end() < len(line) and line[found.end()] == "=":
        raise InvalidLine(f"the value of tag {name!r} has an equals sign that is not escaped")
    return name, _unescape(_NAME_ESCAPE, found[0]), found.end()


def _scan_fields(line: str, position: int) -> tuple[tuple[ScannedField, ...], int]:
    fields: dict[str, ScannedField] = {}
    while True:
        scanned = _scan_field(line, position)
        if scanned.name in fields:
            raise InvalidLine(f"field {scanned.name!r} is given twice")
        fields[scanned.name] = scanned
        position = scanned.value_end
        if position < len(line) and line[position] == ",":
            position += 1
            continue
        if position < len(line) and line[position] != " ":
            raise InvalidLine(f"unexpected {line[position]!r} after field {scanned.name!r}")
        return tuple(fields.values()), position


def _scan_field(line: str, start: int) -> ScannedField:
    found = _match(_NAME, line, start)
    name, position = _unescape(_NAME_ESCAPE, found[0]), found.end()
    if position >= len(line) or line[position] != "=":
        raise InvalidLine(f"field {name!r} has no value" if name else "a field is missing")
    check_column("field", name)
    position += 1
    if line.startswith('"', position):
        quoted = _STRING.match(line, position)
        if quoted is None:
            raise UnterminatedString(f"the string of field {name!r} is not closed")
        text = _unescape(_STRING_ESCAPE, quoted[1])
        return ScannedField(name, FieldType.STRING, text, start, position, quoted.end())
    token = _match(_TOKEN, line, position)[0]
    kind, value = _scan_value(name, token)
    return ScannedField(name, kind, value, start, position, position + len(token))


def _scan_value(name: str, token: str) -> tuple[FieldType, FieldValue]:
    if token in TRUE_WORDS or token in FALSE_WORDS:
        return FieldType.BOOL, token in TRUE_WORDS
    number = float_of(token)
    if number is not None:
        return FieldType.FLOAT64, number
    if NOT_FINITE_TEXT.fullmatch(token):
        return FieldType.FLOAT64, float(token)
    if token[-1:] in ("i", "u") and INTEGER_TEXT.fullmatch(token, 0, len(token) - 1):
        whole = integer_of(token[:-1])
        if whole is None or (token[-1] == "u" and token[0] == "-"):
            raise InvalidLine(f"the integer {_short(token)} of field {name!r} does not fit int64")
        return FieldType.INT64, whole
    if FLOAT_TEXT.fullmatch(token):
        raise InvalidLine(f"the number {_short(token)} of field {name!r} does not fit float64")
    if not token:
        raise InvalidLine(f"field {name!r} has no value")
    raise InvalidLine(f"the value {_short(token)} of field {name!r} is no number, boolean or quoted string")


def _scan_time(text: str) -> int:
    if INTEGER_TEXT.fullmatch(text) is None:
        raise InvalidLine(f"the time {_short(text)} is not an integer")
    whole = integer_of(text)
    if whole is None:
        raise InvalidLine(f"the time {_short(text)} does not fit int64")
    return whole


def time_to_ns(time: int, ns_per_unit: int) -> int:
    """A time of the input in nanoseconds. Raises InvalidLine when it is outside int64."""
    nanoseconds = time * ns_per_unit
    if not -(2**63) <= nanoseconds < 2**63:
        raise InvalidLine(f"the time {time} is outside the years 1677 to 2262 of int64 nanoseconds")
    return nanoseconds


def _match(pattern: re.Pattern[str], line: str, start: int) -> re.Match[str]:
    found = pattern.match(line, start)
    assert found is not None
    return found


def _skip_spaces(line: str, position: int) -> int:
    while position < len(line) and line[position] == " ":
        position += 1
    return position


def _unescape(pattern: re.Pattern[str], text: str) -> str:
    return pattern.sub(r"\1", text) if "\\" in text else text


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "…")
