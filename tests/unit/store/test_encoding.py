"""The choice of encodings: what suits the values, never what a reader refuses, and no value changed."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.consumers.store import Store, StoreSettings, encoding, seal_job, segment
from headrace.consumers.store.encoding import (
    CANDIDATES,
    SAMPLE_BYTES_MAX,
    SAMPLE_ROWS,
    SAMPLE_ROWS_MAX,
    SAMPLE_SHARE,
    TRIED_ROWS_MIN,
    ColumnEncoding,
    Encoding,
    choose_encodings,
    sample,
    writer_options,
)
from headrace.schemas.tables import FieldType
from tests.unit.store.builders import HOUR_NS, Row, contents, expected, seal, write

ROWS = 40_000
GROUP_ROWS = 131_072
RANDOM = np.random.default_rng(7)
TYPES = {kind: pa.large_string() if kind is FieldType.STRING else kind.arrow for kind in FieldType}


def chosen(values: Any, kind: FieldType, level: int = 1) -> ColumnEncoding:
    """The encoding of one column."""
    return choose_encodings({"v": pa.array(values, TYPES[kind])}, {"v": kind}, GROUP_ROWS, level)["v"]


def walk(decimals: int, step: float) -> Any:
    """A random walk of a few hundred series, rounded."""
    steps = RANDOM.normal(0, step, (400, ROWS // 400)).cumsum(axis=1)
    return np.round(steps + RANDOM.uniform(0, 90, (400, 1)), decimals).ravel()


def written(columns: dict[str, pa.Array], encodings: dict[str, ColumnEncoding]) -> pa.Table:
    """Columns after a Parquet file in these encodings."""
    table, sink = pa.table(columns), pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, **writer_options(encodings), store_schema=False) as writer:
        writer.write_table(table, row_group_size=1_000)
    return pq.read_table(pa.BufferReader(sink.getvalue()))


def bits(values: pa.ChunkedArray | pa.Array) -> list[Any]:
    """Values in which a double is its 64 bits: NaN equals itself bit by bit, and -0.0 is not 0.0."""
    array = pa.chunked_array(values) if isinstance(values, pa.Array) else values
    return [
        each
        for chunk in array.chunks
        for each in (chunk.view(pa.int64()) if chunk.type == pa.float64() else chunk).to_pylist()
    ]


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        pytest.param(walk(0, 3), FieldType.FLOAT64, Encoding.DICTIONARY, id="a walk over whole numbers"),
        pytest.param(RANDOM.random(ROWS), FieldType.FLOAT64, Encoding.PLAIN, id="doubles of full precision"),
        pytest.param(np.arange(ROWS), FieldType.INT64, Encoding.DELTA_BINARY_PACKED, id="a counter"),
        pytest.param(
            RANDOM.choice([-(2**62), 200, 404, 2**61], ROWS), FieldType.INT64, Encoding.DICTIONARY, id="distant codes"
        ),
        pytest.param(RANDOM.random(ROWS) < 0.5, FieldType.BOOL, Encoding.PLAIN, id="flags"),
        pytest.param(RANDOM.choice(["on", "off", "Störung"], ROWS), FieldType.STRING, Encoding.DICTIONARY, id="states"),
        pytest.param(
            [f"order-{number}" for number in range(ROWS)],
            FieldType.STRING,
            Encoding.DELTA_BYTE_ARRAY,
            id="numbered names",
        ),
        pytest.param(
            ["".join(row) for row in RANDOM.choice(list(string.ascii_letters), (ROWS, 12))],
            FieldType.STRING,
            Encoding.PLAIN,
            id="random text",
        ),
        pytest.param([None] * ROWS, FieldType.FLOAT64, Encoding.DICTIONARY, id="nothing but nulls"),
        pytest.param([float("nan")] * ROWS, FieldType.FLOAT64, Encoding.DICTIONARY, id="nothing but NaN"),
    ],
)
def test_values_decide(values: Any, kind: FieldType, expected: Encoding) -> None:
    """Each column gets the encoding that its values suit."""
    assert expected is chosen(values, kind).encoding


def test_what_does_not_shrink_is_not_compressed() -> None:
    """Indices of random values are left alone at every level of the store; what zstd shrinks has that level."""
    codes = RANDOM.choice(RANDOM.random(256), ROWS)
    for level in (1, 9):
        assert ColumnEncoding(Encoding.DICTIONARY, None) == chosen(codes, FieldType.FLOAT64, level)
        assert ColumnEncoding(Encoding.DICTIONARY, level) == chosen(np.tile(codes[:200], 200), FieldType.FLOAT64, level)
        assert ColumnEncoding(Encoding.PLAIN, level) == chosen(walk(5, 0.005), FieldType.FLOAT64, level)


def test_a_choice_is_smaller_than_the_other_candidates() -> None:
    """Whole columns bear out what the sample showed: no other candidate is smaller by more than the tolerance."""
    for values in (walk(0, 3), walk(1, 5), walk(5, 0.005), np.repeat(walk(1, 5)[: ROWS // 20], 20)):
        column = pa.array(values)
        sizes = {}
        for candidate in CANDIDATES[FieldType.FLOAT64]:
            sink = pa.BufferOutputStream()
            pq.write_table(pa.table({"v": column}), sink, **writer_options({"v": ColumnEncoding(candidate, 1)}))
            sizes[candidate] = len(sink.getvalue())
        assert sizes[chosen(values, FieldType.FLOAT64).encoding] <= min(sizes.values()) / 0.85


def test_a_sample_is_bounded() -> None:
    """In rows by its share and its maximum, in bytes by its limit; a column of few rows is not looked at."""
    assert SAMPLE_ROWS_MAX == len(sample(pa.array(np.zeros(SAMPLE_ROWS_MAX * SAMPLE_SHARE))))
    assert SAMPLE_ROWS == len(sample(pa.array(np.zeros(4_000))))
    assert 100 == len(sample(pa.array(np.zeros(100))))
    texts = pa.array(["x" * 5_000] * 4_000, pa.large_string())
    assert 0 < sample(texts).nbytes <= SAMPLE_BYTES_MAX
    assert 0 == len(sample(pa.array(["x" * (SAMPLE_BYTES_MAX + 1)] * 2, pa.large_string())))


def test_few_rows_are_written_without_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand columns of a few rows cost no trial each."""
    monkeypatch.setattr(encoding, "_trial", lambda *_: pytest.fail("a trial"))
    fields = {f"f{number}": pa.array([0.5] * 100) for number in range(1_000)}
    found = choose_encodings(fields, dict.fromkeys(fields, FieldType.FLOAT64), GROUP_ROWS, 1)
    assert {ColumnEncoding(Encoding.DICTIONARY, 1)} == set(found.values())


