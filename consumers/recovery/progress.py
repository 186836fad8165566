"""The progress of one group's recovery: counted by the thread that copies or reads, shown by all others."""

from __future__ import annotations

import threading
from typing import Protocol

from headrace.connectors.clock import SYSTEM_CLOCK, Clock
from headrace.consumers.replication.health import Progress
from headrace.schemas.errors import HeadraceError

STALL_S = 30.0
CHOICES = (
    "the data is kept; start the members that have the files, or restore the topic; when neither is possible, "
    "let the group continue without what its log lost: "
    "headrace accept-gap --group G (at an edge also --node HOST:PORT)"
)
AWAITS_TURN = "its files are copied when it is its turn"


class TransferStopped(HeadraceError):
    """The node is stopping; the copy continues at its next start."""


class CopyObserver(Protocol):
    """Observes the progress of a copy; each call may raise TransferStopped."""

    def begin(self, files: int, total_bytes: int) -> None:
        """A copy of this size begins; counts start at zero again."""
        ...

    def kept(self, size_bytes: int) -> None:
        """Bytes were here already."""
        ...

    def received(self, size_bytes: int) -> None:
        """Bytes were received; may wait, to keep a rate."""
        ...

    def discarded(self, size_bytes: int) -> None:
        """Bytes that were counted did not have the listed digest and are deleted."""
        ...

    def file_done(self) -> None:
        """One more file is verified and synced."""
        ...


class LogProgress:
    """The progress of a group that has not reached the end of its log.

    `note` is called by one thread at intervals.
    """

    def __init__(self, offset: int, clock: Clock = SYSTEM_CLOCK) -> None:
        """Begins at an offset, now."""
        self._clock = clock
        self._begun_s = self._moved_s = clock.monotonic_s()
        self._from = self._offset = offset

    def note(self, offset: int) -> None:
        """The group has read up to an offset."""
        if offset != self._offset:
            self._offset, self._moved_s = offset, self._clock.monotonic_s()

    def progress(self, offset: int, end: int) -> Progress:
        """The figures at an offset of a log that ends at `end`."""
        # The mean since the beginning, and not the newest rate: the log is read in bursts, and the time left would
        # jump.
        now = self._clock.monotonic_s()
        rate = max(0, offset - self._from) / max(0.001, now - self._begun_s)
        # The end is looked up now and then, and the log grows: a position beyond it is at the end.
        offset = min(offset, end)
        return Progress(
            way="log",
            offsets_done=offset,
            offsets_total=end,
            per_second=rate,
            seconds_left=(end - offset) / rate if rate else -1.0,
            still_s=now - self._moved_s if offset < end else 0.0,
        )

    def reason(self, offset: int, end: int) -> str:
        """The text for operators."""
        now = self.progress(offset, end)
        stalled = f"no progress for {now.still_s:.0f} s: " if now.still_s >= STALL_S else ""
        left = f", {now.per_second:.0f} offsets/s, {now.seconds_left:.0f} s left" if now.seconds_left >= 0 else ""
        return f"{stalled}recovering: read up to offset {now.offsets_done} of {end}{left}"


class Recovery:
    """A CopyObserver for the copying thread, a text and figures for all others.

    `wrong`: see ReplicaPosition.
    """

    def __init__(
        self,
        why: str,
        wrong: bool,
        stopping: threading.Event,
        bytes_per_second: int,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.wrong = wrong
        self._cause = why
        self._why = why
        self._stopping = stopping
        self._cancelled = False
        self._bytes_per_second = bytes_per_second
        self._now_s = clock.monotonic_s
        self._moved_s = self._begun_s = self._now_s()
        self._received = 0
        self._source = ""
        self._unsourced = False
        self._error = ""
        self._files = 0
        self._files_done = 0
        self.bytes_done = 0
        self.bytes_total = 0

    def cancel(self) -> None:
        """Its group goes: the copy ends at its next chunk."""
        self._cancelled = True

    def note_waiting(self, reason: str) -> None:
        """There is no source."""
        self._source, self._unsourced = "", True
        self._why = f"{self._cause}; {reason}" if self.wrong else reason

    def note_failure(self, error: str) -> None:
        """An attempt has failed."""
        self._error = error

    def start_attempt(self, source: str) -> None:
        """A new attempt begins."""
        self._source, self._unsourced = source, False
        # Both begin again with each attempt: the bytes of another source would make the rate, and the time left,
        # wrong.
        self._begun_s, self._received = self._now_s(), 0

    def begin(self, files: int, total_bytes: int) -> None:
        """See CopyObserver."""
        self._files, self._files_done = files, 0
        self.bytes_done, self.bytes_total = 0, total_bytes
        self._begun_s, self._received = self._now_s(), 0

    def kept(self, size_bytes: int) -> None:
        """See CopyObserver."""
        self.bytes_done += size_bytes
        self._check()

    def received(self, size_bytes: int) -> None:
        """See CopyObserver; waits to keep the rate limit."""
        self.bytes_done += size_bytes
        self._received += size_bytes
        self._moved_s = self._now_s()
        self._check()

    def _check(self) -> None:
        # Against the time since the attempt began, not chunk by chunk: short waits are inexact, and their
        # errors would add up.
        due_s = self._received / self._bytes_per_second if self._bytes_per_second else 0.0
        if self._stopping.wait(max(0.0, self._begun_s + due_s - self._now_s())):
            raise TransferStopped("the node is stopping")
        if self._cancelled:
            raise TransferStopped("the group leaves this node")

    def discarded(self, size_bytes: int) -> None:
        """See CopyObserver."""
        self.bytes_done -= size_bytes

    def file_done(self) -> None:
        """See CopyObserver."""
        self._files_done += 1

    def progress(self) -> Progress:
        """The figures now."""
        now = self._now_s()
        rate = self._received / max(0.001, now - self._begun_s)
        left_s = (self.bytes_total - self.bytes_done) / rate if rate and self._source else -1.0
        return Progress(
            way="files" if self._source else "wait",
            source=self._source,
            files_done=self._files_done,
            files_total=self._files,
            bytes_done=self.bytes_done,
            bytes_total=self.bytes_total,
            per_second=rate,
            seconds_left=left_s,
            still_s=now - self._moved_s,
            trouble=self._error,
        )

    @property
    def reason(self) -> str:
        """The text for operators: the progress, or what it waits for; after 30 s without progress the cause."""
        now = self.progress()
        error = f"; last error: {now.trouble}" if now.trouble else ""
        stalled = f"no progress for {now.still_s:.0f} s: " if now.still_s >= STALL_S else ""
        if not now.source:
            return f"{stalled}{self._why}{error}; {CHOICES if self._unsourced else AWAITS_TURN}"
        figures = (
            f"{now.files_done} of {now.files_total} files, "
            f"{now.bytes_done / 1e6:.1f} of {now.bytes_total / 1e6:.1f} MB, "
            f"{now.per_second / 1e6:.1f} MB/s, {max(0.0, now.seconds_left):.0f} s left"
        )
        cause = f"{now.source} sends nothing " if stalled and not error else ""
        because = f" because {self._cause}" if self.wrong else ""
        return f"{stalled}{cause}recovering files from {now.source}{because}: {figures}{error}"
