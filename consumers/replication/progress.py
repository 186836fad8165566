"""How the recovery of one group goes: counted by the thread that copies or reads, shown to everyone else."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from consumers.replication.transfer import TransferStopped

STALL_S = 30.0
CHOICES = (
    "the data is kept; start the members that have the files, or restore the topic; when neither is possible, let the group go on "
    "without what its log lost: headrace accept-gap"
)


@dataclass(frozen=True, slots=True)
class Progress:
    """Figures of a recovery. `way` is files, log or wait; `per_second` counts bytes of files or offsets of the log; `seconds_left` is -1 while
    nothing moves; `still_s` counts since something last did."""

    way: str
    source: str = ""
    files_done: int = 0
    files_total: int = 0
    bytes_done: int = 0
    bytes_total: int = 0
    offsets_done: int = 0
    offsets_total: int = 0
    per_second: float = 0.0
    seconds_left: float = -1.0
    still_s: float = 0.0
    trouble: str = ""


class Reading:
    """How a group that has not reached the end of its log gets on. `note` is called by one thread now and then."""

    def __init__(self, offset: int) -> None:
        """Begins at an offset, now."""
        self._begun_s = self._moved_s = time.monotonic()
        self._from = self._offset = offset

    def note(self, offset: int) -> None:
        """So far it has read by now."""
        if offset != self._offset:
            self._offset, self._moved_s = offset, time.monotonic()

    def progress(self, offset: int, end: int) -> Progress:
        """The figures at an offset of a log that ends at `end`."""
        now = time.monotonic()
        rate = max(0, offset - self._from) / max(0.001, now - self._begun_s)
        return Progress(
            way="log",
            offsets_done=offset,
            offsets_total=end,
            per_second=rate,
            seconds_left=(end - offset) / rate if rate else -1.0,
            still_s=now - self._moved_s if offset < end else 0.0,
        )

    def reason(self, offset: int, end: int) -> str:
        """What an operator reads."""
        now = self.progress(offset, end)
        stalled = f"no progress for {now.still_s:.0f} s: " if now.still_s >= STALL_S else ""
        left = f", {now.per_second:.0f} offsets/s, {now.seconds_left:.0f} s left" if now.seconds_left >= 0 else ""
        return f"{stalled}recovering: read up to offset {offset} of {end}{left}"


class Recovery:
    """A Watcher for the copying thread, a text and figures for everyone else. `wrong` and `trusted`: see Need."""

    def __init__(
        self,
        why: str,
        wrong: bool,
        trusted: frozenset[str] | None,
        stopping: threading.Event,
        bytes_per_second: int,
    ) -> None:
        self.wrong = wrong
        self.trusted = trusted
        self._cause = why
        self._why = why
        self._stopping = stopping
        self._bytes_per_second = bytes_per_second
        self._moved_s = self._begun_s = time.monotonic()
        self._received = 0
        self._source = ""
        self._trouble = ""
        self._files = 0
        self._files_done = 0
        self.bytes_done = 0
        self.bytes_total = 0
        self.waiting = False

    def waits(self, reason: str) -> None:
        """Nobody to copy from."""
        self._source, self.waiting = "", True
        self._why = f"{self._cause}; {reason}" if self.wrong else reason

    def failed(self, trouble: str) -> None:
        """An attempt ended without success."""
        self._trouble = trouble

    def copies_from(self, source: str) -> None:
        """A new attempt."""
        self._source, self.waiting = source, False
        self._begun_s, self._received = time.monotonic(), 0

    def begin(self, files: int, total_bytes: int) -> None:
        """See Watcher."""
        self._files, self._files_done = files, 0
        self.bytes_done, self.bytes_total = 0, total_bytes
        self._begun_s, self._received = time.monotonic(), 0

    def have(self, size_bytes: int) -> None:
        """See Watcher."""
        self.bytes_done += size_bytes
        self._check()

    def received(self, size_bytes: int) -> None:
        """See Watcher; waits as long as the rate limit asks for."""
        self.bytes_done += size_bytes
        self._received += size_bytes
        self._moved_s = time.monotonic()
        self._check()

    def _check(self) -> None:
        due_s = self._received / self._bytes_per_second if self._bytes_per_second else 0.0
        if self._stopping.wait(max(0.0, self._begun_s + due_s - time.monotonic())):
            raise TransferStopped("the node is stopping")

    def lost(self, size_bytes: int) -> None:
        """See Watcher."""
        self.bytes_done -= size_bytes

    def file_done(self) -> None:
        """See Watcher."""
        self._files_done += 1

    def progress(self) -> Progress:
        """The figures now."""
        now = time.monotonic()
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
            trouble=self._trouble,
        )

    @property
    def reason(self) -> str:
        """What an operator reads: how far it is, or what it waits for, and after 30 s without progress the cause."""
        now = self.progress()
        trouble = f"; last trouble: {now.trouble}" if now.trouble else ""
        stalled = f"no progress for {now.still_s:.0f} s: " if now.still_s >= STALL_S else ""
        if not now.source:
            return f"{stalled}{self._why}{trouble}; {CHOICES}"
        figures = (
            f"{now.files_done} of {now.files_total} files, {now.bytes_done / 1e6:.1f} of {now.bytes_total / 1e6:.1f} MB, "
            f"{now.per_second / 1e6:.1f} MB/s, {max(0.0, now.seconds_left):.0f} s left"
        )
        cause = f"{now.source} sends nothing " if stalled and not trouble else ""
        because = f" because {self._cause}" if self.wrong else ""
        return f"{stalled}{cause}recovering files from {now.source}{because}: {figures}{trouble}"
