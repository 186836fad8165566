"""The throttle of a node's pulls, and what they have received so far."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from headrace.connectors.clock import SYSTEM_CLOCK, Clock
from headrace.connectors.processor import ProcessorTime, processor_time
from headrace.consumers.recovery.progress import TransferStopped

WINDOW_S = 10.0
"""The rate that is shown is that of so many seconds."""
YIELD_FACTOR = 4.0
"""A copy that yields pauses for so many times as long as it had to wait for a processor."""


class Pause(Protocol):
    """What a throttled fetch waits on."""

    def wait(self, timeout: float) -> bool:
        """Wait; True when the node stops."""
        ...


class PullRate:
    """A CopyObserver for all fetches of a node together. Safe to share between threads."""

    def __init__(self, bytes_per_second: int, stopping: Pause, clock: Clock = SYSTEM_CLOCK) -> None:
        """0 = no limit. `stopping` is waited on."""
        self._own_limit = self._bytes_per_second = bytes_per_second
        self._stopping = stopping
        self._clock = clock
        self._lock = threading.Lock()
        self._free_s = clock.monotonic_s()
        self._begun_s = self._free_s
        self._recent: deque[tuple[float, int]] = deque()
        self._recent_bytes = 0
        self.received_bytes = 0

    def limit(self, bytes_per_second: int) -> None:
        """The limit of the running change, 0 without one; that of this node holds as well."""
        limits = [each for each in (self._own_limit, bytes_per_second) if each]
        self._bytes_per_second = min(limits, default=0)

    @property
    def per_second(self) -> float:
        """Bytes a second, of the newest seconds."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            self._forget(now_s)
            return self._recent_bytes / max(1.0, min(WINDOW_S, now_s - self._begun_s))

    def received(self, size_bytes: int) -> None:
        """See CopyObserver; waits until so many bytes may have been received."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            self.received_bytes += size_bytes
            self._recent.append((now_s, size_bytes))
            self._recent_bytes += size_bytes
            self._forget(now_s)
            # One queue for all fetches: each waits for its own bytes behind those of the others. Time in which
            # nothing was received is not saved up.
            cost_s = size_bytes / self._bytes_per_second if self._bytes_per_second else 0.0
            self._free_s = max(self._free_s, now_s) + cost_s
            due_s = self._free_s
        self.pause(max(0.0, due_s - now_s))

    def pause(self, seconds: float) -> None:
        """Wait. Raises TransferStopped when the node stops."""
        if self._stopping.wait(seconds):
            raise TransferStopped("the node is stopping")

    def _forget(self, now_s: float) -> None:
        while self._recent and self._recent[0][0] < now_s - WINDOW_S:
            self._recent_bytes -= self._recent.popleft()[1]

    def begin(self, files: int, total_bytes: int) -> None:
        """See CopyObserver; the figures follow from the catalogue."""

    def kept(self, size_bytes: int) -> None:
        """See CopyObserver."""

    def discarded(self, size_bytes: int) -> None:
        """See CopyObserver."""

    def file_done(self) -> None:
        """See CopyObserver."""


class YieldingRate:
    """The CopyObserver of one copy for which nobody waits: it leaves busy processors to others.

    `busy_share` is the share of its time that it works at least, however busy they are. Owned by the copying thread.
    """

    # Writers are other processes, perhaps of other machines: no node knows what they wait for. But where this thread
    # waits for a processor, so do they.
    def __init__(
        self, rate: PullRate, busy_share: float, measured: Callable[[], ProcessorTime] = processor_time
    ) -> None:
        """`measured` is the time of the calling thread."""
        self._rate = rate
        self._busy_share = busy_share
        self._measured = measured
        self._before = measured()

    def received(self, size_bytes: int) -> None:
        """See CopyObserver; pauses where the thread had to wait for a processor."""
        self._rate.received(size_bytes)
        now = self._measured()
        self._rate.pause(yield_s(self._before, now, self._busy_share))
        self._before = self._measured()

    def begin(self, files: int, total_bytes: int) -> None:
        """See CopyObserver."""

    def kept(self, size_bytes: int) -> None:
        """See CopyObserver."""

    def discarded(self, size_bytes: int) -> None:
        """See CopyObserver."""

    def file_done(self) -> None:
        """See CopyObserver."""


def yield_s(before: ProcessorTime, now: ProcessorTime, busy_share: float) -> float:
    """How long a thread pauses for the sake of others after what it needed between two moments."""
    waited_s, ran_s = now.waited_s - before.waited_s, now.ran_s - before.ran_s
    return min(YIELD_FACTOR * waited_s, (1 / busy_share - 1) * (ran_s + waited_s))
