"""Types of the fields of a new table: accepted rows decide them, one behind the other."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.connectors.formats import FormatOptions, iterate_file, parse_buffer
from headrace.connectors.formats.field_agreement import DECISIONS_MAX
from headrace.schemas.tables import ROW_TIME_MAX_NS

VALUES = {"1.5": "float64", "2i": "int64", '"x"': "string", "true": "bool"}
NUMBERS = {"float64", "int64"}
NAMES = ("a", "b", "c", "C")
LINES = st.lists(
    st.dictionaries(st.sampled_from(NAMES), st.sampled_from([*VALUES]), min_size=1), min_size=1, max_size=12
)


def line_of(fields: dict[str, str], time: int) -> str:
    """A line of line protocol."""
    return f"m {','.join(f'{name}={value}' for name, value in fields.items())} {time}\n"


def accepted_one_by_one(lines: list[dict[str, str]]) -> list[int]:
    """The rule itself, a line at a time: a line is accepted if it agrees with those that were accepted before."""
    accepted: list[int] = []
    known: dict[str, tuple[str, str]] = {}
    for number, fields in enumerate(lines):
        kinds = {name: VALUES[value] for name, value in fields.items()}
        agrees = len({name.lower() for name in fields}) == len(fields)
        for name, kind in kinds.items():
            spelling, before = known.get(name.lower(), (name, kind))
            agrees &= spelling == name and (kind == before or {kind, before} == NUMBERS)
        if agrees:
            accepted.append(number)
            for name, kind in kinds.items():
                known.setdefault(name.lower(), (name, kind))
    return accepted


@settings(max_examples=400)
@given(LINES, st.sampled_from([16, 40, 1 << 20]))
def test_a_rejected_line_decides_nothing(lines: list[dict[str, str]], block_bytes: int) -> None:
    """Whatever lines of several types are behind each other, and wherever the blocks of a file are cut."""
    text = "".join(line_of(fields, time) for time, fields in enumerate(lines)).encode()
    blocks = iterate_file(io.BytesIO(text), "influx", FormatOptions(), block_bytes=block_bytes)
    times = [time for block in blocks for rows in block.parsed.tables.values() for time in rows["time"].to_pylist()]
    assert sorted(times) == accepted_one_by_one(lines)


def test_a_line_with_a_time_that_no_table_takes_decides_no_type() -> None:
    """The lines behind it are those of the table."""
    text = line_of({"v": '"x"'}, ROW_TIME_MAX_NS + 1) + line_of({"v": "1.5"}, 1) + line_of({"v": "2i"}, 2)
    parsed = parse_buffer("influx", text.encode(), FormatOptions())
    assert parsed.tables["m"].to_pylist() == [{"time": 1, "v": 1.5}, {"time": 2, "v": 2.0}]
    assert [each.line for each in parsed.rejections()] == [0]


@pytest.mark.parametrize("length", [2 * DECISIONS_MAX - 2, 20 * DECISIONS_MAX])
def test_a_chain_of_contradictions_ends(length: int) -> None:
    """Every second line contradicts the one before it: of a long chain more are rejected, and none without a reason."""
    lines = [{"f0": "1.5"}] + [{f"f{n - 1}": '"x"', f"f{n}": "1.5"} for n in range(1, length)]
    text = "".join(line_of(fields, time) for time, fields in enumerate(lines)).encode()
    parsed = parse_buffer("influx", text, FormatOptions())
    times, rejected = parsed.tables["m"]["time"].to_pylist(), [each.line for each in parsed.rejections()]
    assert sorted([*times, *rejected]) == [*range(length)]
    if length < 2 * DECISIONS_MAX:
        assert times == accepted_one_by_one(lines)
