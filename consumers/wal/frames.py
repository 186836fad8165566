"""Frames, the unit of a journal: one transaction each. Pure: bytes in, values out, no I/O.

A frame is verified by itself. Its *header CRC* distinguishes a flipped length from a file that ends early.
Its *frame CRC* covers every byte except referenced values, which have their own. Both start from a seed of
the journal's number and the frame's offset. So a frame that was copied elsewhere, or stored as a value, is
invalid there. A frame also carries the highest transaction that was known durable when it was written, the
watermark. By it recovery decides whether invalid bytes are damage or a torn tail.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from crc32c import crc32c

# 0xF7 occurs in no UTF-8 text: a search for headers in the middle of values seldom finds a candidate.
FRAME_MAGIC = b"\xf7HRf"
FRAME_HEADER = struct.Struct("<4sIIIQQQI")
"""magic, header CRC, frame CRC, body length, values length, transaction, durable, records."""
FRAME_HEADER_BYTES = FRAME_HEADER.size
_COVERED = struct.Struct("<IQQQI")
_CRC = struct.Struct("<I")
_COVERED_START = 12

JOURNAL_MAGIC = b"HRJOURN1"
JOURNAL_HEADER = struct.Struct("<8sHHQ8sQQIH")
"""magic, format, partition, number, log identity, first transaction, durable, serde version, length of the
serde's name.
"""
JOURNAL_FORMAT = 1

_MASK = 0xFFFFFFFF

Read = Callable[[int, int], bytes]
"""`read(offset, length)`: up to `length` bytes of one file, fewer only at its end."""


@dataclass(frozen=True, slots=True)
class JournalHeader:
    """The first bytes of a journal; synced before the manifest names the file."""

    partition: int
    number: int
    identity: bytes
    first_transaction: int
    durable: int
    serde_name: str
    serde_version: int


class UnknownFormat(ValueError):
    """A valid header of a format that this build does not know."""


class Frame(NamedTuple):
    """One valid frame. `values_offset` is the offset in the file of its referenced values."""

    transaction: int
    durable: int
    records: int
    offset: int
    end: int
    values_offset: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Stop:
    """The end of reading forward; `reason` is None at a clean end (end of file, or zeros up to it)."""

    offset: int
    reason: str | None


def seed_of(number: int, offset: int) -> int:
    """Start value of the CRCs of the frame at `offset` of journal `number`."""
    # Both halves of the offset: a journal may exceed 4 GiB, and a frame that was moved by so much must fail.
    return ((number * 0x9E3779B1) ^ offset ^ (offset >> 32)) & _MASK


def encode_frame(
    number: int, offset: int, transaction: int, durable: int, records: int, body: bytes, values_length: int
) -> bytes:
    """Returns header and body of a frame; the referenced values follow it unchanged."""
    seed = seed_of(number, offset)
    covered = _COVERED.pack(len(body), values_length, transaction, durable, records)
    frame_crc = _CRC.pack(crc32c(body, crc32c(covered, seed)))
    header_crc = _CRC.pack(crc32c(frame_crc + covered, seed))
    return b"".join((FRAME_MAGIC, header_crc, frame_crc, covered, body))


def encode_journal_header(header: JournalHeader) -> bytes:
    """Returns the header with its CRC."""
    name = header.serde_name.encode()
    data = (
        JOURNAL_HEADER.pack(
            JOURNAL_MAGIC,
            JOURNAL_FORMAT,
            header.partition,
            header.number,
            header.identity,
            header.first_transaction,
            header.durable,
            header.serde_version,
            len(name),
        )
        + name
    )
    return data + _CRC.pack(crc32c(data))


def decode_journal_header(data: bytes) -> tuple[JournalHeader, int] | None:
    """Returns (header, its length), or None when it is truncated or its CRC is wrong.

    Raises `UnknownFormat` for a header of a later build.
    """
    if len(data) < JOURNAL_HEADER.size:
        return None
    magic, version, partition, number, identity, first, durable, serde_version, length = JOURNAL_HEADER.unpack_from(
        data
    )
    end = JOURNAL_HEADER.size + length
    if magic != JOURNAL_MAGIC or len(data) < end + _CRC.size:
        return None
    if crc32c(data[:end]) != _CRC.unpack_from(data, end)[0]:
        return None
    if version != JOURNAL_FORMAT:
        raise UnknownFormat(f"journal format {version}")
    name = data[JOURNAL_HEADER.size : end].decode()
    return JournalHeader(partition, number, identity, first, durable, name, serde_version), end + _CRC.size


def header_is_valid(data: bytes, position: int, seed: int) -> bool:
    """Whether the frame header at `position` of `data` is whole and passes its own CRC."""
    end = position + FRAME_HEADER_BYTES
    return (
        len(data) >= end
        and data[position : position + 4] == FRAME_MAGIC
        and crc32c(data[position + 8 : end], seed) == _CRC.unpack_from(data, position + 4)[0]
    )


# A recovery creates a million frames; this costs half as much as the named constructor.
_new = tuple.__new__


class FrameReader:
    """Reads the frames of one journal forward, in windows, up to the first offset without a valid frame.

    After the iteration `stop` has the offset and the reason. `values_are_valid(frame)` is called for frames
    with referenced values and checks their CRCs. Memory is one window plus the body of one frame.
    """

    def __init__(
        self,
        read: Read,
        size: int,
        number: int,
        start: int,
        values_are_valid: Callable[[Frame], bool],
        window: int = 1 << 20,
    ):
        self.stop = Stop(start, None)
        self._read = read
        self._size = size
        self._number = number
        self._values_are_valid = values_are_valid
        self._window = window
        self._position = start

    def __iter__(self) -> Iterator[Frame]:
        base, data, limit = self._position, b"", 0
        while True:
            position = self._position - base
            if position + FRAME_HEADER_BYTES > limit:
                base, data = self._position, self._read(self._position, self._window)
                position, limit = 0, len(data)
                if limit < FRAME_HEADER_BYTES:
                    break
            # The header CRC is not checked here: the frame CRC covers the same bytes, and only a bad frame
            # needs to know which part of it is wrong (`classify_end`).
            magic, _, frame_crc, body_length, values_length, transaction, durable, records = FRAME_HEADER.unpack_from(
                data, position
            )
            if magic != FRAME_MAGIC:
                break
            # Lengths are not verified yet; a flipped one must not read beyond the file.
            end = position + FRAME_HEADER_BYTES + body_length
            if base + end + values_length > self._size:
                break
            if end > limit:
                base, data = self._position, self._read(self._position, max(self._window, end - position))
                end, position, limit = end - position, 0, len(data)
                if end > limit:
                    break
            offset = base + position
            # seed_of() inlined: the call would cost a tenth of the whole loop.
            seed = ((self._number * 0x9E3779B1) ^ offset ^ (offset >> 32)) & _MASK
            if crc32c(data[position + _COVERED_START : end], seed) != frame_crc:
                break
            body = data[position + FRAME_HEADER_BYTES : end]
            frame = _new(Frame, (transaction, durable, records, offset, base + end + values_length, base + end, body))
            # Values count to the frame: a transaction is recovered whole or not at all.
            if values_length and not self._values_are_valid(frame):
                break
            self._position = frame.end
            yield frame
        self.stop = classify_end(self._read, self._size, self._number, self._position)


def classify_end(read: Read, size: int, number: int, offset: int) -> Stop:
    """Classifies the bytes at `offset`, where no valid frame begins: clean end, torn frame or others."""
    # Zeros up to the end are the reserve, or a file whose size reached the disk before its bytes.
    if only_zeros(read, size, offset):
        return Stop(offset, None)
    head = read(offset, FRAME_HEADER_BYTES)
    if len(head) < FRAME_HEADER_BYTES:
        return Stop(offset, "the file ends within a frame's header")
    if not header_is_valid(head, 0, seed_of(number, offset)):
        return Stop(offset, "a frame's header fails its CRC")
    _, _, _, body_length, values_length, transaction, _, _ = FRAME_HEADER.unpack_from(head)
    if offset + FRAME_HEADER_BYTES + body_length + values_length > size:
        return Stop(offset, f"the file ends within transaction {transaction}")
    return Stop(offset, f"transaction {transaction} fails its CRC")


def only_zeros(read: Read, size: int, offset: int, window: int = 1 << 20) -> bool:
    """Whether every byte from `offset` to the end of the file is zero."""
    while offset < size:
        data = read(offset, window)
        if not data:
            return True
        if data.count(0) != len(data):
            return False
        offset += len(data)
    return True


def headers_after(
    read: Read, size: int, number: int, offset: int, window: int = 1 << 20
) -> Iterator[tuple[int, int, int]]:
    """Yields (offset, transaction, durable) of every valid frame header from `offset` on.

    A valid header is evidence even when its frame is not whole: this log wrote it at this offset.
    """
    # Headers may start at any byte, so the search is for the magic; windows overlap by one header.
    while offset < size:
        data = read(offset, window + FRAME_HEADER_BYTES)
        position = data.find(FRAME_MAGIC)
        while 0 <= position < window:
            if header_is_valid(data, position, seed_of(number, offset + position)):
                _, _, _, _, _, transaction, durable, _ = FRAME_HEADER.unpack_from(data, position)
                yield offset + position, transaction, durable
            position = data.find(FRAME_MAGIC, position + 1)
        offset += window
