"""The node's journal: every record of its groups' logs that no segment holds yet, on the node's own disk.

It is a write-ahead log with one partition a group. A record is created when it is read from the topic,
durable before anyone may act on it, and deleted once a seal has put its content into segments. Payloads are
kept unchanged and read from disk only when recovery needs them.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.connectors.files import FileLayer
from headrace.connectors.log.port import Record
from headrace.consumers.wal import PARTITIONS_MAX, BytesSerde, Delete, LogFailed, Put, WalMetrics, WriteAheadLog
from headrace.schemas.errors import HeadraceError
from headrace.schemas.framing import kept_headers

_FIXED = struct.Struct("<qqqH")
_HEADER = struct.Struct("<HI")


class JournalBroken(HeadraceError):
    """The journal does not hold what it must: a group's records have a gap."""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One record of a group's log with its version."""

    group: str
    version: int
    offset: int
    timestamp_ms: int
    headers: tuple[tuple[str, bytes], ...]
    value: bytes

    @classmethod
    def of(cls, group: str, version: int, record: Record) -> JournalEntry:
        """The entry of a record that was just read, with the headers that its replica reads."""
        return cls(group, version, record.offset, record.timestamp_ms, kept_headers(record.headers), record.value)


@dataclass(frozen=True, slots=True)
class _Deletes:
    """The newest transaction that deletes entries of a group, and the oldest entry that it, or one before it, deletes."""

    transaction: int
    oldest: int


class Journal:
    """Appends and deletes entries. `append` is called by the consuming thread, `forget` by sealing threads."""

    def __init__(
        self, directory: Path, groups: Sequence[str], files: FileLayer | None = None, *, maintained: bool = True
    ) -> None:
        """`maintained`: a thread of its own syncs and checkpoints it; else only `turn` does."""
        self._partitions = {group: number for number, group in enumerate(groups)}
        self._wal = WriteAheadLog(directory, BytesSerde(), PARTITIONS_MAX, files=files, maintained=maintained)
        # A checkpoint after a failed sync drops what is not known durable: never between the updates of one append,
        # of which only the last one syncs.
        self._lock = threading.Lock()
        self._unsynced: dict[str, _Deletes] = {}
        self._state: Mapping[bytes, tuple[bytes, bytes]] = self._wal.recover()
        self._recovered: dict[str, list[int]] = {group: [] for group in groups}
        # Keys begin with the version in big-endian, so their order is that of the log.
        for key in sorted(self._state):
            group, version = _parse_key(key)
            self._recovered.setdefault(group, []).append(version)
        self._oldest = {group: versions[0] for group, versions in self._recovered.items() if versions}
        # What may be in the files, also of an append that failed: whoever reads the log knows only what counts.
        self._newest = {group: versions[-1] for group, versions in self._recovered.items() if versions}

    def newest_version(self, group: str) -> int:
        """Version of a group's newest recovered entry, 0 when there is none."""
        return max(self._recovered.get(group, ()), default=0)

    def recovered(self, group: str, after_version: int) -> Iterator[JournalEntry]:
        """A group's entries beyond a version, in order, each read from disk when it is yielded.

        Raises JournalBroken on a gap.
        """
        expected = after_version + 1
        for version in self._recovered.get(group, ()):
            # Deletes after a seal are not synced: a crash may leave entries that segments hold already.
            if version <= after_version:
                continue
            if version != expected:
                raise JournalBroken(
                    f"the journal of group {group} goes from version {expected - 1} to {version}",
                    action="move the data directory away: the node recovers from the log",
                )
            expected += 1
            yield _decode(group, version, self._state[_key(group, version)][1])

    def release_recovered(self) -> None:
        """Drop what recovery no longer needs."""
        self._recovered = {}
        self._state = {}

    def append(self, entries: Mapping[str, Sequence[JournalEntry]]) -> None:
        """Make the entries of all groups durable together.

        Raises the write-ahead log's errors, and then none of them counts. Those of some groups may be in the files
        all the same, until they are appended again or the group is forgotten.
        """
        groups = [group for group, found in entries.items() if found]
        with self._lock:
            for number, group in enumerate(groups, start=1):
                # Only the last update syncs: a synced update makes all earlier ones durable, so one poll costs
                # one fdatasync.
                puts = [Put((_key(group, entry.version), _encode(entry))) for entry in entries[group]]
                # Before the update: one that fails may have written, and so may those of the groups before it.
                self._oldest.setdefault(group, entries[group][0].version)
                self._newest[group] = max(self._newest.get(group, 0), entries[group][-1].version)
                self._wal.update(puts, sync=number == len(groups), partition=self._partitions[group])

    def forget(self, group: str, up_to_version: int) -> None:
        """Delete a group's entries up to a version: they are in segments."""
        with self._lock:
            oldest = self._oldest.get(group, 0) or up_to_version + 1
            if oldest <= up_to_version:
                # Not synced: an entry that comes back after a crash is only skipped.
                deletes = [Delete(_key(group, version)) for version in range(oldest, up_to_version + 1)]
                transaction = self._wal.update(deletes, sync=False, partition=self._partitions[group])
                self._oldest[group] = up_to_version + 1
                before = self._unsynced.get(group)
                if before is not None and before.transaction > self._wal.durable_transaction:
                    oldest = before.oldest
                self._unsynced[group] = _Deletes(transaction, oldest)

    def forget_all(self, group: str) -> None:
        """Delete every entry of a group, durably: another member's files hold more.

        Also what an append that failed has left. The next entry may leave a gap.
        """
        # Synced, unlike after a seal: these entries may be of wrong data, and the caller clears next, durably,
        # the mark of that. After a power cut they would be applied on top of the right data.
        newest = self._newest.get(group, 0)
        try:
            self.forget(group, newest)
            self._wal.sync()
        except LogFailed:
            # After a failed sync the consuming thread repairs the journal at its next append: there is none while
            # every group of the node recovers.
            self.checkpoint()
            self.forget(group, newest)
            self._wal.sync()
        self._oldest.pop(group, None)
        self._newest.pop(group, None)
        self._recovered.pop(group, None)

    def add(self, group: str) -> None:
        """Give a group a partition; one that has it keeps it."""
        with self._lock:
            taken = set(self._partitions.values())
            free = next(number for number in range(PARTITIONS_MAX) if number not in taken)
            self._partitions.setdefault(group, free)

    def remove(self, group: str) -> None:
        """Delete every entry of a group that takes no more, durably, and free its partition."""
        if group in self._partitions:
            self.forget_all(group)
            with self._lock:
                del self._partitions[group]

    def remove_others(self) -> list[str]:
        """Delete, durably, what was recovered of groups that have no partition here; returns their names."""
        # A crash came between the end of a group at this node and the cut of its partition.
        others = [group for group in self._recovered if group not in self._partitions]
        for group in others:
            self.add(group)
            self.remove(group)
        return others

    def checkpoint(self) -> None:
        """Write the live entries anew, and delete the rest.

        It ends the refusal of updates that follows a failed sync.
        """
        with self._lock:
            durable = self._wal.durable_transaction
            self._wal.checkpoint()
            # Deletes that were not durable are dropped like everything else: they are due again.
            for group, deletes in self._unsynced.items():
                if deletes.transaction > durable:
                    self._oldest[group] = deletes.oldest
            self._unsynced.clear()

    def turn(self) -> None:
        """One round of maintenance: sync what was forgotten, and write a checkpoint when one is due."""
        self._wal.run_maintenance()

    def metrics(self) -> WalMetrics:
        """Figures of the log below."""
        return self._wal.metrics()

    def close(self) -> None:
        """Close the files and release the lock."""
        self._wal.close()


def _key(group: str, version: int) -> bytes:
    return struct.pack(">q", version) + group.encode()


def _parse_key(key: bytes) -> tuple[str, int]:
    return key[8:].decode(), struct.unpack(">q", key[:8])[0]


def _encode(entry: JournalEntry) -> bytes:
    parts: list[bytes] = [_FIXED.pack(entry.version, entry.offset, entry.timestamp_ms, len(entry.headers))]
    for name, value in entry.headers:
        encoded = name.encode()
        parts += (_HEADER.pack(len(encoded), len(value)), encoded, value)
    return b"".join((*parts, entry.value))


def _decode(group: str, version: int, data: bytes) -> JournalEntry:
    stored, offset, timestamp_ms, header_count = _FIXED.unpack_from(data)
    assert stored == version, f"journal entry {version} of {group} has version {stored}"
    position, headers = _FIXED.size, []
    for _ in range(header_count):
        name_bytes, value_bytes = _HEADER.unpack_from(data, position)
        position += _HEADER.size
        name = data[position : position + name_bytes].decode()
        headers.append((name, data[position + name_bytes : position + name_bytes + value_bytes]))
        position += name_bytes + value_bytes
    return JournalEntry(group, version, offset, timestamp_ms, tuple(headers), data[position:])
