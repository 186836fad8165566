"""The disk of a receiver while it is full: its chunks and its views wait for the same space."""

from __future__ import annotations

import threading
from pathlib import Path
from tempfile import TemporaryFile

import structlog

from headrace.connectors.clock import SYSTEM_CLOCK, Clock
from headrace.consumers.sync.incoming import ReceiverDiskFull
from headrace.consumers.sync.view_database import ViewDiskFull
from headrace.schemas.errors import HeadraceError

SPACE_BYTES = 8 << 20
"""What a chunk needs, or a view that is opened again and writes what its own log has."""
_log = structlog.get_logger(__name__)


class ReceiverDisk:
    """Safe to share between threads; `look` is for one of them."""

    def __init__(self, directory: Path, retry_s: float, clock: Clock = SYSTEM_CLOCK) -> None:
        """`retry_s` is the pause between two looks at a full disk."""
        self._directory = directory
        self._retry_s = retry_s
        self._clock = clock
        self._lock = threading.Lock()
        self._look_at_s = 0.0
        self.fault = ""
        """Why nothing can be written, empty while there is space."""
        self.times_full = 0

    def note(self, error: HeadraceError) -> bool:
        """Whether an error is that of the full disk. It is counted then, and logged once until there is space."""
        if not isinstance(error, ReceiverDiskFull | ViewDiskFull):
            return False
        with self._lock:
            self.times_full += 1
            if not self.fault:
                self._look_at_s = self._clock.monotonic_s() + self._retry_s
                _log.error("receiving waits for space on the disk", error=error.message)
            self.fault = error.message
        return True

    def look(self) -> None:
        """Look whether there is space again, now and then: what failed may have nothing to write for days."""
        if not self.fault or self._clock.monotonic_s() < self._look_at_s or not self._has_space():
            return
        with self._lock:
            self.fault = ""
        _log.info("there is space on the disk: receiving continues")

    def _has_space(self) -> bool:
        self._look_at_s = self._clock.monotonic_s() + self._retry_s
        try:
            # Without a name, so that it is gone with the process.
            with TemporaryFile(buffering=0, dir=self._directory) as file:
                return file.write(bytes(SPACE_BYTES)) == SPACE_BYTES
        except OSError:
            return False
