"""JSON files whose readings are not one a line."""

from __future__ import annotations

import io
import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.connectors.formats import FormatOptions, iterate_file, json_documents

OPTIONS = FormatOptions(table="t", tags=("site",))
ROWS = [{"time": number, "site": f"s{number % 3}", "v": number / 2, "text": '}],[{"\\'} for number in range(40)]
FORMS = {
    "array over several lines": "[\n" + ",\n".join(map(json.dumps, ROWS)) + "\n]\n",
    "array, indented": json.dumps(ROWS, indent=2),
    "array, indented, windows": json.dumps(ROWS, indent="\t").replace("\n", "\r\n"),
    "array on one line": json.dumps(ROWS),
    "objects, indented": "\n".join(json.dumps(row, indent=4) for row in ROWS),
    "objects, one behind the other": "".join(json.dumps(row, indent=1) for row in ROWS),
    "a byte order mark": "\ufeff" + json.dumps(ROWS, indent=2),
    "several arrays": json.dumps(ROWS[:7], indent=1) + "\n" + json.dumps(ROWS[7:], indent=1),
}


def read(text: str | bytes, block_bytes: int = 1 << 24) -> tuple[list[dict[str, object]], list[tuple[int, str]]]:
    """The rows of a file without nulls, and its rejected lines."""
    data = text.encode() if isinstance(text, str) else text
    blocks = list(iterate_file(io.BytesIO(data), "json", OPTIONS, block_bytes=block_bytes, keep_lines=True))
    tables = [table for block in blocks for table in block.parsed.tables.values()]
    rows = [{name: value for name, value in row.items() if value is not None} for t in tables for row in t.to_pylist()]
    return rows, [(line.line, line.reason) for block in blocks for line in block.parsed.rejections()]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("block_bytes", [1 << 24, 97])
def test_every_form_gives_the_same_rows(form: str, block_bytes: int) -> None:
    """Arrays and objects over several lines give the rows that one object a line gives, wherever blocks end."""
    rows, rejected = read(FORMS[form], block_bytes)
    assert [] == rejected
    assert ROWS == [{name: value for name, value in row.items() if name != "__line"} for row in rows]


def test_lines_are_those_of_the_file() -> None:
    """A row has the number of the line where its object begins, and so has a rejection."""
    text = '[\n  {\n    "time": 1,\n    "v": 1\n  },\n\n  {\n    "time": 2,\n    "v": {"a": 1}\n  },\n  {"time": 3, "v": 3}\n]'
    for block_bytes in (1 << 24, 11):
        rows, rejected = read(text, block_bytes)
        assert [1, 10] == [row["__line"] for row in rows]
        assert [(6, "member 'v' is an object: readings are flat")] == rejected


def test_elements_of_one_line_have_its_number() -> None:
    """What follows a reading on its line is an element of its own: the reading is kept, and the line is also rejected."""
    rows, rejected = read('{\n"time": 1, "v": 1}\n{"time": 2, "v": 2} x {"time": 3, "v": 3}{"time": 4}\x0b')
    assert [(1, 0), (2, 2), (3, 2)] == [(row["time"], row["__line"]) for row in rows]
    assert [2, 2, 2] == [line for line, _ in rejected]


@pytest.mark.parametrize(
    ("broken", "line"),
    [
        ('{"time": 2, "site": "x, "v": 2},', 2),
        ('{"time": 2, "v": 2', 2),
        ('{"time": 2, "v": [1, 2},', 2),
        ('{"time": 2,\n"v": 2,', 2),
        ('{"time": 2 "v": 2},', 2),
        ("nonsense,", 2),
    ],
)
def test_what_is_broken_costs_one_element(broken: str, line: int) -> None:
    """A missing quote, brace, bracket or comma refuses its own element; the others are read."""
    rows, rejected = read('[\n{"time": 1, "v": 1},\n' + broken + '\n{"time": 3, "v": 3},\n{"time": 4, "v": 4}\n]')
    assert [1, 3, 4] == [row["time"] for row in rows]
    assert [line] == [number for number, _ in rejected]


def test_a_file_that_ends_too_early() -> None:
    """An array without its end is reported: elements may be missing."""
    rows, rejected = read('[\n{"time": 1, "v": 1},\n{"time": 2, "v": 2},\n')
    assert [1, 2] == [row["time"] for row in rows]
    assert [(3, "the file ends inside of an array: elements may be missing")] == rejected
    rows, rejected = read('[\n{"time": 1, "v": 1},\n{"time": 2, "v')
    assert [1] == [row["time"] for row in rows]
    assert 2 == len(rejected)


def test_json_lines_are_not_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file whose first line is whole keeps the reading of one value a line, arrays of one line too."""
    monkeypatch.setattr(json_documents, "ElementSource", None)
    assert [0, 1] == [row["__line"] for row in read('{"time": 1, "v": 1}\n{"time": 2, "v": 2}')[0]]
    assert [0, 0, 1] == [
        row["__line"] for row in read('[{"time": 1, "v": 1}, {"time": 2, "v": 2}]\n{"time": 3, "v": 2}')[0]
    ]


def test_a_broken_first_line_of_json_lines_costs_that_line() -> None:
    """JSON lines that begin with a broken object are read from the second line on."""
    rows, rejected = read('{"time": 1, "v": 1\n{"time": 2, "v": 2}\n{"time": 3, "v": 3}\n')
    assert [2, 3] == [row["time"] for row in rows]
    assert [0] == [number for number, _ in rejected]


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 40), st.integers(1, 64))
def test_any_bytes_end_and_blocks_change_nothing(seed: int, block_bytes: int) -> None:
    """Damaged documents are read to their end with the same rows and lines, wherever blocks end."""
    chance = random.Random(seed)
    text = bytearray(json.dumps(ROWS[:6], indent=chance.choice((None, 1))).encode())
    for _ in range(chance.randrange(1, 6)):
        text[chance.randrange(len(text))] = chance.choice(b'[]{},:"\\\n x')
    source = json_documents.ElementSource(json_documents.PeekedSource(_Empty(), bytes(text)))
    whole = source.read(1 << 20)
    other = json_documents.ElementSource(json_documents.PeekedSource(_Empty(), bytes(text)))
    parts = []
    while part := other.read(block_bytes):
        parts.append(part)
    assert whole == b"".join(parts)
    begins = [np.concatenate(each._begins) for each in (source, other)]
    assert begins[0].tolist() == begins[1].tolist()
    assert len(begins[0]) == whole.count(b"\n") + (not whole.endswith(b"\n") and bool(whole))


class _Empty:
    """A source at its end."""

    bytes_read = 0

    def read(self, size: int) -> bytes:
        """Nothing."""
        return b""
