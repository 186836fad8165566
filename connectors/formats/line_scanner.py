r"""One line of Influx line protocol, read with care: the definition of what a line means.

The grammar is that of InfluxDB with the escapes of its third version: in names and tags `\\`, `\,`, `\=` and `\ ` (in a measurement not `\=`)
stand for the character behind the backslash, in quoted strings `\"` and `\\`; any other backslash is itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from connectors.formats.values import (
    FALSE_WORDS,
    FLOAT_TEXT,
    INTEGER_TEXT,
    NOT_FINITE_TEXT,
    TRUE_WORDS,
    float_of,
    integer_of,
)
from schemas.errors import HeadraceError
from schemas.tables import FieldType, check_name

Value = float | int | bool | str

_MEASUREMENT = re.compile(r"(?:[^ ,\\]++|\\.|\\\Z)*+", re.DOTALL)
_NAME = re.compile(r"(?:[^ ,=\\]++|\\.|\\\Z)*+", re.DOTALL)
_STRING = re.compile(r'"((?:[^"\\]++|\\.)*+)"', re.DOTALL)
_TOKEN = re.compile(r"[^ ,]*")
_MEASUREMENT_ESCAPE = re.compile(r"\\([\\, ])")
_NAME_ESCAPE = re.compile(r"\\([\\,= ])")
_STRING_ESCAPE = re.compile(r'\\([\\"])')


class BadLine(Exception):
    """The line is not line protocol; the text says why."""


class OpenString(BadLine):
    """The line ends inside a quoted string: it may go on in the next one."""


@dataclass(frozen=True, slots=True)
class Series:
    """The part of a line that identifies its series: table and tags in the order of the line. `end` is where it stopped."""

    table: str
    tags: tuple[tuple[str, str], ...]
    end: int


@dataclass(frozen=True, slots=True)
class ScannedField:
    """One field: its value, and where in the line its name and the text of its value (quotes and suffix included) stand."""

    name: str
    kind: FieldType
    value: Value
    name_start: int
    value_start: int
    value_end: int


@dataclass(frozen=True, slots=True)
class ScannedLine:
    """One reading. `time` is in the unit of the input; None when the line has none. `time_start` is meaningless then."""

    series: Series
    fields: tuple[ScannedField, ...]
    time: int | None
    time_start: int


def scan_line(line: str) -> ScannedLine | None:
    """Read one line (no terminator). None for a blank line or a comment. Raises BadLine."""
    line = line.rstrip(" \t")
    start = len(line) - len(line.lstrip(" \t"))
    if start == len(line) or line[start] == "#":
        return None
    series = scan_series(line, start)
    place = _skip_spaces(line, series.end)
    if place == series.end:
        raise BadLine(
            "no fields after the measurement and its tags" if place == len(line) else "a space must follow the tags"
        )
    fields, place = _scan_fields(line, place)
    time_start = _skip_spaces(line, place)
    text = line[time_start:]
    if not text:
        return ScannedLine(series, fields, None, time_start)
    return ScannedLine(series, fields, _scan_time(text), time_start)


def scan_series(line: str, start: int = 0) -> Series:
    """Read measurement and tags from `start` up to the first space that is not escaped, or the end. Raises BadLine."""
    found = _match(_MEASUREMENT, line, start)
    if not found[0]:
        raise BadLine("the measurement is missing")
    table, place = _unescape(_MEASUREMENT_ESCAPE, found[0]), found.end()
    check_column("table", table)
    tags: dict[str, str] = {}
    while place < len(line) and line[place] == ",":
        name, value, place = _scan_tag(line, place + 1)
        if name in tags:
            raise BadLine(f"tag {name!r} is given twice")
        tags[name] = value
    return Series(table, tuple(tags.items()), place)


@lru_cache(maxsize=65_536)
def read_series(text: str) -> Series | None:
    """A text that is one series and nothing else; None for anything else."""
    plain = _plain_series(text) if "\\" not in text else None
    if plain is not None or text.startswith("#") or ends_in_escape(text):
        return plain
    try:
        series = scan_series(text)
    except BadLine:
        return None
    return series if series.end == len(text) else None


def _plain_series(text: str) -> Series | None:
    """The common case in few steps: no escapes, nothing wrong. None sends the text to the scanner."""
    table, *pairs = text.split(",")
    halves = [pair.split("=") for pair in pairs]
    if " " in text or not table or any(len(half) != 2 or not half[1] for half in halves) or text[0] == "#":
        return None
    if _name_error("table", table) or not _tag_names_fit(tuple(half[0] for half in halves)):
        return None
    return Series(table, tuple((name, value) for name, value in halves), len(text))


@lru_cache(maxsize=4_096)
def _tag_names_fit(names: tuple[str, ...]) -> bool:
    return len(set(names)) == len(names) and not any(_name_error("tag", name) for name in names)


def ends_in_escape(text: str) -> bool:
    """Whether the last backslash of `text` would escape what follows it."""
    return (len(text) - len(text.rstrip("\\"))) % 2 == 1


def _scan_tag(line: str, start: int) -> tuple[str, str, int]:
    found = _match(_NAME, line, start)
    name, place = _unescape(_NAME_ESCAPE, found[0]), found.end()
    if place >= len(line) or line[place] != "=":
        raise BadLine(f"tag {name!r} has no value" if name else "a tag is missing after a comma")
    check_column("tag", name)
    found = _match(_NAME, line, place + 1)
    if not found[0]:
        raise BadLine(f"tag {name!r} has no value")
    if found.end() < len(line) and line[found.end()] == "=":
        raise BadLine(f"the value of tag {name!r} has an equals sign that is not escaped")
    return name, _unescape(_NAME_ESCAPE, found[0]), found.end()


def _scan_fields(line: str, place: int) -> tuple[tuple[ScannedField, ...], int]:
    fields: dict[str, ScannedField] = {}
    while True:
        scanned = _scan_field(line, place)
        if scanned.name in fields:
            raise BadLine(f"field {scanned.name!r} is given twice")
        fields[scanned.name] = scanned
        place = scanned.value_end
        if place < len(line) and line[place] == ",":
            place += 1
            continue
        if place < len(line) and line[place] != " ":
            raise BadLine(f"unexpected {line[place]!r} after field {scanned.name!r}")
        return tuple(fields.values()), place


def _scan_field(line: str, start: int) -> ScannedField:
    found = _match(_NAME, line, start)
    name, place = _unescape(_NAME_ESCAPE, found[0]), found.end()
    if place >= len(line) or line[place] != "=":
        raise BadLine(f"field {name!r} has no value" if name else "a field is missing")
    check_column("field", name)
    place += 1
    if line.startswith('"', place):
        quoted = _STRING.match(line, place)
        if quoted is None:
            raise OpenString(f"the string of field {name!r} is not closed")
        text = _unescape(_STRING_ESCAPE, quoted[1])
        return ScannedField(name, FieldType.STRING, text, start, place, quoted.end())
    token = _match(_TOKEN, line, place)[0]
    kind, value = _scan_value(name, token)
    return ScannedField(name, kind, value, start, place, place + len(token))


def _scan_value(name: str, token: str) -> tuple[FieldType, Value]:
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
            raise BadLine(f"the integer {_short(token)} of field {name!r} does not fit int64")
        return FieldType.INT64, whole
    if FLOAT_TEXT.fullmatch(token):
        raise BadLine(f"the number {_short(token)} of field {name!r} does not fit float64")
    if not token:
        raise BadLine(f"field {name!r} has no value")
    raise BadLine(f"the value {_short(token)} of field {name!r} is no number, boolean or quoted string")


def _scan_time(text: str) -> int:
    if INTEGER_TEXT.fullmatch(text) is None:
        raise BadLine(f"the time {_short(text)} is not an integer")
    whole = integer_of(text)
    if whole is None:
        raise BadLine(f"the time {_short(text)} does not fit int64")
    return whole


def time_to_ns(time: int, ns_per_unit: int) -> int:
    """A time of the input in nanoseconds. Raises BadLine when it is outside int64."""
    nanoseconds = time * ns_per_unit
    if not -(2**63) <= nanoseconds < 2**63:
        raise BadLine(f"the time {time} is outside the years 1677 to 2262 of int64 nanoseconds")
    return nanoseconds


def _match(pattern: re.Pattern[str], line: str, start: int) -> re.Match[str]:
    found = pattern.match(line, start)
    assert found is not None
    return found


def _skip_spaces(line: str, place: int) -> int:
    while place < len(line) and line[place] == " ":
        place += 1
    return place


def _unescape(pattern: re.Pattern[str], text: str) -> str:
    return pattern.sub(r"\1", text) if "\\" in text else text


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "…")


@lru_cache(maxsize=65_536)
def _name_error(kind: str, name: str) -> str | None:
    try:
        check_name(kind, name)
    except HeadraceError as error:
        return error.message
    return None


def check_column(kind: str, name: str) -> None:
    """Raise BadLine unless `name` may name a `kind` (table, tag, field)."""
    error = _name_error(kind, name)
    if error is not None:
        raise BadLine(error)
