"""Files read in blocks."""

from __future__ import annotations

import gzip
import io
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.connectors.formats import Block, FormatOptions, UnreadableFile, iterate_file, parse_buffer

OPTIONS = FormatOptions(table="t", tags=("host",))
WITHOUT_TAGS = FormatOptions(table="t")
"""Line protocol marks its own."""
LINES = {
    "influx": (
        "t,host=a v=1 1",
        "t,host=a v=2i 2",
        't s="two\nlines" 3',
        't s="open 4',
        "# c",
        "",
        "bad",
        't s="a \\" b" 5',
        't s="x\n\ny" 6',
        "t,HOST=b v=4 7",
        't host="c",v=5 8',
    ),
    "json": ('{"time":1,"v":1}', '{"time":2,"v":"x"}', '{"time":3,"host":"a","w":true}', "bad", ""),
    "csv": ("1,a,1", "2,b,x", '3,"two\nlines",5', '4,"open,1', "bad", "", "5,c,"),
}


def _file(name: str, chance: random.Random) -> bytes:
    header = "time,host,v\n" if name == "csv" else ""
    return (header + "\n".join(chance.choice(LINES[name]) for _ in range(chance.randrange(40)))).encode()


def _joined(blocks: list[Block]) -> tuple[dict[str, list[object]], list[tuple[int, str]], int]:
    rows: dict[str, list[object]] = {}
    for block in blocks:
        for name, table in block.parsed.tables.items():
            rows.setdefault(name, []).extend(
                {k: v for k, v in row.items() if v is not None} for row in table.to_pylist()
            )
    refused = [(rejected.line, rejected.reason) for block in blocks for rejected in block.parsed.rejections()]
    return rows, refused, sum(block.parsed.lines for block in blocks)


@settings(max_examples=80)
@given(st.sampled_from(sorted(LINES)), st.integers(0, 1 << 40), st.integers(1, 200), st.booleans())
def test_the_size_of_a_block_changes_nothing(name: str, seed: int, block_bytes: int, compressed: bool) -> None:
    """Rows, line numbers and refusals are those of the whole file, wherever blocks end, compressed or not."""
    data, options = _file(name, random.Random(seed)), WITHOUT_TAGS if name == "influx" else OPTIONS
    whole = list(iterate_file(io.BytesIO(data), name, options, keep_lines=True))
    stored = gzip.compress(data) if compressed else data
    parts = list(iterate_file(io.BytesIO(stored), name, options, block_bytes=block_bytes, keep_lines=True))
    assert _joined(whole) == _joined(parts)
    assert not parts or len(stored) == parts[-1].bytes_read
    assert [sum(part.parsed.lines for part in parts[:place]) for place in range(len(parts))] == [
        part.first_line for part in parts
    ]


def test_one_block_is_what_the_parser_returns() -> None:
    """A file of one block gives exactly what parsing its bytes gives."""
    data = _file("json", random.Random(7))
    (block,) = iterate_file(io.BytesIO(data), "json", OPTIONS)
    parsed = parse_buffer("json", data, OPTIONS)
    assert parsed.rejected.equals(block.parsed.rejected)
    assert parsed.tables["t"].equals(block.parsed.tables["t"])


@pytest.mark.parametrize("rows", [0, 5, 600_000])
def test_parquet_in_parts(tmp_path: Path, rows: int) -> None:
    """A Parquet file comes in parts of bounded size; one without rows comes as one empty part with its columns."""
    path = tmp_path / "file.parquet"
    pq.write_table(pa.table({"time": pa.array(range(rows), pa.int64()), "host": pa.nulls(rows, pa.string())}), path)
    blocks = list(iterate_file(path, "parquet", OPTIONS, keep_lines=True))
    assert list(range(rows)) == [line for block in blocks for line in block.parsed.tables["t"]["__line"].to_pylist()]
    assert path.stat().st_size == blocks[-1].bytes_read
    assert (rows > 300_000) == (len(blocks) > 1)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """A missing file, a broken archive and a file of another format are one clear error."""
    broken = tmp_path / "broken.gz"
    broken.write_bytes(gzip.compress(b"t v=1 1\n" * 1000)[:-20])
    other = tmp_path / "other.parquet"
    other.write_bytes(b"t v=1 1\n")
    torn = tmp_path / "torn.parquet"
    torn.write_bytes(b"PAR1" + b"x" * 40 + b"\x08\x00\x00\x00PAR1")
    for path, name in ((tmp_path / "missing", "influx"), (broken, "influx"), (other, "parquet"), (torn, "parquet")):
        with pytest.raises(UnreadableFile, match=path.name) as caught:
            list(iterate_file(path, name, OPTIONS))
        assert "\n" not in str(caught.value)
