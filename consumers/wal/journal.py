"""One journal file: the frames of one partition since it was made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from crc32c import crc32c

from connectors.files import Buffer, FileLayer
from consumers.wal.errors import ForeignLog, LogDamaged
from consumers.wal.frames import (
    Frame,
    FrameReader,
    JournalHeader,
    UnknownFormat,
    decode_journal_header,
    encode_journal_header,
    headers_beyond,
)
from consumers.wal.prefix import Scan
from consumers.wal.records import Placed, decode

BUFFERS_MAX = 512
"""Buffers handed to one system call; the kernel takes 1,024."""

REWRITE_BYTES = 1 << 20
HEADER_READ_BYTES = 1 << 17


def journal_name(number: int, partition: int) -> str:
    """File name of a journal; numbers rise over the life of a log and are never given twice to a file that held
    anything.
    """
    return f"journal-{number:010d}-{partition:04d}.wal"


class Journal:
    """Owns one journal file and its descriptor. Bytes before `end` are whole frames and never change; between `end` and
    `reserved` the file holds zeros.

    Appends and cuts need the log's write lock; reads and syncs need none. The descriptor lives as long as anything
    refers to a value in the file, also after the file is deleted: a value that was handed out stays readable.
    """

    def __init__(self, files: FileLayer, path: Path, number: int, partition: int, descriptor: int) -> None:
        self.path = path
        self.number = number
        self.partition = partition
        self.end = 0
        self.reserved = 0
        self.published = False
        self.header: JournalHeader | None = None
        self.header_length = 0
        self._files = files
        self._descriptor = descriptor

    @classmethod
    def create(cls, files: FileLayer, directory: Path, header: JournalHeader, reserve_bytes: int) -> Journal:
        """Makes the file with a durable header; leaves nothing behind when that fails."""
        path = directory / journal_name(header.number, header.partition)
        journal = cls(files, path, header.number, header.partition, files.create(path))
        try:
            journal.append([encode_journal_header(header)], reserve_bytes)
            journal.header, journal.header_length = header, journal.end
            files.step("journal: header written")
            files.sync(journal._descriptor)
        except BaseException:
            files.unlink(path)
            raise
        return journal

    @classmethod
    def open(cls, files: FileLayer, directory: Path, number: int, partition: int) -> Journal:
        """Opens an existing file; raises `FileNotFoundError`, or `ForeignLog` for the format of a later build."""
        path = directory / journal_name(number, partition)
        journal = cls(files, path, number, partition, files.open(path))
        journal.published = True
        journal.reserved = files.size(journal._descriptor)
        try:
            decoded = decode_journal_header(journal.read(0, HEADER_READ_BYTES))
        except UnknownFormat as error:
            raise ForeignLog(
                f"{path} has {error}, which this build does not know", action="open it with a newer build"
            ) from None
        if decoded is not None:
            journal.header, journal.header_length = decoded
        journal.end = journal.header_length
        return journal

    def append(self, buffers: Sequence[Buffer], reserve_bytes: int) -> None:
        """Writes the buffers at the end, all or nothing. On an error `end` is unchanged, but bytes may stand after it:
        see `cut`.
        """
        length = 0
        for buffer in buffers:
            length += len(buffer)
        if self.end + length > self.reserved and length < reserve_bytes:
            self._reserve(reserve_bytes)
        self._write(buffers, self.end, length)
        self.end += length
        if self.end > self.reserved:
            self.reserved = self.end

    def _reserve(self, reserve_bytes: int) -> None:
        start = max(self.end, self.reserved)
        try:
            self._files.reserve(self._descriptor, start, reserve_bytes)
            self.reserved = start + reserve_bytes
        except OSError:
            # Without space for the reserve there may still be space for the frame; what was given in part goes back.
            self._files.truncate(self._descriptor, start)

    def _write(self, buffers: Sequence[Buffer], offset: int, length: int) -> None:
        if len(buffers) <= BUFFERS_MAX:
            written = self._files.write(self._descriptor, buffers, offset)
            if written == length:
                return
        else:
            written = self._files.write(self._descriptor, buffers[:BUFFERS_MAX], offset)
        rest = _skip(buffers, written)
        while rest:
            step = self._files.write(self._descriptor, rest[:BUFFERS_MAX], offset + written)
            if step <= 0:
                raise OSError(5, f"{self.path} takes no more bytes")
            written += step
            rest = _skip(rest, step)

    def cut(self, offset: int) -> None:
        """Makes the file end at `offset`, durably: a frame that was cut must not come back behind one that is written
        in its place.
        """
        self._files.truncate(self._descriptor, offset)
        self._files.sync_data(self._descriptor)
        self.end = self.reserved = offset

    def rewrite(self, start: int, end: int) -> None:
        """Writes the bytes between two offsets once more, unchanged, so that the next sync really takes them to the disk.

        After a failed sync the kernel calls its pages clean, and a later one, even of another process, succeeds without
        writing them.
        """
        while start < end:
            data = self.read(start, min(end - start, REWRITE_BYTES))
            assert data, "only bytes that were read before are written again"
            self._write([data], start, len(data))
            start += len(data)

    def trim(self) -> None:
        """Gives the reserve back; for an orderly close, needs no sync."""
        if self.reserved > self.end:
            self._files.truncate(self._descriptor, self.end)
            self.reserved = self.end

    def sync(self) -> None:
        """Makes everything written so far durable."""
        self._files.sync_data(self._descriptor)

    def read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes; fewer only at the end of the file."""
        data = self._files.read(self._descriptor, length, offset)
        while len(data) < length:
            more = self._files.read(self._descriptor, length - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def read_value(self, offset: int, length: int, crc: int) -> bytes:
        """A referenced value; raises `LogDamaged` when it is not what was written."""
        data = self.read(offset, length)
        if len(data) != length or crc32c(data) != crc:
            raise LogDamaged(self.path, offset, f"a value of {length} bytes fails its CRC")
        return data

    def scan(self) -> Scan:
        """Reads the whole file forward; changes nothing but `end`. An operating error comes out as it is."""
        size = self._files.size(self._descriptor)
        header = self.header
        scan = Scan(self.number, header.durable if header else 0)
        if header is None:
            self._scan_headless(scan, size)
            return scan
        reader = FrameReader(self.read, size, self.number, self.header_length, self._values_are_valid)
        scan.frames = list(reader)
        scan.end, scan.trouble = reader.stop.offset, reader.stop.reason
        if scan.trouble is not None:
            scan.beyond = list(headers_beyond(self.read, size, self.number, scan.end + 1))
        self.end = scan.end
        return scan

    def _scan_headless(self, scan: Scan, size: int) -> None:
        scan.trouble = None if size == 0 else "the file's header is cut or fails its CRC"
        scan.beyond = list(headers_beyond(self.read, size, self.number, 0))
        if scan.beyond:
            # A frame is written only after the header and the file's name are durable.
            scan.durable = max(scan.durable, min(transaction for _, transaction, _ in scan.beyond))

    def _values_are_valid(self, frame: Frame) -> bool:
        for _, value in decode(frame.body, 0, False):
            if type(value) is Placed:
                data = self.read(frame.values_offset + value.offset, value.length)
                if len(data) != value.length or crc32c(data) != value.crc:
                    return False
        return True

    def __del__(self) -> None:
        self._files.close(self._descriptor)


def _skip(buffers: Sequence[Buffer], count: int) -> list[Buffer]:
    rest: list[Buffer] = []
    for buffer in buffers:
        if count >= len(buffer):
            count -= len(buffer)
        elif count:
            rest.append(memoryview(buffer)[count:])
            count = 0
        else:
            rest.append(buffer)
    return rest
