"""Names of tags and fields that one table cannot have beside each other."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.connectors.formats import FormatOptions, parse_buffer

TAGS = st.dictionaries(st.sampled_from(["p", "P", "q"]), st.sampled_from("ab"), max_size=1)
FIELDS = st.dictionaries(st.sampled_from(["p", "P", "v", "Q"]), st.integers(0, 9), min_size=1, max_size=2)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(TAGS, FIELDS), min_size=1, max_size=8))
def test_a_line_is_a_row_with_all_its_values_or_is_refused(lines: list[tuple[dict[str, str], dict[str, int]]]) -> None:
    """Whatever roles and spellings a new table meets: no tag gives way to a field, and no two columns are one in SQL."""
    text = "".join(
        f"m{''.join(f',{name}={value}' for name, value in tags.items())} "
        f"{','.join(f'{name}={value}' for name, value in fields.items())} {time}\n"
        for time, (tags, fields) in enumerate(lines)
    )
    parsed = parse_buffer("influx", text.encode(), FormatOptions(), default_time_ns=None, keep_lines=False)
    rows = parsed.tables["m"].to_pylist() if "m" in parsed.tables else []
    refused = {each.line for each in parsed.rejections()}
    assert {*range(len(lines))} - refused == {row["time"] for row in rows}
    assert len(lines) == len(rows) + len(refused)
    for row in rows:
        tags, fields = lines[row.pop("time")]
        assert {**tags, **fields} == {name: value for name, value in row.items() if value is not None}
    names = parsed.tables["m"].column_names if rows else []
    assert len(names) == len({name.lower() for name in names})
