"""The columnar fast path and the scanner, which defines a line, give the same rows and rejections."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.connectors.formats import templates
from headrace.connectors.formats.csv_lines import parse_csv
from headrace.connectors.formats.interface import FormatOptions, InvalidLine, ParseResult, RejectedLine
from headrace.connectors.formats.json_lines import parse_json_lines
from headrace.connectors.formats.line_protocol import is_record, line_records, not_blank, parse_line_protocol
from headrace.connectors.formats.line_scanner import scan_line
from headrace.connectors.formats.line_triage import Triage
from headrace.connectors.formats.lines import Lines, lines_of_buffer, lines_of_messages
from headrace.schemas.tables import FieldType

DECLARED = {"cpu": {"whole": FieldType.INT64, "real": FieldType.FLOAT64}}
NUMBERS = (
    "0",
    "1",
    "-7",
    "58.25",
    "1e5",
    "-0.0",
    "007",
    "+3",
    ".5",
    "5.",
    "9007199254740993",
    "9223372036854775808",
    "1e400",
    "nan",
    "-1.5E-3",
)
TIMES = ("1", "1451606400000000000", "-5", "9223372036854775807", "9223372036854775808", "+9", "1.5", "x")
JUNK = (*' ,="\\\n\r\t#iu{}[]:.eE+-0aZé', "\\,", '\\"', "null", "true", "NaN", "\x00", "\u2028")


@pytest.fixture(autouse=True)
def _infer_from_few_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Infer a template from two lines, so that short inputs take the fast path too."""
    monkeypatch.setattr(templates, "SCAN_LINES_MAX", 1)


def _mutated(text: str, chance: random.Random, share: float) -> bytes:
    """`text` with some characters replaced, dropped or put in; sometimes a byte that is not UTF-8."""
    data = list(text)
    for _ in range(int(len(data) * share * chance.random())):
        place = chance.randrange(len(data) + 1)
        action = chance.randrange(3)
        if action == 0:
            data.insert(place, chance.choice(JUNK))
        elif place < len(data):
            data[place] = chance.choice(JUNK) if action == 1 else ""
    raw = "".join(data).encode()
    return raw.replace(b"e", b"\xff", 1) if chance.random() < 0.05 else raw


def _line_protocol(chance: random.Random) -> str:
    table = chance.choice(("cpu", "cpu", "m e m".replace(" ", "\\ ")))
    tags = chance.choice(("", ",host=a", ",host=h\\ 1,site=x", ",host=é", ',host=3"', ',host="', ',k"y=q"q'))
    fields: list[tuple[str, Callable[[], str]]] = [
        ("real", lambda: chance.choice(NUMBERS)),
        (
            "whole",
            lambda: chance.choice(("1", "-5", "9223372036854775807", "9223372036854775808")) + chance.choice("iiiu"),
        ),
        ("flag", lambda: chance.choice(("t", "true", "F", "FALSE", "yes"))),
        (
            "text",
            lambda: chance.choice(
                (
                    *('"plain"', '"with, comma = and space"', '""', '"esc \\" aped"', '"two\nlines"', '"open'),
                    *('"a\ncpu real=1 5\nb"', '"ends="', '"\n=\n"'),
                )
            ),
        ),
        ("k\\ ey", lambda: chance.choice(NUMBERS)),
        ('q"ey', lambda: chance.choice(NUMBERS)),
    ]
    chosen = [pair for pair in fields if chance.random() < 0.6] or fields[:1]
    body = ",".join(f"{name}={value()}" for name, value in chosen)
    time = chance.choice(("", *(" " + time for time in TIMES)))
    return f"{table}{tags} {body}{time}"


def _json(chance: random.Random) -> str:
    members: list[tuple[str, Callable[[], str]]] = [
        ('"host"', lambda: chance.choice(('"a"', '"b, c"', '"q\\"x"', "5", "null", "true", '"\\u00e9"', '"é"'))),
        ('"real"', lambda: chance.choice((*NUMBERS, "null", "NaN", "-Infinity", '"text"'))),
        ('"whole"', lambda: chance.choice(("1", "-5", "9007199254740993", "9223372036854775808", "1.0", "1.5", "1e3"))),
        ('"flag"', lambda: chance.choice(("true", "false", "null", "tru"))),
        ('"text"', lambda: chance.choice(('"plain"', '"a.e, b"', '""', "null", "{}", "[1]"))),
    ]
    chosen = [pair for pair in members if chance.random() < 0.7] or members[:2]
    colon = chance.choice((":", ": "))
    time = chance.choice(
        (*TIMES, '"2020-01-01T00:00:00Z"', '"2020-02-30 00:00:00"', '"2020-01-01 00:00:00.123456789"', "null")
    )
    parts = [f"{name}{colon}{value()}" for name, value in chosen] + [f'"time"{colon}{time}']
    return "{" + chance.choice((",", ", ")).join(parts) + "}"


