"""What a sender needs of the world: the store it reads, the centre it sends to, and a log for its state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.consumers.sync.listing import ListedFile, Listing
from headrace.consumers.sync.sender_state import Changes
from headrace.schemas.errors import HeadraceError
from headrace.schemas.sync_records import SyncVerdict


class SnapshotLost(HeadraceError):
    """The node has restarted, or has released the snapshot: the files are listed again."""


class CentreForgotten(HeadraceError):
    """The node knows the centre no more: it learns of it again before the files are listed again."""


class FileDamaged(HeadraceError):
    """A file whose bytes are not those that the node has sealed."""


class StateUnwritable(HeadraceError):
    """The state directory cannot be written now; nothing was sent that it does not know.

    `rewrite`: the log has lost records, so the next write is `rewrite`.
    """

    def __init__(self, message: str, *, rewrite: bool = False) -> None:
        super().__init__(message, action="free space: the sender waits and continues", retriable=True)
        self.rewrite = rewrite


class CentreRefused(HeadraceError):
    """The centre's Kafka has refused a record for good."""


@dataclass(frozen=True, slots=True)
class StoreGroup:
    """A group of the store. `nodes` may list it, `progress` is what each has noted."""

    group: str
    progress: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class StoreDescription:
    """The store as its nodes describe it. `away` are members that did not answer."""

    store: str
    cluster: str
    format: int
    groups: tuple[StoreGroup, ...]
    away: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """Of the groups."""
        return [each.group for each in self.groups]


@dataclass(frozen=True, slots=True)
class Confirmation:
    """Kafka has a record of a manifest's number: a chunk, or the manifest (chunk -1); `lost`: nobody knows."""

    number: int
    chunk: int
    lost: bool = False
    error: str = ""


class SourceStore(Protocol):
    """The store that a sender reads. Raises NodeUnreachable and NodeRefused where nothing else is named."""

    def describe(self) -> StoreDescription:
        """Register the centre at every member, and describe what they have."""
        ...

    def seal(self, age_s: float) -> None:
        """Seal rows that are in no file for that long, wherever they are led."""
        ...

    def list(self, group: str, above: int) -> Listing:
        """What the centre has not decided about in a group, fixed until `release`; only what came above a version."""
        ...

    def check(self, listing: Listing, file: ListedFile, md5: bool) -> bytes:
        """Compare a file with its digests; its MD5 if that is wanted. Raises FileDamaged, SnapshotLost."""
        ...

    def read(self, listing: Listing, file: ListedFile, offset: int, size_bytes: int) -> bytes:
        """A part of a file's segment and series, one behind the other. Raises FileDamaged, SnapshotLost."""
        ...

    def close_file(self, file: ListedFile) -> None:
        """It is not read any further."""
        ...

    def touch(self) -> None:
        """Keep what is listed. Never raises."""
        ...

    def release(self) -> None:
        """Nothing that was listed is needed any more. Never raises."""
        ...

    def set_progress(self, progress: Mapping[str, int], lower: bool) -> None:
        """Note at every member up to which version groups are decided. Raises CentreForgotten."""
        ...


class Centre(Protocol):
    """The topics of a centre."""

    def check(self) -> None:
        """Whether it is still the centre that the state is about. Raises CentreForeign, LogUnavailable."""
        ...

    def send_manifest(self, number: int, value: bytes) -> None:
        """Queue a manifest; `events` confirms it as chunk -1."""
        ...

    def send_chunk(self, number: int, chunk: int, value: bytes) -> None:
        """Queue a chunk; `events` confirms it."""
        ...

    def events(self, timeout_s: float) -> tuple[Sequence[Confirmation], Sequence[SyncVerdict], int]:
        """What came since: confirmations, verdicts for this sender, and the next offset to read verdicts from.

        Waits up to `timeout_s` for the first. Raises LogUnavailable, TopicUnreadable.
        """
        ...


class StateLog(Protocol):
    """Where a sender's state is kept."""

    def write(self, changes: Changes) -> None:
        """Write changes, all or none. Raises StateUnwritable."""
        ...

    def rewrite(self, records: Mapping[bytes, bytes]) -> None:
        """Write all records again, durably, after `write` has failed. Raises StateUnwritable."""
        ...