VALUES: dict[FieldType, st.SearchStrategy[Any]] = {
    FieldType.FLOAT64: st.one_of(st.floats(), st.sampled_from([0.0, -0.0, 1.5, float("inf"), -float("inf")])),
    FieldType.INT64: st.one_of(st.integers(-(2**63), 2**63 - 1), st.sampled_from([-(2**63), 2**63 - 1, 0])),
    FieldType.BOOL: st.booleans(),
    FieldType.STRING: st.one_of(st.text(max_size=20), st.sampled_from(["", "ä", "🚰", "a\0b"])),
}


@st.composite
def columns(draw: st.DrawFn) -> tuple[FieldType, pa.Array]:
    """A column long enough for a trial, from a few drawn values in runs or at random, with and without nulls."""
    kind = draw(st.sampled_from(list(FieldType)))
    pool = draw(st.lists(st.one_of(st.none(), VALUES[kind]), min_size=1, max_size=60))
    rows = draw(st.integers(1, 3 * TRIED_ROWS_MIN))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    indices = random.integers(0, len(pool), rows)
    if draw(st.booleans()):
        indices = np.sort(indices)
    column = pa.array(pool, TYPES[kind]).take(pa.array(indices))
    return kind, column.slice(draw(st.integers(0, min(5, rows - 1))))


@settings(max_examples=30, deadline=None)
@given(drawn=st.lists(columns(), min_size=1, max_size=4), level=st.integers(1, 4))
def test_no_choice_changes_a_value(drawn: list[tuple[FieldType, pa.Array]], level: int) -> None:
    """Values read back are those written, doubles bit by bit, and the same columns give the same choice."""
    rows = min(len(column) for _, column in drawn)
    fields = {f"c{number}": column.slice(0, rows) for number, (_, column) in enumerate(drawn)}
    kinds = {f"c{number}": kind for number, (kind, _) in enumerate(drawn)}
    encodings = choose_encodings(fields, kinds, 1_000, level)
    assert encodings == choose_encodings(fields, kinds, 1_000, level)
    assert all(each.encoding in CANDIDATES[kinds[name]] for name, each in encodings.items())
    back = written(fields, encodings)
    for name, values in fields.items():
        assert bits(values) == bits(back.column(name))


@pytest.mark.parametrize("kind", list(FieldType))
def test_every_candidate_keeps_every_bit(kind: FieldType) -> None:
    """Signs of zero, payloads of NaN, ends of integers and odd texts survive each candidate of their type."""
    odd = np.array(
        [0, 1 << 63, 0x7FF8000000000000, 0x7FF8000000000001, 0xFFF8000000000000, 0x7FF0000000000001], np.uint64
    )
    values = {
        FieldType.FLOAT64: pa.array(np.tile(odd.view(np.float64), 300), from_pandas=False),
        FieldType.INT64: pa.array([-(2**63), 2**63 - 1, None, 0] * 300),
        FieldType.BOOL: pa.array([True, None, False] * 300),
        FieldType.STRING: pa.array(["", None, "a\0b", "🚰", "x" * 70_000] * 20, pa.large_string()),
    }[kind]
    for candidate in CANDIDATES[kind]:
        back = written({"v": values}, {"v": ColumnEncoding(candidate, 1)})
        assert bits(values) == bits(back.column("v"))


def test_small_files_of_a_seal_share_a_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One for each table, made of the largest; a large file has its own. No value changes."""
    asked, choose = list[int](), encoding.choose_encodings

    def noted(fields: Any, *arguments: Any) -> Any:
        asked.append(len(next(iter(fields.values()))))
        return choose(fields, *arguments)

    for module in (seal_job, segment):
        monkeypatch.setattr(module, "choose_encodings", noted)
    monkeypatch.setattr(seal_job, "SHARED_ROWS_MAX", 20)
    store = Store.open(tmp_path, "n1", StoreSettings())
    rows: list[Row] = []
    for hour, count in enumerate((3, 7, 30, 5)):
        rows += [({"host": "a"}, hour * HOUR_NS + at, {"busy": at, "load": at / 3}) for at in range(count)]
    write(store, 1, rows)
    seal(store, 2)
    assert [7, 30] == sorted(asked)
    assert expected(rows) == contents(store)
    store.close()
