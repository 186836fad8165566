"""What an Arrow IPC stream takes in memory, read without decompressing anything.

A compressed buffer declares its uncompressed length, so eight bytes a buffer are enough. Streams of metadata version 4
that have metadata of their own are refused: they may declare compression there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_CONTINUATION = 0xFFFFFFFF
_VERSION_4, _VERSION_5 = 3, 4
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
# Numbers of fields in the tables of Arrow's Message.fbs.
_MESSAGE_VERSION, _MESSAGE_KIND, _MESSAGE_HEADER, _MESSAGE_BODY_BYTES, _MESSAGE_CUSTOM = range(5)
_DICTIONARY_DATA = 1
_BATCH_ROWS, _BATCH_NODES, _BATCH_BUFFERS, _BATCH_COMPRESSION = range(4)
_LENGTH_BYTES = 8
_NOT_COMPRESSED = -1

Int64s = npt.NDArray[np.int64]


class StreamInvalid(ValueError):
    """Bytes that are no Arrow IPC stream, or not in the form that is asked for."""


class StreamSize(NamedTuple):
    """What a stream declares: the bytes of its buffers once they are decoded, and its values, nulls and nested ones too.

    Columns of nulls, and of runs, have values without any bytes; rows without columns count as one value each.
    """

    size_bytes: int
    values: int


class _Frame(NamedTuple):
    kind: int
    message: _Table
    body: memoryview

    def batch(self) -> _Table:
        """The header of the batch that a record batch is, or that a dictionary has."""
        header = self.message.table(_MESSAGE_HEADER)
        return header if self.kind == _BATCH else header.table(_DICTIONARY_DATA)


def decoded_size(data: bytes | memoryview | pa.Buffer) -> int:
    """Bytes that the buffers of an encoded row batch take once they are decoded, as the stream declares them.

    The decoder allocates no more, and fails when a buffer has another length than declared. Raises StreamInvalid, also
    for any form but that of `encode_rows`: a schema, one dictionary, one record batch and the end, of version 5.
    """
    try:
        return _decoded_size(memoryview(data))
    except (struct.error, ValueError, OverflowError) as error:
        raise StreamInvalid(f"not the stream of a row batch: {error}") from error


def stream_size(data: bytes | memoryview | pa.Buffer) -> StreamSize:
    """What any Arrow IPC stream takes. Raises StreamInvalid."""
    try:
        size_bytes = values = 0
        for frame in _frames(memoryview(data)):
            if frame.kind != _SCHEMA:
                batch = frame.batch()
                values += _values(batch)
                size_bytes += _body_size(batch, frame.body)
        return StreamSize(size_bytes, values)
    except (struct.error, ValueError, OverflowError) as error:
        raise StreamInvalid(str(error)) from error


def _decoded_size(data: memoryview) -> int:
    total = 0
    for number, (kind, frame) in enumerate(zip_longest((_SCHEMA, _DICTIONARY, _BATCH), _frames(data))):
        if frame is None or frame.kind != kind or frame.message.number(_MESSAGE_VERSION, "<h") != _VERSION_5:
            raise StreamInvalid(f"message {number} is not of kind {kind} and metadata version 5")
        if frame.message.has(_MESSAGE_CUSTOM):
            raise StreamInvalid("a message has metadata of its own")
        if kind != _SCHEMA:
            total += _body_size(frame.batch(), frame.body)
    return total


def _frames(data: memoryview) -> Iterator[_Frame]:
    """The messages of a stream that ends with the last of its bytes."""
    position = 0
    while True:
        marker, metadata_bytes = struct.unpack_from("<Ii", data, position)
        if marker != _CONTINUATION or metadata_bytes < 0:
            raise StreamInvalid(f"no message at byte {position}")
        position += 8
        if metadata_bytes == 0:
            break
        metadata = data[position : position + metadata_bytes]
        if len(metadata) != metadata_bytes:
            raise StreamInvalid("the metadata ends early")
        message = _Table.root(metadata)
        kind, version = message.number(_MESSAGE_KIND, "<B"), message.number(_MESSAGE_VERSION, "<h")
        if kind not in (_SCHEMA, _DICTIONARY, _BATCH):
            raise StreamInvalid(f"a message is of kind {kind}")
        if version != _VERSION_5 and (version != _VERSION_4 or message.has(_MESSAGE_CUSTOM)):
            raise StreamInvalid(f"a message is of metadata version {version + 1}")
        position += metadata_bytes
        body_bytes = message.number(_MESSAGE_BODY_BYTES, "<q")
        body = data[position : position + body_bytes]
        if len(body) != body_bytes:
            raise StreamInvalid("a body ends early")
        position += body_bytes
        yield _Frame(kind, message, body)
    if position != len(data):
        raise StreamInvalid("there are bytes behind its end")


def _values(batch: _Table) -> int:
    """Values of all columns of a record batch, at least its rows."""
    (lengths, _), rows = batch.pairs(_BATCH_NODES), batch.number(_BATCH_ROWS, "<q")
    # One below zero would hide another one in the sum.
    if rows < 0 or (lengths < 0).any():
        raise StreamInvalid("a column has a negative length")
    # As floats: the sum of hostile lengths would wrap around in int64.
    return max(int(lengths.sum(dtype=np.float64)), rows)


def _body_size(batch: _Table, body: memoryview) -> int:
    """Decoded bytes of the buffers of a record batch."""
    offsets, lengths = batch.pairs(_BATCH_BUFFERS)
    if not len(offsets):
        return 0
    if min(offsets.min(), lengths.min()) < 0 or lengths.max() > len(body) or (offsets > len(body) - lengths).any():
        raise StreamInvalid("a buffer is outside its body")
    if not batch.has(_BATCH_COMPRESSION):
        return int(lengths.sum())
    offsets, lengths = offsets[lengths > 0], lengths[lengths > 0]
    if not len(offsets):
        return 0
    if lengths.min() < _LENGTH_BYTES:
        raise StreamInvalid("a compressed buffer has no length")
    declared = _int64s_at(body, offsets)
    if declared.min() < _NOT_COMPRESSED:
        raise StreamInvalid("a compressed buffer has a negative length")
    sizes = np.where(declared == _NOT_COMPRESSED, lengths - _LENGTH_BYTES, declared)
    # As floats: the sum of hostile lengths would wrap around in int64.
    return int(sizes.sum(dtype=np.float64))


def _int64s_at(body: memoryview, offsets: Int64s) -> Int64s:
    data = np.frombuffer(body, np.uint8)
    return np.ascontiguousarray(data[offsets[:, None] + np.arange(_LENGTH_BYTES)]).view("<i8").ravel()


class _Table:
    """A table of a flatbuffer. Every read outside the data raises struct.error or ValueError."""

    def __init__(self, data: memoryview, position: int) -> None:
        self._data = data
        self._position = position
        (offset,) = struct.unpack_from("<i", data, position)
        self._fields = _checked(position - offset)
        (self._fields_bytes,) = struct.unpack_from("<H", data, self._fields)

    @classmethod
    def root(cls, data: memoryview) -> _Table:
        """The table that a flatbuffer holds."""
        return cls(data, struct.unpack_from("<I", data, 0)[0])

    def has(self, field: int) -> bool:
        """Whether a field is there."""
        return self._offset(field) > 0

    def number(self, field: int, form: str) -> int:
        """A number; 0 when it is left out."""
        return int(struct.unpack_from(form, self._data, self._at(field))[0]) if self.has(field) else 0

    def table(self, field: int) -> _Table:
        """A table within this one."""
        return _Table(self._data, self._target(field))

    def pairs(self, field: int) -> tuple[Int64s, Int64s]:
        """A vector of structs of two int64, as two arrays."""
        start = self._target(field)
        (count,) = struct.unpack_from("<I", self._data, start)
        found = np.frombuffer(self._data, "<i8", 2 * count, start + 4)
        return found[::2], found[1::2]

    def _target(self, field: int) -> int:
        at = self._at(field)
        return at + int(struct.unpack_from("<I", self._data, at)[0])

    def _at(self, field: int) -> int:
        offset = self._offset(field)
        if offset == 0:
            raise StreamInvalid(f"field {field} is missing")
        return self._position + offset

    def _offset(self, field: int) -> int:
        entry = 4 + 2 * field
        if entry + 2 > self._fields_bytes:
            return 0
        return int(struct.unpack_from("<H", self._data, self._fields + entry)[0])


def _checked(position: int) -> int:
    # A negative position would count from the end of the data.
    if position < 0:
        raise StreamInvalid("an offset is outside the metadata")
    return position
