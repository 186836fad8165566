"""Keys as bytes: the hashable types whose decoded value is equal to the original in every process."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Hashable
from typing import cast

from headrace.consumers.wal.wal_errors import UnsupportedKey

BYTES = 0
TEXT = 1
INTEGER = 2
TUPLE = 3
NOTHING = 4
BOOLEAN = 5
REAL = 6
UUID = 7

KEY_LENGTH_MAX = 65_535
"""Bytes of an encoded key; a record's head gives its length in 16 bits."""

_ITEM = struct.Struct("<BH")


def encode_key(key: Hashable) -> tuple[int, bytes]:
    """Returns (type code, bytes) of a key.

    Raises `UnsupportedKey` for a type or length that the log cannot hold.
    """
    code, data = (BYTES, key) if type(key) is bytes else _encode_other(key)
    if len(data) > KEY_LENGTH_MAX:
        raise UnsupportedKey(f"a key of {len(data)} bytes is over the limit of {KEY_LENGTH_MAX}")
    return code, data


def decode_key(code: int, data: bytes) -> Hashable:
    """The inverse of `encode_key`; raises `ValueError` for a code it does not know."""
    if code == BYTES:
        return data
    if code == TEXT:
        return data.decode("utf-8", "surrogatepass")
    if code == INTEGER:
        return int.from_bytes(data, "little", signed=True)
    if code == TUPLE:
        return _decode_tuple(data)
    if code == NOTHING:
        return None
    if code == BOOLEAN:
        return data != b"\0"
    if code == REAL:
        return cast(float, struct.unpack("<d", data)[0])
    if code == UUID:
        return uuid.UUID(bytes=data)
    raise ValueError(f"unknown key type {code}")


def _encode_other(key: Hashable) -> tuple[int, bytes]:
    # bool before int, since bool is a subclass of int and would decode as 0 or 1.
    if isinstance(key, str):
        # surrogatepass: a file name decoded by Python may hold
        # lone surrogates, and must decode to an equal key.
        return TEXT, key.encode("utf-8", "surrogatepass")
    if isinstance(key, bool):
        return BOOLEAN, b"\1" if key else b"\0"
    if isinstance(key, int):
        return INTEGER, int(key).to_bytes(key.bit_length() // 8 + 1, "little", signed=True)
    if isinstance(key, bytes):
        return BYTES, bytes(key)
    if isinstance(key, tuple):
        return TUPLE, _encode_tuple(key)
    if key is None:
        return NOTHING, b""
    if isinstance(key, float):
        return REAL, struct.pack("<d", key)
    if isinstance(key, uuid.UUID):
        return UUID, key.bytes
    raise UnsupportedKey(
        f"a key of type {type(key).__name__} cannot be written; use bytes, str, int, float, UUID or tuples of them"
    )


def _encode_tuple(key: tuple[Hashable, ...]) -> bytes:
    encoded = [encode_key(item) for item in key]
    return b"".join(_ITEM.pack(code, len(data)) + data for code, data in encoded)


def _decode_tuple(data: bytes) -> tuple[Hashable, ...]:
    items = []
    position = 0
    while position < len(data):
        code, length = _ITEM.unpack_from(data, position)
        position += _ITEM.size
        items.append(decode_key(code, data[position : position + length]))
        position += length
    return tuple(items)