def _tagged_json(chance: random.Random) -> str:
    """A reading with adjacent tags: alone, in front, in the middle or at the end."""
    values = ('"a"', '"a"', '"b"', '"b, c"', '"q\\"x"', "5", "05", "1.", "null", "true", '""', '"é"', '"a:b}"', "-1.5")
    gap, colon = chance.choice((",", ", ")), chance.choice((":", " : "))
    tags = [f'"{name}"{colon}{chance.choice(values)}' for name in ("host", "site", "rack")]
    if chance.random() < 0.1:
        tags.reverse()
    fields = [f'"real"{colon}{chance.choice(NUMBERS)}', f'"flag"{colon}true', f'"time"{colon}{chance.choice(TIMES)}']
    place = chance.choice((0, 0, 1, 3))
    parts = [*fields[:place], *tags, *fields[place:]]
    if chance.random() < 0.2:
        parts.insert(chance.randrange(len(parts)), '"model"' + colon + '"m"')
    return "{" + gap.join(parts) + chance.choice(("}", " }"))


def _csv(chance: random.Random) -> str:
    cells = [
        chance.choice(("1", "2020-01-01 00:00:00", "x", "")),
        chance.choice(("a", '"b, c"', '"two\nlines"', "", '"open')),
        chance.choice((*NUMBERS, "oops", " 5 ", "")),
        chance.choice(("1", "1.0", "9007199254740993", "9223372036854775808", "1.5", "")),
        chance.choice(("true", "False", "", "1")),
    ]
    return ",".join(cells[: chance.choice((5, 5, 5, 4))])


def _inputs(line: Callable[[random.Random], str]) -> st.SearchStrategy[bytes]:
    """Lines of a few kinds, each kind several times with other values, some of them broken."""

    def build(seed: int, share: float) -> bytes:
        chance = random.Random(seed)
        lines: list[bytes] = []
        for _ in range(chance.randrange(1, 5)):
            shape = chance.randrange(1 << 30)
            for _ in range(chance.randrange(1, 8)):
                alike = random.Random(shape)
                lines.append(_mutated(line(alike if chance.random() < 0.5 else chance), chance, share))
        chance.shuffle(lines)
        return chance.choice((b"\n", b"\r\n")).join(lines) + chance.choice((b"", b"\n"))

    return st.builds(build, st.integers(0, 1 << 40), st.sampled_from((0.0, 0.0, 0.02, 0.2)))


def _plain(parsed: ParseResult) -> tuple[dict[str, list[str]], list[RejectedLine], int]:
    """A parse in a form that compares NaN, minus zero and types exactly."""
    tables = {name: [str(table.schema), *map(repr, table.to_pylist())] for name, table in parsed.tables.items()}
    return tables, parsed.rejections(), parsed.lines


def _agree(parse: Callable[[bool], ParseResult]) -> None:
    assert _plain(parse(False)) == _plain(parse(True))


@settings(max_examples=80)
@given(_inputs(_line_protocol), st.sampled_from(("ns", "s")), st.sampled_from((None, 77)))
def test_line_protocol(data: bytes, unit: str, default: int | None) -> None:
    """Valid and broken line protocol gives the same tables and refusals on both paths."""
    options = FormatOptions(declared=DECLARED, time_unit=unit, static_tags=(("zone", "z"),))  # type: ignore[arg-type]
    _agree(lambda fast: parse_line_protocol(lines_of_buffer(data), options, default, keep_lines=True, fast=fast))


@pytest.mark.slow(6)
@settings(max_examples=80)
@given(_inputs(_json), st.sampled_from(("ns", "s")), st.sampled_from((None, 77)))
def test_json(data: bytes, unit: str, default: int | None) -> None:
    """Valid and broken JSON lines give the same tables and refusals on both paths."""
    options = FormatOptions(table="cpu", tags=("host",), declared=DECLARED, time_unit=unit)  # type: ignore[arg-type]
    _agree(lambda fast: parse_json_lines(lines_of_buffer(data), options, default, keep_lines=True, fast=fast))


