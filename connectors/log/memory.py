"""The log in memory: for simulation and unit tests, with the faults of a real log.

Not durable, otherwise as the port requires: `gap` skips offsets as transaction markers do, `trim` deletes a
prefix, `delete_topic` and creating the topic again change its id.
"""

from __future__ import annotations

import threading
import uuid
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from headrace.connectors.deadline import Deadline
from headrace.connectors.log import closing
from headrace.connectors.log.kafka_settings import RECORD_BYTES_MAX
from headrace.connectors.log.port import (
    CLOSE_FLUSH_S,
    AccessDenied,
    Headers,
    LogTruncated,
    LogUnavailable,
    OnDelivery,
    Record,
    RecordTooLarge,
    RecordUndeliverable,
    TopicConfiguration,
    TopicMissing,
    TopicState,
)
from headrace.connectors.log.positions import ReaderPositions
from headrace.schemas.errors import HeadraceError

# Kafka's own.
DEFAULT_SETTINGS = {
    "cleanup.policy": "delete",
    "retention.ms": "604800000",
    "retention.bytes": "-1",
    "min.insync.replicas": "1",
    "message.timestamp.type": "LogAppendTime",
    "max.message.bytes": str(RECORD_BYTES_MAX),
}


@dataclass
class _Topic:
    topic_id: str
    records: list[Record] = field(default_factory=list)
    begin: int = 0
    end: int = 0
    partitions: int = 1
    copies: int = 1
    settings: dict[str, str] = field(default_factory=dict)
    leader_epoch: int = 0


class MemoryLog:
    """All topics of one process. `clock_ms` stamps records; `record_bytes_max` is the largest one accepted.

    `hidden` topics are reported as missing, as by a broker that has just started; while `unavailable`, no
    call succeeds. `held_back` counts records behind the readable end of a topic, as of an open transaction.
    Of `brokers` a topic has as many copies as it was created with. `settings_visible` and `settings_changeable`:
    whether this account may see and change the settings of topics.

    `undeliverable` has (topic, offset) of records that cannot be read; `denied` topics refuse this account.
    """

    def __init__(self, clock_ms: Callable[[], int] = lambda: 0, record_bytes_max: int = 64 * 1024 * 1024) -> None:
        self._topics: dict[str, _Topic] = {}
        self._changed = threading.Condition()
        self._clock_ms = clock_ms
        self._record_bytes_max = record_bytes_max
        self.committed: dict[tuple[str, str], int] = {}
        self.unavailable = False
        self.held_back: dict[str, int] = {}
        self.hidden: set[str] = set()
        self.undeliverable: set[tuple[str, int]] = set()
        self.denied: set[str] = set()
        self.brokers = 1
        self.settings_visible = True
        self.settings_changeable = True

    def create_topic(self, topic: str, settings: Mapping[str, str], *, copies: int = 0, partitions: int = 1) -> None:
        """See Log; only the first partition is used."""
        with self._changed:
            created = _Topic(uuid.uuid4().hex, partitions=partitions, copies=copies or 1)
            created.settings = {**DEFAULT_SETTINGS, **settings}
            self._topics.setdefault(topic, created)

    def configuration(self, topic: str) -> TopicConfiguration:
        """See Log."""
        with self._changed:
            found = self.topic(topic)
            settings = dict(found.settings) if self.settings_visible else None
            return TopicConfiguration(found.partitions, found.copies, self.brokers, settings)

    def configure(self, topic: str, settings: Mapping[str, str]) -> None:
        """See Log."""
        with self._changed:
            found = self.topic(topic)
            if not self.settings_changeable:
                raise AccessDenied(f"the log refuses this account the settings of topic {topic}", topic=topic)
            found.settings.update(settings)

    def close_topic(self, topic: str) -> int:
        """See Log."""
        return closing.close_topic(self, topic)

    def delete_topic(self, topic: str) -> None:
        """See Log."""
        with self._changed:
            self._topics.pop(topic, None)
            self._changed.notify_all()

    def topic_names(self, prefix: str) -> list[str]:
        """See KafkaLog."""
        with self._changed:
            return sorted(name for name in self._topics if name.startswith(prefix))

    def describe(self, topic: str) -> TopicState:
        """See Log."""
        with self._changed:
            found = self.topic(topic)
            return TopicState(found.topic_id, found.begin, found.end)

    def written_end(self, topic: str) -> int:
        """See Log; includes what a test declares as `held_back`."""
        return self.describe(topic).end + self.held_back.get(topic, 0)

    def acknowledged_end(self, topic: str) -> int:
        """See Log."""
        del topic
        return 0

    @property
    def write_fault(self) -> str:
        """See Log."""
        return ""

    def truncate(self, topic: str, end: int) -> None:
        """Delete every record from an offset on, as an unclean leader election does."""
        with self._changed:
            found = self.topic(topic)
            found.end = min(found.end, end)
            found.records = [record for record in found.records if record.offset < end]
            found.leader_epoch += 1

    def elect(self, topic: str) -> None:
        """Another leader appends from here on; nothing is lost."""
        with self._changed:
            self.topic(topic).leader_epoch += 1

    def gap(self, topic: str, offsets: int = 1) -> None:
        """Skip offsets without a record, as a transaction marker does."""
        with self._changed:
            self.topic(topic).end += offsets
            self._changed.notify_all()

    def trim(self, topic: str, before: int) -> None:
        """Delete every record below an offset."""
        with self._changed:
            found = self.topic(topic)
            found.begin = max(found.begin, min(before, found.end))
            found.records = [record for record in found.records if record.offset >= found.begin]

    def reader(self, starts: Mapping[str, int], *, name: str = "", follow: bool = False) -> MemoryReader:
        """See Log."""
        del name, follow
        return MemoryReader(self, dict(starts))

    def commit(self, name: str, offsets: Mapping[str, int]) -> None:
        """See Log."""
        self.committed.update({(name, topic): offset for topic, offset in offsets.items()})

    def appender(self, *, repeats: bool = False) -> MemoryAppender:
        """See Log."""
        del repeats
        return MemoryAppender(self)

    def close(self) -> None:
        """See Log."""

    def topic(self, topic: str) -> _Topic:
        """A topic's state. Raises TopicMissing, AccessDenied and, while the log is `unavailable`, LogUnavailable."""
        if self.unavailable:
            raise LogUnavailable("the log does not answer", retriable=True)
        if topic in self.denied:
            raise AccessDenied(f"the log refuses this account the access to topic {topic}", topic=topic)
        found = self._topics.get(topic)
        if found is None or topic in self.hidden:
            raise TopicMissing(f"topic {topic} does not exist")
        return found

    def store(self, topic: str, value: bytes, key: bytes | None, headers: Headers) -> int:
        """Append one record; its offset."""
        with self._changed:
            found = self.topic(topic)
            limit = self._record_bytes_max if found.settings.get(closing.SIZE_SETTING) != closing.CLOSED_BYTES else -1
            if len(value) > limit:
                raise RecordTooLarge(f"a record of {len(value)} bytes is above the {max(0, limit)} that {topic} takes")
            offset = found.end
            stamps = offset, self._clock_ms()
            found.records.append(Record(topic, *stamps, key, bytes(value), tuple(headers), found.leader_epoch))
            found.end = offset + 1
            self._changed.notify_all()
            return offset

    def wait(self, timeout_s: float) -> None:
        """Return when something changed, or after `timeout_s`."""
        with self._changed:
            self._changed.wait(timeout_s)


