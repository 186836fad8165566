"""Answers as bytes: JSON, CSV, Arrow IPC; one piece a batch, whole columns at a time.

JSON is an array of row objects. Integers, HUGEINT and DECIMAL are numbers, a time is ISO-8601 with nine digits (and Z where it is UTC), NaN and
infinities are null, bytes are base64, lists, structs and maps nest. CSV has a header line, RFC 4180 quoting, nothing for null and `""` for empty
text; what nests stands in it as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from consumers.query.text import csv_text, json_text, key_text
from schemas.errors import HeadraceError

MEDIA_TYPES = {
    "json": "application/json",
    "csv": "text/csv; charset=utf-8",
    "arrow": "application/vnd.apache.arrow.stream",
}
"""Every format an answer can have, with its media type."""

_SMALL_BATCH_ROWS = 8_192


class FormatUnknown(HeadraceError):
    """An answer was asked for in a format that is not offered."""


def encode(name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """An answer in one of MEDIA_TYPES, piece by piece. `batches` have `schema`; its column names are unique. Raises FormatUnknown."""
    encoder = _ENCODERS.get(name)
    if encoder is None:
        raise FormatUnknown(f"there is no format {name!r}", action=f"use one of {', '.join(MEDIA_TYPES)}")
    return encoder(schema, batches)


def encode_json(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """A JSON array of row objects, a row a line."""
    keys = [key_text(name) for name in schema.names]
    opened = False
    for batch in _small(batches):
        parts: list[pa.Array | pa.Scalar] = []
        for number, key in enumerate(keys):
            parts += [pa.scalar(f"{',' if number else '{'}{key}:"), json_text(batch.column(number))]
        rows = pc.binary_join_element_wise(*parts, pa.scalar("}"), "")
        yield (b",\n" if opened else b"[") + _joined(rows, ",\n")
        opened = True
    yield b"]\n" if opened else b"[]\n"


def encode_csv(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """A header line, then a line a row; lines end in LF."""
    header = csv_text(pa.array(schema.names, pa.string()))
    yield _joined(header, ",") + b"\n"
    for batch in _small(batches):
        cells = [csv_text(column) for column in batch.columns]
        yield _joined(pc.binary_join_element_wise(*cells, ","), "\n") + b"\n"


def encode_arrow(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """An Arrow IPC stream."""
    sink = _Pieces()
    with pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), schema) as writer:
        yield sink.take()
        for batch in batches:
            writer.write_batch(batch)
            yield sink.take()
    yield sink.take()


_Encoder = Callable[[pa.Schema, Iterable[pa.RecordBatch]], Iterator[bytes]]
_ENCODERS: dict[str, _Encoder] = {"json": encode_json, "csv": encode_csv, "arrow": encode_arrow}


def _small(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches whose text stays small."""
    for batch in batches:
        for start in range(0, batch.num_rows, _SMALL_BATCH_ROWS):
            yield batch.slice(start, _SMALL_BATCH_ROWS)


def _joined(texts: pa.Array, separator: str) -> bytes:
    """All texts of an array as one, straight out of Arrow's buffer."""
    whole = pa.LargeListArray.from_arrays(pa.array([0, len(texts)], pa.int64()), texts)
    return bytes(pc.binary_join(whole, separator)[0].as_buffer())


class _Pieces:
    """A file that gives back what was written since the last time."""

    closed = False

    def __init__(self) -> None:
        self._written: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._written.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Nothing waits here."""

    def take(self) -> bytes:
        """The bytes since the last call."""
        written, self._written = b"".join(self._written), []
        return written
