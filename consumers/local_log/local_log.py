"""The adapter of the log port for one node without Kafka.

Every record is synced before it is acknowledged or read. Only the process that opened the directory has the log:
nobody else appends to it, and other programs ask the node.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from headrace.connectors.deadline import Deadline
from headrace.connectors.files import FileLayer
from headrace.connectors.log import closing
from headrace.connectors.log.port import (
    CLOSE_FLUSH_S,
    Headers,
    LogTruncated,
    LogUnavailable,
    OnDelivery,
    Record,
    TopicConfiguration,
    TopicMissing,
    TopicState,
)
from headrace.connectors.log.positions import ReaderPositions
from headrace.connectors.periodic import PeriodicTask
from headrace.consumers.local_log.group_append import GroupAppend, Outstanding
from headrace.consumers.local_log.topic_records import RETENTION_SETTING
from headrace.consumers.local_log.topic_store import NewRecord, TopicStore
from headrace.schemas.errors import HeadraceError

EXPIRY_INTERVAL_S = 30.0
_UNLIMITED_MS = -1
_log = structlog.get_logger(__name__)


class LocalLog:
    """See Log: topics in a directory that this process owns. The first call opens it.

    Every method may raise DirectoryHeld, LogDamaged and ForeignLog, and LogUnavailable once the log is closed.
    """

    def __init__(
        self,
        directory: Path,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        files: FileLayer | None = None,
    ) -> None:
        """`files`: the file operations, which a test replaces. `clock_ms` stamps records."""
        self.committed: dict[tuple[str, str], int] = {}
        self._directory = directory
        self._clock_ms = clock_ms
        self._files = files
        self._lock = threading.Lock()
        self._opened: _Opened | None = None
        self._closed = False

    @property
    def _open(self) -> _Opened:
        with self._lock:
            if self._closed:
                raise LogUnavailable(f"the local log in {self._directory} is closed", retriable=True)
            if self._opened is None:
                self._opened = _Opened(self._directory, self._clock_ms, self._files)
            return self._opened

    def create_topic(self, topic: str, settings: Mapping[str, str], *, copies: int = 0, partitions: int = 1) -> None:
        """See Log; there is one copy, of one partition."""
        del copies, partitions
        self._open.store.create(topic, settings)

    def configuration(self, topic: str) -> TopicConfiguration:
        """See Log."""
        return TopicConfiguration(1, 1, 1, self._open.store.settings(topic))

    def configure(self, topic: str, settings: Mapping[str, str]) -> None:
        """See Log."""
        self._open.store.configure(topic, settings)

    def describe(self, topic: str) -> TopicState:
        """See Log."""
        return self._open.store.state(topic)

    def written_end(self, topic: str) -> int:
        """See Log; there are no transactions."""
        return self._open.store.state(topic).end

    def acknowledged_end(self, topic: str) -> int:
        """See Log."""
        opened = self._opened
        if opened is None or opened.appends.fault:
            return 0
        try:
            return opened.store.state(topic).end
        except TopicMissing:
            return 0

    @property
    def write_fault(self) -> str:
        """See Log."""
        opened = self._opened
        return "" if opened is None else opened.appends.fault

    def reader(self, starts: Mapping[str, int], *, name: str = "", follow: bool = False) -> LocalReader:
        """See Log."""
        del name, follow
        return LocalReader(self._open.store, dict(starts))

    def commit(self, name: str, offsets: Mapping[str, int]) -> None:
        """See Log."""
        self.committed.update({(name, topic): offset for topic, offset in offsets.items()})

    def trim(self, topic: str, before: int) -> None:
        """See Log."""
        self._open.store.trim(topic, before)

    def close_topic(self, topic: str) -> int:
        """See Log."""
        return closing.close_topic(self, topic)

    def delete_topic(self, topic: str) -> None:
        """See Log."""
        self._open.store.delete(topic)

    def appender(self, *, repeats: bool = False) -> LocalAppender:
        """See Log."""
        del repeats
        return LocalAppender(self._open.appends)

    def expire(self) -> None:
        """Remove the records that are older than the retention of their topics; done by a thread as well."""
        self._open.expire()

    def close(self) -> None:
        """See Log; a second call does nothing."""
        with self._lock:
            self._closed, opened, self._opened = True, self._opened, None
        if opened is not None:
            opened.close()


class _Opened:
    """The parts of a log that is open, with their threads."""

    def __init__(self, directory: Path, clock_ms: Callable[[], int], files: FileLayer | None) -> None:
        self.store = TopicStore(directory, clock_ms, files)
        self.appends = GroupAppend(self.store)
        self._clock_ms = clock_ms
        self._faults: dict[str, str] = {}
        """Topic -> why its records could not expire the last time."""
        self._expiry = PeriodicTask("local-log-expiry", EXPIRY_INTERVAL_S, self.expire)
        self._expiry.start()

    def expire(self) -> None:
        """See LocalLog."""
        now_ms = self._clock_ms()
        for name in self.store.names():
            try:
                retention_ms = int(self.store.settings(name).get(RETENTION_SETTING, _UNLIMITED_MS))
                if retention_ms >= 0:
                    self.store.expire(name, now_ms - retention_ms)
            except TopicMissing:
                # Deleted meanwhile.
                self._note(name, "")
            except (HeadraceError, OSError) as error:
                # The other topics expire all the same, and this one is tried again.
                self._note(name, str(error))
            else:
                self._note(name, "")

    def _note(self, topic: str, fault: str) -> None:
        """Keep why a topic cannot expire; the log has each cause once, and not each try."""
        if fault and self._faults.get(topic) != fault:
            _log.warning("a topic of the local log cannot expire, and is tried again", topic=topic, error=fault)
        if fault:
            self._faults[topic] = fault
        else:
            self._faults.pop(topic, None)

    def close(self) -> None:
        """Write what waits, and release the directory."""
        self._expiry.stop()
        self.appends.close(CLOSE_FLUSH_S)
        self.store.close()


class LocalReader(ReaderPositions):
    """See Reader."""

    def __init__(self, store: TopicStore, positions: dict[str, int]) -> None:
        super().__init__(positions)
        self._store = store
        self._turn = 0

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        """See Reader."""
        deadline = Deadline(timeout_s)
        while True:
            found = self._take(max_records)
            if found or deadline.passed():
                return found
            self._store.wait(self._has_news, deadline.left_s())

    def _has_news(self) -> bool:
        """Whether `_take` would find a record, or an error."""
        for name, position in self._positions.items():
            if name not in self._paused:
                try:
                    if self._store.topic(name).end != position:
                        return True
                except TopicMissing:
                    return True
        return False

    def _take(self, records_max: int) -> list[Record]:
        taken: list[Record] = []
        # In turn: a topic that always has more must not keep the others from being read.
        names = [name for name in self._positions if name not in self._paused]
        self._turn += 1
        for place in range(len(names)):
            name = names[(self._turn + place) % len(names)]
            if len(taken) >= records_max:
                break
            try:
                taken += self._take_of(name, records_max - len(taken))
            except HeadraceError:
                # Raised by the next call: the records before it are returned first.
                if taken:
                    break
                raise
        return taken

    def _take_of(self, name: str, records_max: int) -> list[Record]:
        state, position = self._store.state(name), self._positions[name]
        if not state.begin <= position <= state.end:
            raise LogTruncated(f"topic {name} holds offsets {state.begin} to {state.end}, not {position}")
        records = self._store.read(name, position, records_max)
        if records:
            self._positions[name] = records[-1].offset + 1
        elif position < state.end and self._store.state(name).begin > position:
            raise LogTruncated(f"topic {name} lost offset {position} while it was read")
        elif self._store.may_have_holes(name):
            self._positions[name] = state.end
        self._answered.add(name)
        return records


class LocalAppender:
    """See Appender."""

    def __init__(self, appends: GroupAppend) -> None:
        self._appends = appends
        self._outstanding = Outstanding()

    def append(
        self,
        topic: str,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """See Appender. Raises RecordTooLarge at once, and LogUnavailable."""
        self._appends.put(NewRecord(topic, value, key, tuple(headers)), on_delivery, self._outstanding)

    def prepare(self, topic: str) -> None:
        """See Appender."""

    def flush(self, timeout_s: float) -> int:
        """See Appender."""
        return self._outstanding.wait(timeout_s)

    def close(self, flush_s: float = CLOSE_FLUSH_S) -> None:
        """See Appender."""
        self.flush(flush_s)
