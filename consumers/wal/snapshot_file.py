"""The snapshot: the whole state after one transaction, large values by reference."""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from crc32c import crc32c

from headrace.consumers.wal.journal_file import JournalFile
from headrace.consumers.wal.keys import BYTES, decode_key, encode_key
from headrace.consumers.wal.record_encoding import HEAD, PAIR, REFERENCED, Stored
from headrace.consumers.wal.value_references import Entry, ValueReference
from headrace.consumers.wal.wal_errors import ForeignLog, LogDamaged

SNAPSHOT_NAME = "snapshot"
SNAPSHOT_MAGIC = b"HRSNAPS1"
SNAPSHOT_FORMAT = 1
SNAPSHOT_HEADER = struct.Struct("<8sHxx8sQQQIH")
"""magic, format, log identity, transaction, replay from, records, serde version, length of its name."""

BLOCK_BYTES = 1 << 18
BLOCK = struct.Struct("<II")
"""Length and CRC-32C of a block of entries; the CRC starts from the block's offset in the file."""

VERSIONED = 0x20
"""Bit of the kind of an entry that was written by an older serde version, which follows the key."""

_VERSION = struct.Struct("<I")
_PLACE = struct.Struct("<QQI")
_CRC = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class SnapshotHeader:
    """The header of a snapshot.

    `transaction`: the last one that it contains. `replay_from`: journals with this or a higher number follow
    it, and it contains all lower ones.
    """

    identity: bytes
    transaction: int
    replay_from: int
    records: int
    serde_name: str
    serde_version: int


def encode_snapshot(
    header: SnapshotHeader, state: Mapping[Hashable, Entry], referenced: set[JournalFile]
) -> Iterator[bytes]:
    """Yields the file in chunks of about 256 KiB.

    Adds to `referenced` the journals that hold values of the state.
    """
    # Blocks of their own CRC, so that writing and reading need one block of memory and damage has an offset.
    name = header.serde_name.encode()
    head = SNAPSHOT_HEADER.pack(
        SNAPSHOT_MAGIC,
        SNAPSHOT_FORMAT,
        header.identity,
        header.transaction,
        header.replay_from,
        header.records,
        header.serde_version,
        len(name),
    )
    head += name
    head += _CRC.pack(crc32c(head))
    yield head
    offset = len(head)
    chunks: list[bytes] = []
    size = 0
    for key, entry in state.items():
        encoded = _encode_entry(key, entry, header.serde_version, referenced)
        chunks.append(encoded)
        size += len(encoded)
        if size >= BLOCK_BYTES:
            block = _encode_block(chunks, offset)
            yield block
            offset += len(block)
            chunks, size = [], 0
    if chunks:
        yield _encode_block(chunks, offset)


def _encode_block(chunks: list[bytes], offset: int) -> bytes:
    # The CRC starts from the offset: a block that the disk stored at another place is invalid there.
    data = b"".join(chunks)
    return BLOCK.pack(len(data), crc32c(data, offset & 0xFFFFFFFF)) + data


def _encode_entry(key: Hashable, entry: Entry, current: int, referenced: set[JournalFile]) -> bytes:
    code, key_bytes = (BYTES, key) if type(key) is bytes else encode_key(key)
    # First and without a call: nearly every entry is a small pair, and a checkpoint may have a million of them.
    if type(entry) is bytes:
        return HEAD.pack(PAIR, code, len(key_bytes), len(entry)) + key_bytes + entry
    if isinstance(entry, ValueReference):
        referenced.add(entry.journal)
        kind, version, length = entry.kind | REFERENCED, entry.version, entry.length
        data = _PLACE.pack(entry.journal.number, entry.offset, entry.crc)
    else:
        assert isinstance(entry, Stored)
        kind, version, length, data = entry.kind, entry.version, len(entry.data), entry.data
    # Values are copied as an older serde wrote them: a checkpoint never loads and dumps records.
    if version == current:
        return HEAD.pack(kind, code, len(key_bytes), length) + key_bytes + data
    return HEAD.pack(kind | VERSIONED, code, len(key_bytes), length) + key_bytes + _VERSION.pack(version) + data


