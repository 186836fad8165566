"""One journal file: the frames of one partition since the file was created."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from crc32c import crc32c

from headrace.connectors.files import Buffer, FileLayer
from headrace.consumers.wal.frames import (
    Frame,
    FrameReader,
    JournalHeader,
    UnknownFormat,
    decode_journal_header,
    encode_journal_header,
    headers_after,
)
from headrace.consumers.wal.prefix import JournalScan
from headrace.consumers.wal.record_encoding import Placed, decode
from headrace.consumers.wal.wal_errors import ForeignLog, LogDamaged

BUFFERS_MAX = 512
"""Buffers of one system call; the kernel accepts 1,024."""

REWRITE_BYTES = 1 << 20
HEADER_READ_BYTES = 1 << 17


def journal_name(number: int, partition: int) -> str:
    """File name of a journal.

    Numbers increase over the life of a log; a file that held a frame has a unique one.
    """
    return f"journal-{number:010d}-{partition:04d}.wal"


class JournalFile:
    """Owns one journal file and its descriptor.

    Bytes before `end` are whole frames and never change; between `end` and `reserved` the file holds zeros.
    `append` and `truncate` need the log's write lock; reads and syncs need none.
    """

    # The descriptor is closed by `__del__`, not by the log: a ValueReference keeps its journal, so a value
    # stays readable after the file was deleted and the log closed.

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
    def create(cls, files: FileLayer, directory: Path, header: JournalHeader, reserve_bytes: int) -> JournalFile:
        """Creates the file with a durable header; leaves no file when that fails."""
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
    def open(cls, files: FileLayer, directory: Path, number: int, partition: int) -> JournalFile:
        """Opens an existing file.

        Raises `FileNotFoundError`, or `ForeignLog` for the format of a later build.
        """
        path = directory / journal_name(number, partition)
        journal = cls(files, path, number, partition, files.open(path))
        # A file is opened by the name that the manifest has, so it needs no publishing again.
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
        """Writes the buffers at `end`.

        After an error `end` is unchanged but bytes may follow it: call `truncate`.
        """
        # A loop, since the generator of a sum() would cost more in every update.
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
        # Reserved blocks are allocated already, so most syncs write data only and no file-system metadata.
        start = max(self.end, self.reserved)
        try:
            self._files.reserve(self._descriptor, start, reserve_bytes)
            self.reserved = start + reserve_bytes
        except OSError:
            # Without space for the reserve there may still be space
            # for the frame. A partial allocation is returned.
            self._files.truncate(self._descriptor, start)

    def _write(self, buffers: Sequence[Buffer], offset: int, length: int) -> None:
        if len(buffers) <= BUFFERS_MAX:
            written = self._files.write(self._descriptor, buffers, offset)
            if written == length:
                return
        else:
            written = self._files.write(self._descriptor, buffers[:BUFFERS_MAX], offset)
        # The kernel may write less than it was given: near a full disk, after a signal, beyond 2 GiB.
        rest = _skip(buffers, written)
        while rest:
            step = self._files.write(self._descriptor, rest[:BUFFERS_MAX], offset + written)
            if step <= 0:
                raise OSError(5, f"{self.path} accepts no more bytes")
            written += step
            rest = _skip(rest, step)

    def truncate(self, offset: int) -> None:
        """Makes the file end at `offset`, durably."""
        # Synced at once. A truncation lost in a crash would bring the old frame back after one that was
        # written in its place: a failed update would reappear.
        self._files.truncate(self._descriptor, offset)
        self._files.sync_data(self._descriptor)
        self.end = self.reserved = offset

    def rewrite(self, start: int, end: int) -> None:
        """Writes the bytes between two offsets again, unchanged, so that the next sync includes them."""
        # After a failed sync the kernel marks the pages clean. A later sync, even of another process, then
        # succeeds without writing them. Writing makes them dirty again.
        while start < end:
            data = self.read(start, min(end - start, REWRITE_BYTES))
            assert data, "only bytes that were read before are written again"
            self._write([data], start, len(data))
            start += len(data)

    def trim(self) -> None:
        """Returns the reserve to the file system.

        Needs no sync: a crash leaves zeros, which recovery accepts.
        """
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
        """A referenced value; raises `LogDamaged` when its bytes have changed."""
        data = self.read(offset, length)
        if len(data) != length or crc32c(data) != crc:
            raise LogDamaged(self.path, offset, f"a value of {length} bytes fails its CRC")
        return data

    def scan(self) -> JournalScan:
        """Reads the whole file forward and sets `end`; raises an operating error unchanged."""
        size = self._files.size(self._descriptor)
        header = self.header
        scan = JournalScan(self.number, header.durable if header else 0)
        if header is None:
            self._scan_without_header(scan, size)
            return scan
        reader = FrameReader(self.read, size, self.number, self.header_length, self._values_are_valid)
        scan.frames = list(reader)
        scan.end, scan.stop_reason = reader.stop.offset, reader.stop.reason
        if scan.stop_reason is not None:
            scan.later_headers = list(headers_after(self.read, size, self.number, scan.end + 1))
        self.end = scan.end
        return scan

    def _scan_without_header(self, scan: JournalScan, size: int) -> None:
        scan.has_header = False
        scan.stop_reason = None if size == 0 else "the file's header is truncated or fails its CRC"
        scan.later_headers = list(headers_after(self.read, size, self.number, 0))
        if scan.later_headers:
            # A frame is written only after header and name of its file are durable. So the header was durable
            # and is damaged now; the lowest transaction counts as durable, which makes the decision damage
            # and not a torn tail.
            scan.durable = max(scan.durable, min(transaction for _, transaction, _ in scan.later_headers))

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
