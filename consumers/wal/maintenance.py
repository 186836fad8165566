"""Background work of an open log: the interval sync and automatic checkpoints."""

from __future__ import annotations

import threading
import time
import weakref
from pathlib import Path
from typing import Protocol

import structlog

from headrace.consumers.wal.log_writer import LogWriter
from headrace.schemas.errors import HeadraceError

TICK_MS = 200
RETRY_MS_MAX = 60_000


class Maintained(Protocol):
    """The log as its maintenance uses it."""

    @property
    def directory(self) -> Path:
        """Directory of the log."""
        ...

    def sync(self) -> object:
        """Makes every written transaction durable."""
        ...

    def checkpoint_unless_failed(self) -> object:
        """Writes a checkpoint; raises LogFailed after a failed sync."""
        ...

    def run_maintenance(self) -> bool:
        """One round of `Maintenance.tick`; False once the log is closed."""
        ...


class Maintenance:
    """One thread of an open log; it ends with `stop`, or when the log is garbage-collected.

    A failed sync makes later updates fail. A failed checkpoint is logged and retried with a delay that
    doubles up to a minute.
    """

    # A weak reference: a log that its owner forgot to close must not be kept open, with its directory locked,
    # by its own thread.

    def __init__(
        self,
        log: weakref.ref[Maintained],
        sync_interval_ms: int | None,
        checkpoint_bytes: int | None,
        checkpoint_age_ms: int | None,
    ) -> None:
        self._log = log
        self._sync_interval_ms = sync_interval_ms
        self._checkpoint_bytes = checkpoint_bytes
        self._checkpoint_age_ms = checkpoint_age_ms
        self._bytes_at_checkpoint = 0
        self._snapshot_bytes = 0
        self._checkpoint_at = time.monotonic()
        self._retry_ms = 0
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the thread, unless every automatic action is switched off."""
        wanted = (self._sync_interval_ms, self._checkpoint_bytes, self._checkpoint_age_ms)
        if any(setting is not None for setting in wanted):
            self._thread = threading.Thread(
                target=_run, args=(self._log, self._stopping, self._tick_seconds()), name="wal", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """Stops the thread and waits for it."""
        self._stopping.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def checkpoint_made(self, bytes_written: int, snapshot_bytes: int) -> None:
        """Resets the thresholds for the next automatic checkpoint."""
        self._bytes_at_checkpoint = bytes_written
        self._snapshot_bytes = snapshot_bytes
        self._checkpoint_at = time.monotonic()
        self._retry_ms = 0

    def checkpoint_is_due(self, bytes_written: int) -> bool:
        """Whether enough bytes were written since the last checkpoint, or any byte long enough ago."""
        # At least as many journal bytes as the snapshot has: a large state with few changes would otherwise
        # be rewritten again and again.
        new_bytes = bytes_written - self._bytes_at_checkpoint
        age_ms = (time.monotonic() - self._checkpoint_at) * 1_000
        if new_bytes == 0 or age_ms < self._retry_ms:
            return False
        large = self._checkpoint_bytes is not None and new_bytes >= max(self._checkpoint_bytes, self._snapshot_bytes)
        old = self._checkpoint_age_ms is not None and age_ms >= self._checkpoint_age_ms
        return large or old

    def checkpoint_failed(self) -> None:
        """Delays the next attempt."""
        self._checkpoint_at = time.monotonic()
        self._retry_ms = min(max(1_000, self._retry_ms * 2), RETRY_MS_MAX)

    def tick(self, log: Maintained, writer: LogWriter) -> None:
        """One round: sync unsynced transactions, write a checkpoint when it is due."""
        # Left to the log's owner: a checkpoint drops what is not known durable, and the owner may be between two
        # updates that belong together.
        if writer.failure is not None:
            return
        try:
            if self._sync_interval_ms is not None and writer.durable < writer.last:
                log.sync()
            if self.checkpoint_is_due(writer.bytes_written):
                # It may have failed since: a check of its own is behind its lock.
                log.checkpoint_unless_failed()
        except (HeadraceError, OSError) as error:
            self.checkpoint_failed()
            structlog.get_logger("headrace.wal").error(
                "maintenance of the write-ahead log failed", directory=str(log.directory), error=str(error)
            )

    def _tick_seconds(self) -> float:
        return min(TICK_MS, self._sync_interval_ms or TICK_MS) / 1_000


def _run(reference: weakref.ref[Maintained], stopping: threading.Event, seconds: float) -> None:
    while not stopping.wait(seconds):
        log = reference()
        if log is None:
            return
        if not log.run_maintenance():
            return
        # No strong reference while waiting, or the log would never be collected.
        del log