@pytest.mark.slow(7)
@settings(max_examples=100)
@given(_inputs(_tagged_json), st.sampled_from(((), (("site", "static"), ("model", "")))))
def test_json_with_adjacent_tags(data: bytes, static: tuple[tuple[str, str], ...]) -> None:
    """Adjacent tags are parsed once for all lines of a series, with the result of the scanner."""
    tags = ("host", "rack", "site", "model")
    options = FormatOptions(table="cpu", declared=DECLARED, tags=tags, static_tags=static)
    _agree(lambda fast: parse_json_lines(lines_of_buffer(data), options, 77, fast=fast))


@pytest.mark.slow(6)
@settings(max_examples=80)
@given(_inputs(_csv), st.sampled_from((None, 77)))
def test_csv(data: bytes, default: int | None) -> None:
    """Valid and broken CSV gives the same tables and refusals on both paths."""
    options = FormatOptions(table="cpu", tags=("host",), declared=DECLARED)
    lines = lines_of_buffer(b"time,host,real,whole,flag\n" + data)
    _agree(lambda fast: parse_csv(lines, options, default, keep_lines=True, fast=fast))


@settings(max_examples=60)
@given(st.lists(st.one_of(st.none(), _inputs(_line_protocol)), max_size=5))
def test_messages_of_line_protocol(messages: list[bytes | None]) -> None:
    """Messages of many lines give the same rows, message numbers and refusals.

    No string continues in the next one.
    """
    values = pa.array(messages, pa.binary())
    _agree(
        lambda fast: parse_line_protocol(lines_of_messages(values), FormatOptions(), None, keep_lines=True, fast=fast)
    )


@pytest.mark.parametrize("line", [_line_protocol, _json])
def test_the_fast_path_is_taken(line: Callable[[random.Random], str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of one shape do not reach the scanner, so the comparisons above compare two different paths."""
    text = (
        'cpu,host=a real=1.5,whole=2i,flag=t,text="x, y" 5'
        if line is _line_protocol
        else '{"time":5,"host":"a, b","rack":"c","real":1.5,"whole":2}'
    )
    parse = parse_line_protocol if line is _line_protocol else parse_json_lines
    scanned: list[int] = []
    module = __import__(parse.__module__, fromlist=["_Parser"])
    original = module._Parser._scan

    def noted(parser: object, first: int, last: int) -> object:
        scanned.append(first)
        return original(parser, first, last)

    monkeypatch.setattr(module._Parser, "_scan", noted)
    tags = () if line is _line_protocol else ("host", "rack")
    parsed = parse(lines_of_buffer((text + "\n").encode() * 100), FormatOptions(table="cpu", tags=tags), None)
    assert [] == scanned
    assert 100 == parsed.rows


def _spans_one_by_one(lines: Lines) -> dict[int, int]:
    """The records of several lines, found by scanning every line."""
    spans: dict[int, int] = {}
    for first in np.flatnonzero(not_blank(lines)).tolist():
        if any(begin < first <= end for begin, end in spans.items()) or is_record(lines.text(first)) is not None:
            continue
        outcomes = ((last, is_record(lines.text(first, last))) for last in range(first + 1, lines.count))
        last, outcome = next((each for each in outcomes if each[1] is not None), (first, False))
        if outcome:
            spans[first] = last
    return spans


@settings(max_examples=200)
@given(_inputs(_line_protocol))
def test_strings_of_several_lines_are_found_as_line_by_line(data: bytes) -> None:
    """Counting quotes finds what scanning every line finds, also with quotes in tables, tags and names of fields."""
    lines = lines_of_buffer(data)
    assert _spans_one_by_one(lines) == line_records(lines).spans


@given(_inputs(_line_protocol))
def test_triage_gives_up_no_line_that_the_scanner_reads(data: bytes) -> None:
    """What one expression rejects is refused by the scanner as well; most of what it refuses is rejected."""
    lines = lines_of_buffer(data)
    rows = np.flatnonzero(not_blank(lines))
    kept, hopeless = Triage(lines, 0, None).split(rows)
    assert sorted([*kept.tolist(), *hopeless.tolist()]) == rows.tolist()
    for row in hopeless.tolist():
        with pytest.raises((InvalidLine, UnicodeDecodeError)):
            scan_line(lines.text(row).decode())


@pytest.mark.parametrize(
    "line", ["bad", "m v=oops 1", "m v=1 x", "m v 1", "m  v=1 1 1", 'm v="x 1', "m v=1,, 1", "m v=--1"]
)
def test_triage_knows_what_is_no_line_protocol(line: str) -> None:
    """Millions of such lines are counted without the scanner."""
    assert [0] == Triage(lines_of_buffer(line.encode()), 0, None).split(np.array([0]))[1].tolist()
