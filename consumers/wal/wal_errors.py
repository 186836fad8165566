"""Exceptions of the write-ahead log: one class for each condition that a caller handles in its own way."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

from headrace.schemas.errors import HeadraceError, StateUnknown


class WriteAheadLogError(HeadraceError):
    """Base of all exceptions that the log raises itself, except `DurabilityUnknown`."""


class LogMisused(WriteAheadLogError):
    """A call out of order: before `recover`, a second `recover`, after `close`. Nothing happened."""


class UpdateFailed(WriteAheadLogError, OSError):
    """The update was not written: it has no transaction id, is not in the state, and left no bytes.

    `errno` is that of the cause.
    """

    def __init__(self, message: str, cause: OSError | None = None) -> None:
        WriteAheadLogError.__init__(
            self, message, action="free space or repair the disk, then try again", retriable=True
        )
        self.errno = cause.errno if cause else None
        self.strerror = cause.strerror if cause else None


class LogFailed(WriteAheadLogError):
    """An earlier sync failed: nothing was written, and nothing will be until `checkpoint()` succeeds."""

    def __init__(self, message: str) -> None:
        super().__init__(
            message, action="repair the disk, then call checkpoint(): it keeps exactly the transactions known durable"
        )


class DurabilityUnknown(StateUnknown):
    """The update is written but its sync failed: it may or may not survive a crash.

    `checkpoint()` removes it from the state.
    """

    def __init__(self, message: str, transaction: int | None = None) -> None:
        super().__init__(message, action="call checkpoint(), then check the state before trying again")
        self.transaction = transaction


class CheckpointFailed(WriteAheadLogError, OSError):
    """No checkpoint was written; everything that was recoverable still is. `errno` is that of the cause."""

    def __init__(self, message: str, cause: OSError) -> None:
        WriteAheadLogError.__init__(
            self, message, action="free space or repair the disk, then try again", retriable=True
        )
        self.errno = cause.errno
        self.strerror = cause.strerror


class LogDamaged(WriteAheadLogError):
    """Bytes that were durable are missing or changed, in `file` at `offset`. The log changed nothing."""

    def __init__(self, file: Path, offset: int, reason: str) -> None:
        super().__init__(
            f"{file} is damaged at offset {offset}: {reason}",
            action="restore the directory from a copy, or show what would be lost: "
            f"headrace wal repair {quote(str(file.parent))}",
        )
        self.file = file
        self.offset = offset
        self.reason = reason


class FileMissing(LogDamaged):
    """A file that the manifest names does not exist."""


class ForeignSerde(WriteAheadLogError):
    """The log was written by another serde, or by a newer version of this one."""

    def __init__(self, file: Path, written: tuple[str, int], given: tuple[str, int]) -> None:
        newer = "a newer version" if written[0] == given[0] else "another serde"
        super().__init__(
            f"{file} was written by serde {written[0]!r} version {written[1]}, which is {newer}: this one is {given[0]!r} version {given[1]}",
            action=f"open it with serde {written[0]!r} of version {written[1]} or later",
        )
        self.file = file
        self.written = written
        self.given = given


class ForeignLog(WriteAheadLogError):
    """A file in the directory belongs to another log, or to a format that this build does not know."""


class UnsupportedKey(WriteAheadLogError, TypeError):
    """A key of a type, or a record of a size, that the log cannot hold. Nothing was written."""
