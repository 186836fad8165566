"""The encoding of records within a frame: operations to bytes, bytes to entries. Pure, no I/O.

Record head: kind (1 byte), key type (1), key length (2), data length (4); then the key; then the data, or,
for a referenced value, its CRC-32C (4) while its bytes follow the frame's body in the order of the records.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from crc32c import crc32c

from headrace.connectors.files import Buffer
from headrace.consumers.wal.keys import BYTES, decode_key, encode_key
from headrace.consumers.wal.serde import Delete, Put, Serde, dumps_pairs
from headrace.consumers.wal.wal_errors import UnsupportedKey

REFERENCE_BYTES_MIN = 4_097
"""A value of this size or more is referenced: written once, in the journal, and read on demand."""

DELETE = 0
PAIR = 1
DUMPED = 2
REFERENCED = 0x10
"""Bit of the kind of a record whose value is referenced."""

VALUE_LENGTH_MAX = (1 << 32) - 1

HEAD = struct.Struct("<BBHI")
_CRC = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Stored:
    """A small value, encoded by some version of a serde.

    A pair of the current version is plain `bytes` instead.
    """

    kind: int
    version: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Placed:
    """A referenced value within its frame: `offset` is from the start of the frame's values."""

    kind: int
    offset: int
    length: int
    crc: int


class Encoded:
    """A transaction as bytes: `body` is in the frame, `values` follow it.

    `effects` are its changes to the state, in order.
    """

    __slots__ = ("body", "effects", "records", "values", "values_length")

    def __init__(self) -> None:
        self.body = b""
        self.values: list[Buffer] = []
        self.values_length = 0
        self.records = 0
        self.effects: list[tuple[Hashable, bytes | Stored | Placed | None]] = []


def encode(operations: Iterable[Put[Any] | Delete[Any]], serde: Serde[Any, Any]) -> Encoded:
    """Encodes a transaction.

    Raises the exception of the serde, or `UnsupportedKey` for unsupported keys and sizes.
    """
    encoded = Encoded()
    chunks: list[Buffer] = []
    pairs = dumps_pairs(serde)
    for operation in operations:
        if isinstance(operation, Delete):
            code, key = encode_key(operation.key)
            chunks += (HEAD.pack(DELETE, code, len(key), 0), key)
            encoded.effects.append((operation.key, None))
        elif isinstance(operation, Put):
            _encode_put(operation.record, serde, pairs, chunks, encoded)
        else:
            raise TypeError(f"an update takes Put and Delete, not {type(operation).__name__}")
    encoded.records = len(encoded.effects)
    encoded.body = b"".join(chunks)
    if len(encoded.body) > VALUE_LENGTH_MAX:
        raise UnsupportedKey(
            f"a transaction of {len(encoded.body)} bytes without its large values is over 4 GiB; split it"
        )
    return encoded


def _encode_put(record: Any, serde: Serde[Any, Any], pairs: bool, chunks: list[Buffer], encoded: Encoded) -> None:
    if pairs:
        key, value = record
        kind, buffers = PAIR, value if type(value) is tuple else (value,)
    else:
        key = serde.key(record)
        kind, buffers = DUMPED, (serde.dump(record),)
    code, key_bytes = encode_key(key)
    length = 0
    for buffer in buffers:
        length += buffer.nbytes if type(buffer) is memoryview else len(buffer)
    if length >= REFERENCE_BYTES_MIN:
        _encode_referenced(key, kind, code, key_bytes, buffers, length, chunks, encoded)
        return
    # Always a copy of what may change: a caller fills its buffer again, and the state keeps the value.
    data = bytes(buffers[0]) if len(buffers) == 1 else b"".join(buffers)
    chunks += (HEAD.pack(kind, code, len(key_bytes), length), key_bytes, data)
    encoded.effects.append((key, data if kind == PAIR else Stored(kind, serde.version, data)))


def _encode_referenced(
    key: Hashable,
    kind: int,
    code: int,
    key_bytes: bytes,
    buffers: tuple[Buffer, ...],
    length: int,
    chunks: list[Buffer],
    encoded: Encoded,
) -> None:
    if length > VALUE_LENGTH_MAX:
        raise UnsupportedKey(f"a value of {length} bytes is over the limit of 4 GiB")
    crc = 0
    for buffer in buffers:
        view = memoryview(buffer).cast("B") if type(buffer) is memoryview else buffer
        # The caller's own buffers go to the disk: a large value is neither joined nor copied in memory.
        crc = crc32c(view, crc)
        encoded.values.append(view)
    chunks += (HEAD.pack(kind | REFERENCED, code, len(key_bytes), length), key_bytes, _CRC.pack(crc))
    encoded.effects.append((key, Placed(kind, encoded.values_length, length, crc)))
    encoded.values_length += length


def decode(body: bytes, version: int, current: bool) -> Iterator[tuple[Hashable, bytes | Stored | Placed | None]]:
    """Yields (key, value) for each record of a frame's body, value None for a deletion.

    `version` is the serde version of the journal; with `current` it is the version in use, and a small pair
    is plain `bytes`.
    """
    # No bounds checks: the CRC of the body has been verified, so its lengths are those that were written.
    position = 0
    placed = 0
    while position < len(body):
        kind, code, key_length, length = HEAD.unpack_from(body, position)
        position += HEAD.size
        key: Hashable = body[position : position + key_length]
        position += key_length
        if code != BYTES:
            key = decode_key(code, body[position - key_length : position])
        if kind == DELETE:
            yield key, None
        elif kind & REFERENCED:
            yield key, Placed(kind & ~REFERENCED, placed, length, _CRC.unpack_from(body, position)[0])
            placed += length
            position += _CRC.size
        else:
            data = body[position : position + length]
            yield key, data if current and kind == PAIR else Stored(kind, version, data)
            position += length
