"""A disk in memory that loses unsynced changes, fails on request, and runs full."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headrace.connectors.files import Buffer, FileLayer

SECTOR_BYTES = 64
"""What such a disk writes at once; small, so that small tests meet torn writes."""


class Crash(BaseException):
    """The machine stopped. Not an `Exception`: nothing in the code under test may handle it."""


@dataclass(slots=True)
class Change:
    """One unsynced change of one file: bytes at an offset, or, with `data` None, a new size."""

    offset: int
    data: bytes | None


@dataclass(slots=True)
class Inode:
    """A file: its visible content, its durable content, and the unsynced changes between the two in order."""

    seen: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[Change] = field(default_factory=list)


def apply(content: bytearray, change: Change) -> None:
    """Does one change to a file's content."""
    if change.data is None:
        if change.offset < len(content):
            del content[change.offset :]
        else:
            content.extend(bytes(change.offset - len(content)))
        return
    if change.offset > len(content):
        content.extend(bytes(change.offset - len(content)))
    content[change.offset : change.offset + len(change.data)] = change.data


class NoLock:
    """A double of the directory lock, which a crash releases anyway."""

    def release(self) -> None:
        """Nothing to do."""


class SimulatedDisk(FileLayer):
    """The file layer over a dict. `fail(operation, n)` makes the nth next call fail; `crash_in(n)` stops the machine at the nth next call.

    Operations that count: write, data (fdatasync), sync (fsync), truncate, reserve, create, rename, unlink, directory, step.
    """

    def __init__(self) -> None:
        self.names_seen: dict[str, Inode] = {}
        self.names_durable: dict[str, Inode] = {}
        self.names_pending: list[tuple[str, str, Inode | None]] = []
        self.capacity: int | None = None
        self.steps: list[str] = []
        self.crashed = False
        self.short_writes = False
        self._descriptors: dict[int, Inode] = {}
        self._next_descriptor = 3
        self._faults: dict[str, int] = {}
        self._crash_in: int | None = None
        self._crash_at_step: tuple[str, int] | None = None
        self.random = random.Random(0)

    def fail(self, operation: str, nth: int) -> None:
        """The nth next call of the operation raises EIO."""
        self._faults[operation] = nth

    def clear_faults(self) -> None:
        """Clear all faults."""
        self._faults.clear()
        self.capacity = None
        self.short_writes = False

    def crash_in(self, operations: int | None) -> None:
        """Stops the machine before the nth next operation."""
        self._crash_in = operations

    def crash_at_step(self, name: str, nth: int = 1) -> None:
        """Stops the machine at the nth next time that the named step is reached."""
        self._crash_at_step = (name, nth)

    def crash(self, *, any_sectors: bool = False) -> SimulatedDisk:
        """What the next start finds: of each file any prefix of its unsynced changes (or any sectors of them), of names any prefix."""
        after = SimulatedDisk()
        after.random = self.random
        for name, inode in self._surviving_names().items():
            content = self._surviving_content(inode, any_sectors)
            after.names_seen[name] = Inode(bytearray(content), bytearray(content))
        after.names_durable = dict(after.names_seen)
        self.crashed = True
        return after

    def kill(self) -> SimulatedDisk:
        """What the next start finds when only the process was killed: everything written."""
        after = SimulatedDisk()
        after.random = self.random
        after.names_seen, after.names_durable = self.names_seen, self.names_durable
        after.names_pending = self.names_pending
        self.crashed = True
        return after

    def copy(self) -> SimulatedDisk:
        """A disk with the same files, all durable."""
        after = SimulatedDisk()
        for name, inode in self.names_seen.items():
            after.names_seen[name] = Inode(bytearray(inode.seen), bytearray(inode.seen))
        after.names_durable = dict(after.names_seen)
        return after

    def sizes(self) -> dict[str, int]:
        """Bytes of each file by name, without its directory."""
        return {os.path.basename(name): len(inode.seen) for name, inode in self.names_seen.items()}

    def content(self, name: str) -> bytearray:
        """The bytes of the file with that name in any directory.

        Changing them changes the file behind the log's back.
        """
        return next(inode.seen for path, inode in self.names_seen.items() if os.path.basename(path) == name)

    def _surviving_names(self) -> dict[str, Inode]:
        names = dict(self.names_durable)
        for operation, name, inode in self.names_pending[: self.random.randint(0, len(self.names_pending))]:
            if operation == "link":
                assert inode is not None
                names[name] = inode
            else:
                names.pop(name, None)
        return names

    def _surviving_content(self, inode: Inode, any_sectors: bool) -> bytearray:
        content = bytearray(inode.durable)
        kept = self.random.randint(0, len(inode.pending))
        if any_sectors and self.random.random() < 0.5:
            for change in inode.pending:
                self._apply_some_sectors(content, change)
            return content
        for change in inode.pending[:kept]:
            apply(content, change)
        if kept < len(inode.pending) and (last := inode.pending[kept]).data:
            assert last.data is not None
            apply(content, Change(last.offset, last.data[: self.random.randint(0, len(last.data))]))
        return content

    def _apply_some_sectors(self, content: bytearray, change: Change) -> None:
        if change.data is None:
            apply(content, change)
            return
        for start in range(0, len(change.data), SECTOR_BYTES):
            if self.random.random() < 0.5:
                apply(content, Change(change.offset + start, change.data[start : start + SECTOR_BYTES]))

    def _count(self, operation: str) -> None:
        if self.crashed:
            raise Crash
        if self._crash_in is not None:
            self._crash_in -= 1
            if self._crash_in <= 0:
                self.crashed = True
                raise Crash
        if operation in self._faults:
            self._faults[operation] -= 1
            if self._faults[operation] <= 0:
                del self._faults[operation]
                raise OSError(errno.EIO, f"injected into {operation}")

    def _change(self, descriptor: int, change: Change) -> None:
        inode = self._descriptors[descriptor]
        apply(inode.seen, change)
        inode.pending.append(change)

    def _free(self) -> int:
        if self.capacity is None:
            return 1 << 40
        return max(0, self.capacity - sum(len(inode.seen) for inode in self.names_seen.values()))

    def create(self, path: Path) -> int:
        self._count("create")
        if str(path) in self.names_seen:
            raise FileExistsError(errno.EEXIST, "exists", str(path))
        inode = Inode()
        self.names_seen[str(path)] = inode
        self.names_pending.append(("link", str(path), inode))
        return self._opened(inode)

    def open(self, path: Path) -> int:
        if str(path) not in self.names_seen:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return self._opened(self.names_seen[str(path)])

    def _opened(self, inode: Inode) -> int:
        self._next_descriptor += 1
        self._descriptors[self._next_descriptor] = inode
        return self._next_descriptor

    def write(self, descriptor: int, buffers: Sequence[Buffer], offset: int) -> int:
        data = b"".join(buffers)
        try:
            self._count("write")
        except OSError:
            # A failing write may have put any part of its bytes into the file.
            self._change(descriptor, Change(offset, data[: self.random.randint(0, len(data))]))
            raise
        inode = self._descriptors[descriptor]
        growth = max(0, offset + len(data) - len(inode.seen))
        fits = len(data) - max(0, growth - self._free())
        if self.short_writes and fits > 1:
            fits = self.random.randint(1, fits)
        if fits <= 0 and data:
            raise OSError(errno.ENOSPC, "disk full")
        self._change(descriptor, Change(offset, data[:fits]))
        return fits

    def read(self, descriptor: int, length: int, offset: int) -> bytes:
        if self.crashed:
            raise Crash
        return bytes(self._descriptors[descriptor].seen[offset : offset + length])

    def truncate(self, descriptor: int, length: int) -> None:
        self._count("truncate")
        self._change(descriptor, Change(length, None))

    def reserve(self, descriptor: int, offset: int, length: int) -> None:
        self._count("reserve")
        size = len(self._descriptors[descriptor].seen)
        growth = max(0, offset + length - size)
        given = min(growth, self._free())
        self._change(descriptor, Change(size + given, None))
        if given < growth:
            raise OSError(errno.ENOSPC, "disk full")

    def size(self, descriptor: int) -> int:
        return len(self._descriptors[descriptor].seen)

    def sync_data(self, descriptor: int) -> None:
        self._sync("data", descriptor)

    def sync(self, descriptor: int) -> None:
        self._sync("sync", descriptor)

    def _sync(self, operation: str, descriptor: int) -> None:
        inode = self._descriptors[descriptor]
        try:
            self._count(operation)
        except OSError:
            # As on Linux after a failed fsync: some pages are written, the rest are marked clean and never retried.
            for change in inode.pending[: self.random.randint(0, len(inode.pending))]:
                apply(inode.durable, change)
            inode.pending.clear()
            raise
        for change in inode.pending:
            apply(inode.durable, change)
        inode.pending.clear()

    def close(self, descriptor: int) -> None:
        self._descriptors.pop(descriptor, None)

    def rename(self, source: Path, target: Path) -> None:
        self._count("rename")
        inode = self.names_seen.pop(str(source))
        self.names_seen[str(target)] = inode
        # Both halves of a rename survive or neither does: the link comes first, a leftover source is harmless.
        self.names_pending.append(("link", str(target), inode))
        self.names_pending.append(("unlink", str(source), None))

    def unlink(self, path: Path) -> None:
        self._count("unlink")
        if self.names_seen.pop(str(path), None) is not None:
            self.names_pending.append(("unlink", str(path), None))

    def names(self, directory: Path) -> list[str]:
        if self.crashed:
            raise Crash
        return sorted(os.path.basename(name) for name in self.names_seen if os.path.dirname(name) == str(directory))

    def sync_directory(self, directory: Path) -> None:
        self._count("directory")
        self.names_durable = dict(self.names_seen)
        self.names_pending.clear()

    def make_directory(self, directory: Path) -> None:
        """Directories are there."""

    def lock(self, directory: Path, purpose: str) -> NoLock:  # type: ignore[override]
        return NoLock()

    def step(self, name: str) -> None:
        self.steps.append(name)
        if self._crash_at_step is not None and self._crash_at_step[0] == name:
            nth = self._crash_at_step[1] - 1
            self._crash_at_step = (name, nth)
            if nth <= 0:
                self.crashed = True
        self._count("step")
