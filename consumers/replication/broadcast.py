"""Says how this node stands in each of its groups, and listens to what all nodes say.

A node serves nothing unless it has read its own newest broadcast back and sent it less than 3 s ago by its boot-time clock, which goes on while a
process or a machine is stopped: that fences a process that was paused and goes on (DESIGN 6).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import structlog

from connectors.log.port import Log, Reader
from consumers.replication.status import INTERVAL_MS, OFFLINE_MS, StatusBoard
from schemas.errors import HeadraceError
from schemas.framing import FrameInvalid, format_headers
from schemas.records import Status, decode_status, encode_status

STATUS_TAIL_RECORDS = 5_000
COALESCE_S = 0.002
REPEAT_S = INTERVAL_MS / 1_000 / 2
_log = structlog.get_logger(__name__)


def boot_ns() -> int:
    """Nanoseconds since boot, suspended time included."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class StatusReader:
    """Follows the status topic into a board. Owned by one thread."""

    def __init__(self, log: Log, topic: str) -> None:
        state = log.describe(topic)
        self._reader: Reader = log.reader({topic: max(state.begin, state.end - STATUS_TAIL_RECORDS)})
        self.board = StatusBoard()

    def follow(self, timeout_s: float) -> list[Status]:
        """Take what has arrived, waiting up to `timeout_s` for the first."""
        heard = []
        for record in self._reader.poll(1_000, timeout_s):
            try:
                status = decode_status(record.value)
            except FrameInvalid:
                continue
            self.board.hear(record.timestamp_ms, status)
            heard.append(status)
        return heard

    def close(self) -> None:
        """Give up the reader."""
        self._reader.close()


class Said:
    """What was broadcast last of each group: what is still true need not be said again before some time has passed."""

    def __init__(self) -> None:
        self._said: dict[str, tuple[Status, float]] = {}

    def news(self, statuses: Sequence[Status], now_s: float) -> list[Status]:
        """Those of the statuses that are to be broadcast now: they say something else, or were last said long enough ago."""
        news = []
        for status in statuses:
            content = replace(status, sent_boot_ns=0)
            before, said_s = self._said.get(status.group, (None, 0.0))
            if content != before or now_s - said_s >= REPEAT_S:
                self._said[status.group] = content, now_s
                news.append(status)
        return news

    def forget(self, group: str) -> None:
        """A status was not sent after all."""
        self._said.pop(group, None)


class Broadcast:
    """The two threads that speak and listen. `board` and `fenced` may be read by any thread."""

    def __init__(
        self, log: Log, topic: str, node: str, incarnation: str, statuses: Callable[[], Sequence[Status]]
    ) -> None:
        self._log = log
        self._topic = topic
        self._node = node
        self._incarnation = incarnation
        self._statuses = statuses
        self._stopping = threading.Event()
        self._changed = threading.Event()
        self._read_back_ns = 0
        self._threads = [
            threading.Thread(target=self._speak, name="status-speak", daemon=True),
            threading.Thread(target=self._listen, name="status-listen", daemon=True),
        ]
        self.board = StatusBoard()

    def start(self) -> None:
        """Begin to speak and listen."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop both."""
        self._stopping.set()
        self._changed.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(10.0)

    def speak_now(self) -> None:
        """Something changed that others should hear before the next interval; many calls make one broadcast."""
        self._changed.set()

    def live(self, group: str, members: Iterable[str]) -> list[Status]:
        """The newest statuses of the members of a group that are alive, in the order given."""
        return self.board.live(group, members)

    @property
    def fenced(self) -> bool:
        """Whether this node must not serve: its own newest word was not read back, or was sent too long ago."""
        return boot_ns() - self._read_back_ns >= OFFLINE_MS * 1_000_000

    def _speak(self) -> None:
        appender, said = self._log.appender(), Said()
        try:
            while not self._stopping.is_set():
                self._changed.clear()
                for status in said.news(self._statuses(), time.monotonic()):
                    key = f"{status.group}/{status.node}".encode()
                    try:
                        appender.append(self._topic, encode_status(status), key=key, headers=format_headers())
                    except HeadraceError as error:
                        said.forget(status.group)
                        _log.warning("status not sent", error=str(error))
                appender.flush(INTERVAL_MS / 1_000)
                self._stopping.wait(COALESCE_S)
                self._changed.wait(INTERVAL_MS / 1_000)
        finally:
            appender.close()

    def _listen(self) -> None:
        while not self._stopping.is_set():
            try:
                reader = StatusReader(self._log, self._topic)
            except HeadraceError as error:
                _log.warning("status not readable", error=str(error))
                self._stopping.wait(1.0)
                continue
            self.board = reader.board
            try:
                while not self._stopping.is_set():
                    self._note_own(reader.follow(0.2))
            except HeadraceError as error:
                _log.warning("status not readable", error=str(error))
            finally:
                reader.close()

    def _note_own(self, heard: Sequence[Status]) -> None:
        for status in heard:
            if status.node == self._node and status.incarnation == self._incarnation:
                self._read_back_ns = max(self._read_back_ns, status.sent_boot_ns)
