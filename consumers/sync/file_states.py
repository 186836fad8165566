"""The state of one file at its sender, as a table. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any


class FileState(StrEnum):
    """Where a file is on its way. `accepted` and `rejected` are decided: such a file is not sent again."""

    WAITING = "waiting"
    SENDING = "sending"
    ACCEPTED = "accepted"
    REJECTED = "rejected"
    FAILED = "failed"


class FileEvent(StrEnum):
    """What happens to a file."""

    BEGIN = "begin"
    """Its manifest is sent under a number of its own."""
    CONFIRM = "confirm"
    """Kafka has confirmed a chunk."""
    ACCEPT = "accept"
    REJECT = "reject"
    RETRY = "retry"
    """It arrived damaged."""
    RESEND = "resend"
    """Chunks are missing at the centre."""
    LEAVE = "leave"
    """It was tried often enough, or cannot be read: the next round tries again."""
    ROUND = "round"
    """A round begins."""
    VOID = "void"
    """The centre does not wait any more for what was sent under its number."""
    AGAIN = "again"
    """An operator wants it sent once more."""


DECIDED = frozenset({FileState.ACCEPTED, FileState.REJECTED})
TRANSITIONS: Mapping[tuple[FileState, FileEvent], FileState] = {
    (FileState.WAITING, FileEvent.BEGIN): FileState.SENDING,
    (FileState.WAITING, FileEvent.ACCEPT): FileState.ACCEPTED,
    (FileState.WAITING, FileEvent.LEAVE): FileState.FAILED,
    (FileState.SENDING, FileEvent.CONFIRM): FileState.SENDING,
    (FileState.SENDING, FileEvent.ACCEPT): FileState.ACCEPTED,
    (FileState.SENDING, FileEvent.REJECT): FileState.REJECTED,
    (FileState.SENDING, FileEvent.RETRY): FileState.WAITING,
    (FileState.SENDING, FileEvent.RESEND): FileState.SENDING,
    (FileState.SENDING, FileEvent.LEAVE): FileState.FAILED,
    (FileState.SENDING, FileEvent.VOID): FileState.WAITING,
    (FileState.FAILED, FileEvent.ACCEPT): FileState.ACCEPTED,
    (FileState.FAILED, FileEvent.ROUND): FileState.WAITING,
    (FileState.FAILED, FileEvent.AGAIN): FileState.WAITING,
    (FileState.ACCEPTED, FileEvent.AGAIN): FileState.WAITING,
    (FileState.REJECTED, FileEvent.AGAIN): FileState.WAITING,
}
"""A pair that is missing has no effect: a verdict that comes twice, or late."""


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file as the state directory knows it.

    `version` is that of the edge's log, `body` a digest of the manifest's body. `number` is that of the manifest, 0
    before the first, and `chunk` the first chunk that Kafka has not confirmed.
    """

    file: str
    group: str
    version: int
    size_bytes: int
    digest: str
    state: FileState = FileState.WAITING
    number: int = 0
    body: str = ""
    chunk: int = 0
    chunks: int = 0
    tries: int = 0
    error: str = ""

    @property
    def decided(self) -> bool:
        """Whether it is never sent again."""
        return self.state in DECIDED

    @property
    def is_whole(self) -> bool:
        """Whether Kafka has all of it, and the centre is to answer."""
        return self.state is FileState.SENDING and self.chunk >= self.chunks

    def after(self, event: FileEvent, **changes: Any) -> FileRecord | None:
        """The record after an event, with these fields changed; None for an event without effect."""
        state = TRANSITIONS.get((self.state, event))
        return None if state is None else replace(self, state=state, **changes)
