"""Text beyond the 2 GiB of a string array, and errors that no copy of a file would be spared."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.consumers.store import SegmentUnread, Store, StoreDamaged, digest_of_file, last_rows, scan
from headrace.consumers.store import batch_columns as columns
from headrace.consumers.store import segment_reader as reader
from headrace.consumers.store.segment import _page_rows
from headrace.schemas.payload import SERIES_COLUMN, SERIES_TYPE
from headrace.schemas.tables import FieldType
from tests.unit.store.builders import CPU, DATABASE, Row, answer_of, contents, expected, row_batch, seal, write

A = {"host": "a", "rack": "r"}
ROWS: list[Row] = [(A, at, {"note": f"note {at}", "busy": at}) for at in range(12)]


def test_text_has_offsets_of_64_bits_wherever_rows_meet(store: Store) -> None:
    """Whatever joins text of several batches or row groups joins large_string: no sum of text overflows it."""
    write(store, 1, ROWS[:4])
    write(store, 2, ROWS[4:])
    seal(store, 3)
    assert pa.large_string() == columns.field_column([row_batch(CPU, ROWS)], "note", FieldType.STRING).type
    (entry,) = store.segments()
    path = store.segments_directory / entry.name
    rows = reader.read_rows(path, entry, store._components.runs.get(entry.name), ["note"])
    assert pa.large_string() == rows.schema.field("note").type
    assert expected(ROWS) == contents(store)
    store.compact(5, [entry.name]).run()
    assert expected(ROWS) == contents(store)


@pytest.mark.parametrize("chunk_bytes", [1, 40, 1_000])
@pytest.mark.parametrize("offset", [0, 3])
def test_answers_have_text_in_chunks(chunk_bytes: int, offset: int) -> None:
    """Text beyond the limit of one string array becomes several; a text that is longer by itself has its own."""
    values = ["a", "x" * 30, None, "", "y" * 90, "é", "z" * 39, "b"]
    column = pa.array(values, pa.large_string()).slice(offset)
    narrow = columns.narrow_text(column, chunk_bytes)
    assert (pa.string(), values[offset:]) == (narrow.type, narrow.to_pylist())
    sizes = [sum(len((text or "").encode()) for text in chunk) for chunk in map(pa.Array.to_pylist, chunks_of(narrow))]
    assert all(size <= max(chunk_bytes, 90) for size in sizes)
    assert (len(sizes) > 1) is (chunk_bytes < 1_000)


def chunks_of(column: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
    """The arrays of a column."""
    return column.chunks if isinstance(column, pa.ChunkedArray) else [column]


@pytest.mark.parametrize("sealed", [False, True])
def test_scans_and_last_rows_have_text_in_chunks(store: Store, monkeypatch: pytest.MonkeyPatch, sealed: bool) -> None:
    """With a limit of a few bytes, answers are as before in more chunks than one."""
    for module in (scan, last_rows):
        monkeypatch.setattr(module, "narrow_text", partial(columns.narrow_text, chunk_bytes=16))
    rows: list[Row] = [({"host": str(at % 4)}, at, fields) for _, at, fields in ROWS]
    write(store, 1, rows)
    if sealed:
        seal(store, 2)
        write(store, 3, rows)
    with store.scan("plant", "cpu") as found:
        assert [] == found.files
        assert found.table.column("note").num_chunks > 1
    assert expected(rows) == contents(store)
    last = store.last_rows("plant", "cpu")
    assert last is not None
    assert last.column("note").num_chunks > 1
    assert expected(rows[-4:]) == answer_of([last], CPU.tags)


def test_the_longest_text_bounds_what_is_added_to_a_page(store: Store) -> None:
    """The rows that the Parquet writer adds before it looks at the size of a page fit far below 2 GiB."""
    short = pa.table({"note": pa.array(["x" * 100], pa.large_string())})
    long = pa.table({"note": pa.array(["x" * (8 << 20), None], pa.large_string())})
    empty = pa.table({"note": pa.array([None], pa.large_string()), "busy": [1]})
    assert [1_024, 32, 1_024] == [_page_rows(table) for table in (short, long, empty)]


@pytest.fixture
def overflowing(store: Store, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sealed file that Arrow cannot read for what it contains."""
    write(store, 1, ROWS)
    seal(store, 2)
    write(store, 3, ROWS[:1])

    def overflow(*_arguments: object) -> pa.RecordBatch:
        raise pa.ArrowInvalid("offset overflow while concatenating arrays")

    monkeypatch.setattr(reader, "_read_open", overflow)
    (entry,) = store.segments()
    return store.segments_directory / entry.name


@pytest.mark.parametrize("changed", [False, True])
def test_only_changed_bytes_are_damage(store: Store, overflowing: Path, changed: bool) -> None:
    """A file that cannot be read is damage when its digest differs; else every replica's would be condemned alike."""
    if changed:
        content = bytearray(overflowing.read_bytes())
        content[100] ^= 1
        overflowing.write_bytes(content)
    (entry,) = store.segments()
    for read in (store.compact(4, [entry.name]).run, lambda: store.scan("plant", "cpu")):
        with pytest.raises(StoreDamaged if changed else SegmentUnread, match=entry.name):
            read()


def test_a_footer_that_cannot_be_read_is_no_damage_by_itself(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for the schema of a merge."""
    write(store, 1, ROWS)
    seal(store, 2)
    (entry,) = store.segments()

    def no_memory(*_arguments: object) -> pa.Schema:
        raise pa.ArrowMemoryError("malloc of size 4096 failed")

    monkeypatch.setattr(pq, "read_schema", no_memory)
    with pytest.raises(SegmentUnread, match=entry.name) as caught:
        store.compact(3, [entry.name]).run()
    assert caught.value.retriable


@pytest.mark.soak
def test_more_than_2_gib_of_text_in_a_column(tmp_path: Path) -> None:
    """2.2 GiB of text in one column are scanned, sealed, deleted from, verified and merged."""
    rows, messages = 100_000, 20
    text = pa.array([f"line {number % 50:08} " + "x" * 1_170 for number in range(rows)], pa.string())
    series = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), ["cpu,host=a"]).cast(SERIES_TYPE)
    store = Store.open(tmp_path, "n1")
    for message in range(messages):
        times = pa.array(np.arange(rows) + message * rows)
        batch = pa.RecordBatch.from_arrays([series, times, text], names=[SERIES_COLUMN, "time", "note"])
        store.write(message + 1, 1, CPU, DATABASE, batch)

    def count() -> int:
        with store.scan("plant", "cpu", columns=["note"]) as scan:
            assert not scan.files
            return int(scan.table.num_rows)

    assert messages * rows == count()
    seal(store, 100)
    store.delete(101, 1, "plant", "cpu", {}, 0, 5)
    assert messages * rows - 5 == count()
    store.compact(102, [store.segments()[0].name]).run()
    (entry,) = store.segments()
    assert messages * rows - 5 == entry.rows
    assert entry.content_digest == digest_of_file(store.segments_directory / entry.name)
    store.close()
