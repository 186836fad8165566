"""Snapshots that senders read: links to the files that a centre has not decided about.

They are in `{data}/sync/snapshots/{id}`. A sender releases its snapshot, and touches it while it sends. A new one of
the same centre and group takes the place of the one before, and a start of the node removes all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.connectors.files import ExpiringDirectories, create_directories
from headrace.consumers.replication.group import Group
from headrace.consumers.sync.centres import SYNC_DIRECTORY
from headrace.consumers.sync.listing import Listing, sync_listing
from headrace.schemas.errors import HeadraceError

SNAPSHOTS_MAX = 64
IDLE_TIMEOUT_S = 300.0
FILES_MAX = 2_000
"""Files of one listing; a sender that has sent them lists again."""


class SyncSnapshotUnknown(HeadraceError):
    """A snapshot that was released, has expired, or was lost with a restart of the node; or a file that is in none."""


class SyncSnapshotRefused(HeadraceError):
    """A snapshot that cannot be made now."""


@dataclass(frozen=True, slots=True)
class _Listed:
    """Whose snapshot it is, and the names of its files."""

    centre: str
    group: str
    names: frozenset[str] = frozenset()


class SyncSnapshots:
    """Owns `{data}/sync/snapshots`; safe for any thread."""

    def __init__(
        self, data_directory: Path, *, idle_timeout_s: float = IDLE_TIMEOUT_S, files_max: int = FILES_MAX
    ) -> None:
        """Deletes the snapshots of an earlier process."""
        self.directory = (data_directory / SYNC_DIRECTORY / "snapshots").absolute()
        self._kept = ExpiringDirectories[_Listed](self.directory, SNAPSHOTS_MAX, idle_timeout_s)
        self._files_max = files_max

    def make(self, group: Group, centre: str, after: int, store: str) -> Listing:
        """A new snapshot of what came to a group above version `after`; `store` is the identity of its cluster.

        Raises SyncSnapshotRefused, StoreError.
        """
        for name, each in self._kept.items():
            if (each.centre, each.group) == (centre, group.key):
                self.release(name)
        made = self._kept.begin(_Listed(centre, group.key))
        if made is None:
            raise SyncSnapshotRefused(f"{SNAPSHOTS_MAX} snapshots are out already", retriable=True)
        try:
            create_directories(self.directory)
            found = group.store.undecided(after, self._files_max, self.directory / made)
            place, takes_loads = str(self.directory / made), group.store.loaded_version > 0
            listing = sync_listing(made, place, group.key, after, store, found, takes_loads=takes_loads)
        except BaseException:
            self.release(made)
            raise
        names = frozenset(path for each in listing.files for path in (each.segment, each.series))
        self._kept.finish(made, _Listed(centre, group.key, names))
        return listing

    def open(self, name: str, path: str, offset: int) -> tuple[int, Iterator[bytes]]:
        """(number of bytes, the bytes) of a file from an offset. Raises SyncSnapshotUnknown."""
        # The path comes from another machine: it is looked up and never followed.
        listed = self._listed(name)
        try:
            if path not in listed.names:
                raise FileNotFoundError(path)
            size = (self.directory / name / path).stat().st_size
        except OSError:
            raise SyncSnapshotUnknown(f"there is no file {path!r} in a snapshot {name!r}") from None
        if not 0 <= offset <= size:
            raise SyncSnapshotUnknown(f"there is no byte {offset} of file {path!r}")
        return size - offset, self._kept.read(name, path, offset, size)

    def touch(self, name: str) -> None:
        """Its sender still needs it. Raises SyncSnapshotUnknown."""
        self._listed(name)

    def release(self, name: str) -> None:
        """Delete a snapshot, if it exists."""
        self._kept.release(name)

    def expire(self) -> None:
        """Delete snapshots that nobody has used for a while."""
        self._kept.expire()

    def _listed(self, name: str) -> _Listed:
        listed = self._kept.use(name)
        if listed is None:
            raise SyncSnapshotUnknown(f"there is no snapshot {name!r}", action="list the files again")
        return listed
