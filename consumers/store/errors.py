"""What can go wrong in a store, one class for each thing a caller does something different about."""

from __future__ import annotations

from schemas.errors import HeadraceError


class StoreError(HeadraceError):
    """Base of the conditions of one store."""


class StoreFull(StoreError):
    """The disk has no space left. Nothing became visible; the same job runs again once there is space."""

    def __init__(self, message: str) -> None:
        super().__init__(message, action="free disk space; the same work is tried again", retriable=True)


class StoreUnwritable(StoreError):
    """The directory of a store cannot be written (read-only file system, wrong owner, failing disk)."""


class StoreHeld(StoreError):
    """Another process, or this one, has the store open."""


class StoreDamaged(StoreError):
    """Index and files do not agree, or the index cannot be read; the data must be recovered from another replica or the log."""


class StoreFormatUnknown(StoreError):
    """The store was written by a build whose format this one does not read."""


class RowsInvalid(StoreError):
    """Rows do not fit the schema they were written under. Nothing was stored."""


class TableUnknown(StoreError):
    """The store has never seen a row of this table."""


class JobOutOfTurn(StoreError):
    """A job was run before an earlier job of the same store had succeeded. Run the earlier one first."""


class JobSuperseded(StoreError):
    """A compaction names files that are not the ones this store holds."""
