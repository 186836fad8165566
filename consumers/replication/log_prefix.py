"""How far a log was read, and whether what comes next follows exactly that.

A log that loses its end and is written on has other records at offsets that were read. A reader behind them gets
no error: its copy would have the end of one log behind the beginning of another.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto

from headrace.connectors.log.port import UNKNOWN_EPOCH, Record
from headrace.consumers.replication.group_state import GapRecord, GroupState, LogBase
from headrace.schemas.messages import NO_CHAIN


@dataclass(frozen=True, slots=True)
class Cursor:
    """The last record read of a group's log: version, offset, digest and leader epoch.

    Digest and epoch are compared when the record is read again. The epoch is not known after a restart.
    `gap` is the record of an accepted gap that the log must have further on: the count rests on it.
    """

    version: int
    offset: int
    digest: bytes
    leader_epoch: int = UNKNOWN_EPOCH
    gap: GapRecord | None = None

    @classmethod
    def of(cls, state: GroupState) -> Cursor:
        """The cursor behind the newest record of a state."""
        return cls(state.version, state.offset, state.record_digest).expecting(state.base)

    def expecting(self, base: LogBase) -> Cursor:
        """The same cursor in a log with this base, whose gap may be ahead."""
        ahead = base.record is not None and base.record.offset > self.offset
        return replace(self, gap=base.record if ahead else None)

    @property
    def needs(self) -> int:
        """The offset that the log must have besides what follows."""
        return self.offset if self.gap is None else self.gap.offset


class Continuation(Enum):
    """What a record is to a reader."""

    NEXT = auto()
    """It follows the last record that was read."""
    READ_BEFORE = auto()
    """It is the last record that was read."""
    UNPROVEN = auto()
    """It is of a newer leader: the last record must be read again first, and this one behind it."""
    FOREIGN = auto()
    """It is of another log than the last record."""


@dataclass(slots=True)
class LogPrefix:
    """What was read of one log, up to `cursor`. `comparing`: the reader is at the last record again.

    A record is taken only if the log that it came from has the record at the cursor.
    """

    # The rule rests on two properties of leader epochs (KIP-101, KIP-320). Offset and epoch name one record, and
    # all before it; a log that lost its end gets its next record under a newer epoch. So the first record of a
    # newer epoch is the moment to look, and it is enough to find the record at the cursor with its old epoch:
    # within an epoch a log only grows. The newer epoch is noted before the look, so a cut behind it has a newer one.

    cursor: Cursor
    comparing: bool = False
    _proven_epoch: int = UNKNOWN_EPOCH
    _pending_epoch: int = UNKNOWN_EPOCH

    @property
    def comparable(self) -> bool:
        """Whether there is a last record that can be recognised."""
        return self.cursor.digest != NO_CHAIN

    def judge(self, record: Record, digest: bytes) -> Continuation:
        """What the next record that the reader returns is; NEXT moves the cursor to it."""
        if self.comparing:
            return self._compare(record, digest)
        epoch = record.leader_epoch
        if UNKNOWN_EPOCH not in (epoch, self._proven_epoch):
            # Epochs never fall along a log: this one was created again, and counts its leaders from 0.
            if epoch < self.cursor.leader_epoch:
                return Continuation.FOREIGN
            if epoch > self._proven_epoch:
                self.comparing, self._pending_epoch = True, epoch
                return Continuation.UNPROVEN
        gap = self.cursor.gap
        if gap is not None and not _precedes(record, digest, gap):
            return Continuation.FOREIGN
        ahead = gap if gap is not None and record.offset < gap.offset else None
        self.cursor = Cursor(self.cursor.version + 1, record.offset, digest, epoch, ahead)
        self._proven_epoch = max(self._proven_epoch, epoch)
        return Continuation.NEXT

    def _compare(self, record: Record, digest: bytes) -> Continuation:
        self.comparing = False
        known, epoch = self.cursor, record.leader_epoch
        same_epoch = UNKNOWN_EPOCH in (known.leader_epoch, epoch) or known.leader_epoch == epoch
        if (record.offset, digest) != (known.offset, known.digest) or not same_epoch:
            return Continuation.FOREIGN
        self.cursor = replace(known, leader_epoch=max(known.leader_epoch, epoch))
        self._proven_epoch = max(self._proven_epoch, self._pending_epoch, epoch)
        return Continuation.READ_BEFORE

    def rewind(self, cursor: Cursor) -> None:
        """The reader is behind an earlier record again, which this prefix has."""
        self.cursor, self.comparing = cursor, False


def _precedes(record: Record, digest: bytes, gap: GapRecord) -> bool:
    """Whether a record is that of an accepted gap, or may be one before it in the same log."""
    # Epochs never fall along a log: what was appended before the gap has none above that of the gap.
    if record.offset < gap.offset:
        return UNKNOWN_EPOCH in (record.leader_epoch, gap.leader_epoch) or record.leader_epoch <= gap.leader_epoch
    return (record.offset, digest) == (gap.offset, gap.digest)
