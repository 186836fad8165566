"""Serialisation of records: the Serde protocol, the serde for pairs of bytes, and the two operations."""

from __future__ import annotations

import struct
from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar

from headrace.connectors.files import Buffer

Key = TypeVar("Key", bound=Hashable)
Record = TypeVar("Record")
KeyOut = TypeVar("KeyOut", bound=Hashable, covariant=True)

Value = Buffer | tuple[Buffer, ...]
"""The value of a pair when it is written: one buffer, or several that are stored one after the other without
being joined in memory.
"""

Pair = tuple[bytes, Value]
"""A record of `BytesSerde`. A recovered pair always holds plain `bytes`."""

_LENGTH = struct.Struct("<I")


class Serde(Protocol[KeyOut, Record]):
    """Turns records into bytes and back.

    Every file has `name` and `version`: a log opens only with the same name and the same or a later version.
    `dump` and `load` may raise; the update or recovery then fails as a whole and changes nothing.
    """

    @property
    def name(self) -> str:
        """The serde's name, constant for the lifetime of its logs."""

    @property
    def version(self) -> int:
        """The version of `dump`, higher after each change; `load` must read all lower ones."""

    def key(self, record: Record) -> KeyOut:
        """The record's key: bytes, str, int, float, UUID or a tuple of them."""

    def dump(self, record: Record) -> bytes:
        """The record as bytes, its key included."""

    def load(self, data: bytes, version: int) -> Record:
        """The record from which `dump` of that version created `data`."""


class BytesSerde:
    """Records are `(key: bytes, value: bytes)` pairs, written without a copy.

    Values may be `bytes`, `bytearray`, `memoryview` or a tuple of them.
    """

    name = "bytes"
    version = 1

    def key(self, record: Pair) -> bytes:
        """The first of the pair."""
        return record[0]

    def dump(self, record: Pair) -> bytes:
        """Length of the key in 4 bytes, key, value."""
        return join_pair(record[0], record[1])

    def load(self, data: bytes, version: int) -> tuple[bytes, bytes]:  # noqa: ARG002
        """The inverse of `dump`."""
        (length,) = _LENGTH.unpack_from(data)
        end = _LENGTH.size + length
        return bytes(data[_LENGTH.size : end]), bytes(data[end:])


# Compared by identity below: a subclass that overrides
# one of them must not lose its override to the fast path.
_DUMP, _LOAD, _KEY = BytesSerde.dump, BytesSerde.load, BytesSerde.key


def dumps_pairs(serde: object) -> bool:
    """Whether records are pairs written by `BytesSerde` itself, so that `dump` need not copy values."""
    return (
        getattr(getattr(serde, "dump", None), "__func__", None) is _DUMP
        and getattr(getattr(serde, "key", None), "__func__", None) is _KEY
    )


def loads_pairs(serde: object) -> bool:
    """Whether `load` is that of `BytesSerde`, so that a stored pair is the record itself."""
    return getattr(getattr(serde, "load", None), "__func__", None) is _LOAD


def join_pair(key: bytes, value: Value) -> bytes:
    """The bytes that `BytesSerde.dump` returns for a pair."""
    return b"".join((_LENGTH.pack(len(key)), key, *(value if isinstance(value, tuple) else (value,))))


class Put(Generic[Record]):
    """Creates a record, or replaces the one with the same key."""

    __slots__ = ("record",)

    def __init__(self, record: Record) -> None:
        self.record = record

    def __repr__(self) -> str:
        return f"Put({self.record!r})"


class Delete(Generic[Key]):
    """Removes the record with this key; a missing record is no error."""

    __slots__ = ("key",)

    def __init__(self, key: Key) -> None:
        self.key = key

    def __repr__(self) -> str:
        return f"Delete({self.key!r})"