class MemoryReader(ReaderPositions):
    """See Reader."""

    def __init__(self, log: MemoryLog, positions: dict[str, int]) -> None:
        super().__init__(positions)
        self._log = log

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        """See Reader."""
        deadline = Deadline(timeout_s)
        while True:
            found = self._take(max_records)
            if found or deadline.passed():
                return found
            self._log.wait(deadline.left_s())

    def _take(self, max_records: int) -> list[Record]:
        taken: list[Record] = []
        for name in self._positions:
            if name not in self._paused:
                try:
                    taken += self._take_of(name, max_records - len(taken))
                except HeadraceError:
                    # Raised by the next call: the records before it are returned first.
                    if taken:
                        break
                    raise
        return taken

    def _take_of(self, name: str, max_records: int) -> list[Record]:
        topic, position = self._log.topic(name), self._positions[name]
        if not topic.begin <= position <= topic.end:
            raise LogTruncated(f"topic {name} holds offsets {topic.begin} to {topic.end}, not {position}")
        start = bisect_left(topic.records, position, key=lambda record: record.offset)
        records = topic.records[start : start + max_records]
        bad = next(
            (place for place, each in enumerate(records) if (name, each.offset) in self._log.undeliverable), None
        )
        if bad == 0:
            offset = records[0].offset
            raise RecordUndeliverable(f"record {offset} of topic {name} cannot be read", topic=name, offset=offset)
        records = records[:bad]
        # Behind the last record the position moves over skipped offsets too, as a Kafka reader's does at
        # the end of a partition.
        reached_end = start + len(records) == len(topic.records)
        self._positions[name] = topic.end if reached_end else records[-1].offset + 1 if records else position
        self._answered.add(name)
        return records


class MemoryAppender:
    """See Appender."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log

    def append(
        self,
        topic: str,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """See Appender; delivery is reported before the call returns."""
        try:
            offset = self._log.store(topic, value, key, headers)
        except (RecordTooLarge, TopicMissing, LogUnavailable, AccessDenied) as error:
            # Kafka reports failures through `on_delivery`; without one the error is raised, so that no test
            # loses a record unnoticed.
            if on_delivery is None:
                raise
            on_delivery(None, error)
            return
        if on_delivery is not None:
            on_delivery(offset, None)

    def prepare(self, topic: str) -> None:
        """See Appender."""

    def flush(self, timeout_s: float) -> int:
        """See Appender."""
        del timeout_s
        return 0

    def close(self, flush_s: float = CLOSE_FLUSH_S) -> None:
        """See Appender."""
        del flush_s
