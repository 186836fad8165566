"""Receipts: what a member shows of each record that it holds durably, so that a writer can recognise its own.

A receipt is 8 bytes, made of a record's offset and its value. A status carries those of the newest records. A
copy counts for a quorum only with the receipts of what was written: `durable_offset` alone does not show of
which log a member read that offset (docs/internals/replication.md).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import xxhash

RECEIPT_BYTES = 8
_OFFSET = struct.Struct("<q")


def value_digest(value: bytes) -> bytes:
    """xxh3-128 of a record's value, 16 bytes."""
    return xxhash.xxh3_128_digest(value)


def receipt_of(offset: int, digest: bytes) -> bytes:
    """The receipt of the record at an offset whose value has this digest, RECEIPT_BYTES bytes."""
    return xxhash.xxh3_64_digest(_OFFSET.pack(offset) + digest)


def end_of(receipt: bytes, receipts: bytes | bytearray) -> int:
    """The position right behind a receipt among others, in bytes; 0 when it is not one of them."""
    # From the end: what is looked for is nearly always one of the newest.
    position = receipts.rfind(receipt) if receipt else -1
    while position > 0 and position % RECEIPT_BYTES:
        position = receipts.rfind(receipt, 0, position + RECEIPT_BYTES - 1)
    return position + RECEIPT_BYTES if position >= 0 else 0


@dataclass(frozen=True, slots=True)
class WrittenRecords:
    """What a producer wrote to one forward log: the newest offset, and the receipt of each record."""

    offset: int = -1
    receipts: tuple[bytes, ...] = ()
