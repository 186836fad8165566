"""Streams that somebody sent: what they take in memory is known before they take it."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pytest

from headrace.connectors.formats import arrow_streams, arrow_tables
from headrace.connectors.formats.interface import FormatOptions
from headrace.connectors.formats.parser import parse_messages
from headrace.connectors.formats.stream_reader import StreamTooLarge, StreamUnreadable, read_stream
from headrace.schemas.arrow_stream import StreamInvalid, StreamSize, stream_size

MANY = 40_000_000
LIMIT = 1_000_000


def stream(table: pa.Table, **options: object) -> bytes:
    """A table as an Arrow stream."""
    out = io.BytesIO()
    with pa.ipc.new_stream(out, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return out.getvalue()


def runs(value: float, rows: int) -> pa.Array:
    """One value of all rows."""
    return pa.RunEndEncodedArray.from_arrays(pa.array([rows], pa.int64()), pa.array([value]))


BOMBS = {
    "zstd": stream(pa.table({"time": pa.array(np.zeros(MANY, np.int64))}), compression="zstd"),
    "nulls": stream(pa.table({"time": pa.nulls(MANY)})),
    "runs": stream(pa.table({"x": runs(1.5, 2**31 - 1)})),
    "rows": stream(pa.table({"x": pa.nulls(MANY)}).select([])),
    "nested": stream(pa.table({"x": pa.StructArray.from_arrays([pa.nulls(MANY)], ["y"])})),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_before_it_takes_memory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compressed zeros, or values that take no bytes at all; each is one dead letter of ingest."""
    before = pa.default_memory_pool().bytes_allocated()
    with pytest.raises(StreamTooLarge, match="too large: its [0-9]+ values take"):
        read_stream(pa.py_buffer(BOMBS[name]), LIMIT)
    assert pa.default_memory_pool().bytes_allocated() - before < LIMIT
    monkeypatch.setattr(arrow_streams, "MESSAGE_DECODED_BYTES_MAX", LIMIT)
    good = stream(pa.table({"time": [1], "x": [1.5]}))
    result = parse_messages("arrow", pa.array([good, BOMBS[name], good]), None, FormatOptions(table="t"))
    [refused] = result.rejections()
    assert (1, "the message is too large") == (refused.message, refused.reason.split(":")[0])
    assert 2 == result.tables["t"].num_rows


def test_many_batches_are_one_bomb() -> None:
    """Each of them is below the limit."""
    out, batch = io.BytesIO(), pa.record_batch({"x": pa.nulls(LIMIT // 2)})
    with pa.ipc.new_stream(out, batch.schema) as writer:
        for _ in range(3):
            writer.write_batch(batch)
    assert StreamSize(0, 3 * (LIMIT // 2)) == stream_size(out.getvalue())
    with pytest.raises(StreamTooLarge):
        read_stream(pa.py_buffer(out.getvalue()), LIMIT)


def test_a_negative_length_hides_no_other_one() -> None:
    """Two columns that declare so many values, and so many less than none: their sum would be small."""
    data, length = stream(pa.table({"x": pa.nulls(MANY), "y": pa.nulls(MANY)})), MANY.to_bytes(8, "little")
    places = [at for at in range(len(data)) if data.startswith(length, at)]
    # A column has its length and how many nulls it has.
    rows, first, _, second, _ = places
    for at in (rows, first, second):
        changed = data[:at] + (-MANY).to_bytes(8, "little", signed=True) + data[at + len(length) :]
        with pytest.raises(StreamUnreadable, match="a column has a negative length"):
            read_stream(pa.py_buffer(changed), 3 * MANY)


def test_one_long_text_of_many_rows_is_not_copied_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a dictionary, or as a run. The rows that have it are dead letters, those beside them are rows."""
    monkeypatch.setattr(arrow_tables, "DECODED_TEXT_BYTES_MAX", LIMIT)
    codes, text = pa.array(np.zeros(2_000, np.int32)), "x" * 1_000
    for shared in (
        pa.DictionaryArray.from_arrays(codes, pa.array([text])),
        pa.DictionaryArray.from_arrays(codes.cast(pa.int8()), pa.array([text], pa.large_string())),
        pa.RunEndEncodedArray.from_arrays(pa.array([2_000], pa.int32()), pa.array([text])),
    ):
        large = stream(pa.table({"time": range(2_000), "note": shared}))
        other = stream(pa.table({"time": [7], "x": [1.5]}))
        result = parse_messages("arrow", pa.array([large, other]), None, FormatOptions(table="t"))
        assert [7] == result.tables["t"]["time"].to_pylist()
        reasons = {each.reason for each in result.rejections()}
        if pa.types.is_dictionary(shared.type):
            assert {"column 'note' takes 2000000 bytes once it is decoded, 1000000 is the most"} == reasons
        else:
            assert {f"field 'note' has type {shared.type}"} == reasons


def test_a_long_text_that_few_rows_have_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text of all rows counts, and not the longest one times the rows."""
    monkeypatch.setattr(arrow_tables, "DECODED_TEXT_BYTES_MAX", LIMIT)
    codes = pa.array([1, *([0] * 1_999)], pa.int32())
    shared = pa.DictionaryArray.from_arrays(codes, pa.array(["x", "y" * 1_000]))
    message = stream(pa.table({"time": range(2_000), "note": shared}))
    result = parse_messages("arrow", pa.array([message]), None, FormatOptions(table="t"))
    assert 2_000 == result.tables["t"].num_rows


def test_streams_of_older_writers_are_read_unless_they_may_be_compressed() -> None:
    """Metadata version 4 declares compression elsewhere, where the size would not be found."""
    table = pa.table({"time": [1, 2], "x": [None, 1.5], "s": ["a", None]})
    for version in (pa.ipc.MetadataVersion.V4, pa.ipc.MetadataVersion.V5):
        schema, batches = read_stream(pa.py_buffer(stream(table, metadata_version=version)), LIMIT)
        assert table.equals(pa.Table.from_batches(batches, schema))


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_changed_streams_end_in_a_size_or_an_error(compression: str | None) -> None:
    """No change of one byte makes a stream take more than it declares, or ends in another error."""
    columns = {"time": range(50), "x": [None, *([1.5] * 49)], "s": ["a"] * 50, "b": [[1, 2]] * 50}
    data, chance = stream(pa.table(columns), compression=compression), np.random.default_rng(1)
    for _ in range(3_000):
        changed = bytearray(data)
        changed[chance.integers(len(changed))] = chance.integers(256)
        try:
            size = stream_size(bytes(changed))
            _, batches = read_stream(pa.py_buffer(bytes(changed)), LIMIT)
        except (StreamInvalid, StreamUnreadable):
            continue
        assert sum(len(batch) for batch in batches) <= size.values
        assert sum(batch.get_total_buffer_size() for batch in batches) <= max(size.size_bytes, len(data))