class SnapshotReader:
    """Reads a snapshot forward, one block at a time; `header` is read at once, then `entries()` once.

    Raises `LogDamaged` with the offset of the header or block that fails its CRC, and `ForeignLog` for the
    format of a later build.
    """

    # The file gets its name only when it is durable, so no
    # crash leaves a partial one: every wrong byte is damage.

    def __init__(self, path: Path, read: Callable[[int, int], bytes], size: int) -> None:
        self.path = path
        self._read = read
        self._size = size
        head = read(0, SNAPSHOT_HEADER.size)
        if len(head) < SNAPSHOT_HEADER.size or not head.startswith(SNAPSHOT_MAGIC):
            raise LogDamaged(path, 0, "the snapshot's header is truncated or invalid")
        _, version, identity, transaction, replay_from, records, serde_version, length = SNAPSHOT_HEADER.unpack(head)
        head += read(len(head), length + _CRC.size)
        end = SNAPSHOT_HEADER.size + length
        if len(head) != end + _CRC.size or crc32c(head[:end]) != _CRC.unpack_from(head, end)[0]:
            raise LogDamaged(path, 0, "the snapshot's header fails its CRC")
        if version != SNAPSHOT_FORMAT:
            raise ForeignLog(
                f"{path} has snapshot format {version}, which this build does not know",
                action="open it with a newer build",
            )
        name = head[SNAPSHOT_HEADER.size : end].decode()
        self.header = SnapshotHeader(identity, transaction, replay_from, records, name, serde_version)
        self._start = len(head)

    def entries(
        self, journal_of: Callable[[int], JournalFile | None], current: int
    ) -> Iterator[tuple[Hashable, Entry]]:
        """Yields (key, entry).

        `journal_of(number)` returns the journal of a reference, `current` is the serde version in use.
        """
        offset, records = self._start, 0
        while offset < self._size:
            block = self._block(offset)
            for item in self._block_entries(block, offset, journal_of, current):
                records += 1
                yield item
            offset += BLOCK.size + len(block)
        # Whole blocks missing at the end pass every CRC; only the count shows them.
        if records != self.header.records:
            raise LogDamaged(self.path, offset, f"the snapshot has {records} records instead of {self.header.records}")

    def _block(self, offset: int) -> bytes:
        head = self._read(offset, BLOCK.size)
        if len(head) == BLOCK.size:
            length, crc = BLOCK.unpack(head)
            block = self._read(offset + BLOCK.size, length) if offset + BLOCK.size + length <= self._size else b""
            if block and len(block) == length and crc32c(block, offset & 0xFFFFFFFF) == crc:
                return block
        raise LogDamaged(self.path, offset, "a block of the snapshot is truncated or fails its CRC")

    def _block_entries(
        self, block: bytes, offset: int, journal_of: Callable[[int], JournalFile | None], current: int
    ) -> Iterator[tuple[Hashable, Entry]]:
        written = self.header.serde_version
        position = 0
        while position < len(block):
            kind, code, key_length, length = HEAD.unpack_from(block, position)
            position += HEAD.size
            key: Hashable = block[position : position + key_length]
            if code != BYTES:
                key = decode_key(code, block[position : position + key_length])
            position += key_length
            version = written
            if kind & VERSIONED:
                (version,) = _VERSION.unpack_from(block, position)
                position += _VERSION.size
                kind &= ~VERSIONED
            if kind & REFERENCED:
                number, place, crc = _PLACE.unpack_from(block, position)
                position += _PLACE.size
                journal = journal_of(number)
                if journal is None:
                    raise LogDamaged(
                        self.path, offset, f"it refers to journal {number}, which the manifest does not name"
                    )
                yield key, ValueReference(journal, kind & ~REFERENCED, version, place, length, crc)
                continue
            data = block[position : position + length]
            position += length
            yield key, data if kind == PAIR and version == current else Stored(kind, version, data)
