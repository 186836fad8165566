"""Exceptions of a store: one class for each condition that a caller handles in its own way."""

from __future__ import annotations

from collections.abc import Collection

from headrace.schemas.errors import HeadraceError


class StoreError(HeadraceError):
    """Base of the exceptions of one store."""


class StoreFull(StoreError):
    """The disk has no space left. Nothing became visible; the same job can run again once there is space."""

    def __init__(self, message: str) -> None:
        super().__init__(message, action="free disk space; the same work is tried again", retriable=True)


class StoreUnwritable(StoreError):
    """The directory of a store cannot be written (read-only file system, wrong owner, failing disk)."""


class StoreLocked(StoreError):
    """This or another process has the store open."""


class StoreRetired(StoreError):
    """A store that takes no new readers: its group leaves this node, and its files with it."""


class StoreDamaged(StoreError):
    """Index and files disagree, or the index cannot be read.

    Recover the data from another replica or the log.
    """


class SegmentUnread(StoreError):
    """A segment cannot be read although its bytes are those that were sealed.

    The cause is this process, which lacks memory (retriable), or the content: then every copy of the file would
    fail alike.
    """

    def __init__(self, message: str, *, retriable: bool) -> None:
        super().__init__(
            message, action="the data is kept; free memory, or use a build that can read it", retriable=retriable
        )


class StoreFormatUnknown(StoreError):
    """A build with a format that this build cannot read wrote the store. It stays as it is."""

    def __init__(self, message: str) -> None:
        super().__init__(
            message,
            action="run the build that wrote it, or a newer one; or move the data directory away: "
            "the node recovers from the log or from another member",
        )


class BatchInvalid(StoreError):
    """Rows do not match the schema they were written under. Nothing was stored."""


class TableUnknown(StoreError):
    """The store has never received a row of this table."""


class JobOutOfOrder(StoreError):
    """An earlier job of the same store has not succeeded yet. Run that one first."""


class JobSuperseded(StoreError):
    """A merge or a load that does not fit the catalogue: void, on every replica alike."""


class JobUnwanted(StoreError):
    """A job that ended before its commit, since its node stops. The next start reads its record again."""


class SegmentAwaited(StoreError):
    """A merge or a cut names a file that is not here yet. It runs again when the file has come."""

    def __init__(self, message: str) -> None:
        super().__init__(message, action="the file is fetched; the same work is tried again", retriable=True)


class SegmentGone(StoreError):
    """A segment that the catalogue does not name any more: it was merged, dropped or released."""


class CutUnready(StoreError):
    """A cut of slots is asked for before the seal of its version has committed here."""

    def __init__(self, message: str) -> None:
        super().__init__(message, action="the seal is under way; ask again", retriable=True)


class CutTooLarge(StoreError):
    """More rows of a cut are asked for than one answer may have."""


class StagedFileInvalid(StoreError):
    """Files that were fetched are not those that are awaited. They were removed; fetch them again.

    `digests` are the contents that were expected of them.
    """

    def __init__(self, message: str, *, retriable: bool = True, digests: Collection[str] = ()) -> None:
        super().__init__(message, retriable=retriable)
        self.digests = frozenset(digests)
