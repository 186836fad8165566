"""The log port over a simulated broker, with the faults of a real one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.connectors.log.closing import CLOSED_BYTES, SIZE_SETTING
from headrace.connectors.log.port import (
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
from tests.sim.world import EPOCH_MS, World

if TYPE_CHECKING:
    from tests.sim.truth import Truth

ARRIVES_WHEN_CUT = 0.1
REPEATED = 0.02
CLEANED_MS = 700
OFFSETS_SKIPPED = 0.05
ANSWER = "answer"
"""The step of a client behind an answer about a topic, which may have been on its way for long."""


@dataclass(slots=True)
class SimTopic:
    """One topic: records in order, offsets with gaps, a beginning that trimming moves."""

    name: str
    topic_id: str
    records: list[Record] = field(default_factory=list)
    begin: int = 0
    end: int = 0
    leader_epoch: int = 0
    settings: dict[str, str] = field(default_factory=dict)

    def index(self, offset: int) -> int:
        """The position of the first record at or behind an offset."""
        return bisect_left(self.records, offset, key=lambda record: record.offset)


class SimBroker:
    """All topics. `clock_error_ms` is how wrong the clock that stamps records is; it may step both ways."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.topics: dict[str, SimTopic] = {}
        self.truths: dict[str, Truth] = {}
        self.hidden_until_ms = 0
        # By topic: until when it is gone, to come back as it was.
        self.away_until_ms: dict[str, int] = {}
        # By topic: an offset that cannot be read, and until when.
        self.undeliverable: dict[str, tuple[int, int]] = {}
        self.clock_error_ms = 0
        self._errors: list[tuple[int, int]] = [(0, 0)]
        """When the clock was wrong by how much; the newest last."""
        self.on_trim: Callable[[str, str, int], None] = lambda _node, _topic, _before: None
        self.ends: list[tuple[int, str, int]] = []
        """When a topic had another end, and which."""
        self._made = 0
        self._arrivals_ms: dict[tuple[str, str], float] = {}

    def make(self, topic: str) -> None:
        """Make a topic, or make it again: another id, no records."""
        self._made += 1
        self.topics[topic] = SimTopic(topic, f"topic-{self._made}")
        self.ends.append((self.world.now_ms, topic, 0))
        if topic in self.truths:
            self.truths[topic].made_again(self.topics[topic].topic_id)

    def clean(self) -> None:
        """Delete and compact as the settings of the topics demand, and again a little later."""
        for found in self.topics.values():
            kept_ms = int(found.settings.get("retention.ms", "-1"))
            oldest_ms = EPOCH_MS + self.world.now_ms + self.clock_error_ms - kept_ms
            old = sum(record.timestamp_ms < oldest_ms for record in found.records) if kept_ms >= 0 else 0
            if old:
                del found.records[:old]
                found.begin = found.records[0].offset if found.records else found.end
            if "compact" in found.settings.get("cleanup.policy", "delete") and len(found.records) > 2:
                del found.records[len(found.records) // 2]
        self.world.after(CLEANED_MS, self.clean)

    def truncate(self, topic: str, records: int) -> None:
        """Lose the newest records; the topic's id stays, as after an unclean election of the broker."""
        found = self.topics[topic]
        found.leader_epoch += 1
        if records and found.records:
            lost = found.records[-records:]
            del found.records[-records:]
            found.end = lost[0].offset
            # Offsets without a record may be left at the end, which nobody needs to have.
            newest = found.records[-1].offset + 1 if found.records else found.begin
            self.ends.append((self.world.now_ms, topic, newest))
            found.begin = min(found.begin, found.end)
            if topic in self.truths:
                self.truths[topic].truncated(found.end)

    def step_clock(self, step_ms: int) -> None:
        """The clock that stamps records is set back or forth."""
        self.clock_error_ms += step_ms
        self._errors.append((self.world.now_ms, self.clock_error_ms))

    def most_error_ms(self, since_ms: int) -> int:
        """How far the clock was ahead at most, since a moment."""
        before = [error_ms for at_ms, error_ms in self._errors if at_ms <= since_ms][-1:]
        return max(0, *before, *(error_ms for at_ms, error_ms in self._errors if at_ms > since_ms))

    def elect(self, topic: str) -> None:
        """Another broker leads the topic, or the same one after a restart; nothing is lost."""
        self.topics[topic].leader_epoch += 1

    def send(
        self,
        sender: str,
        topic: str,
        value: bytes,
        key: bytes | None,
        headers: Headers,
        on_delivery: OnDelivery | None,
    ) -> None:
        """Append a record after a delay, in the order of the sender's calls.

        The record of a sender that is cut off may be lost; a copy may arrive again later.
        """
        world, chance = self.world, self.world.random
        # One record in ten of a sender that is cut off arrives, as one that was in flight at the cut does.
        if sender in world.sends_cut and chance.random() >= ARRIVES_WHEN_CUT:
            return
        arrival_ms = max(self._arrivals_ms.get((sender, topic), 0), world.now_ms + world.delay_ms())
        self._arrivals_ms[sender, topic] = arrival_ms
        world.after(arrival_ms - world.now_ms, lambda: self.append(topic, value, key, headers, on_delivery))
        # A repeat, as of a producer that sends again because the acknowledgement was lost.
        if chance.random() < REPEATED:
            delay_ms = arrival_ms - world.now_ms + world.delay_ms()
            world.after(delay_ms, lambda: self.append(topic, value, key, headers, None))

    def append(
        self, topic: str, value: bytes, key: bytes | None, headers: Headers, on_delivery: OnDelivery | None
    ) -> None:
        """Append a record now."""
        found = None if self.is_away(topic) else self.topics.get(topic)
        if found is None or found.settings.get(SIZE_SETTING) == CLOSED_BYTES:
            refusal = RecordTooLarge(f"topic {topic} is closed") if found else TopicMissing(f"no topic {topic}")
            if on_delivery is not None:
                on_delivery(None, refusal)
            return
        # Gaps in the offsets, as Kafka's transaction markers leave them: no version follows from an offset.
        if self.world.random.random() < OFFSETS_SKIPPED:
            found.end += self.world.random.randint(1, 3)
        timestamp_ms = EPOCH_MS + self.world.now_ms + self.clock_error_ms
        record = Record(topic, found.end, timestamp_ms, key, value, tuple(headers), found.leader_epoch)
        found.records.append(record)
        found.end += 1
        self.ends.append((self.world.now_ms, topic, found.end))
        if topic in self.truths:
            self.truths[topic].observe(record)
        if on_delivery is not None:
            on_delivery(record.offset, None)

    def end_before(self, topic: str, now_ms: int) -> int:
        """The end that a topic had right before a moment, or within its millisecond, if that was a lower one."""
        least: int | None = None
        for at_ms, name, end in reversed(self.ends):
            if name == topic and at_ms <= now_ms:
                least = end if least is None else min(least, end)
                if at_ms < now_ms:
                    break
        return least or 0

    def is_away(self, topic: str) -> bool:
        """Whether a topic is gone for a while."""
        return self.world.now_ms < self.away_until_ms.get(topic, 0)

    def found(self, topic: str) -> SimTopic:
        """A topic. Raises TopicMissing, also right after the start of a broker."""
        if topic not in self.topics or self.world.now_ms < self.hidden_until_ms or self.is_away(topic):
            raise TopicMissing(f"topic {topic} does not exist")
        return self.topics[topic]


class SimLog:
    """A `Log` as one client sees it. `step(name)` is called before every call: the client may be stopped there."""

    def __init__(self, broker: SimBroker, client: str, step: Callable[[str], None] = lambda _name: None) -> None:
        self.broker = broker
        self.client = client
        self.step = step

    def create_topic(self, topic: str, settings: Mapping[str, str], *, copies: int = 0, partitions: int = 1) -> None:
        """See Log; the topics are there."""

    def configuration(self, topic: str) -> TopicConfiguration:
        """See Log; one broker that keeps everything."""
        return TopicConfiguration(1, 1, 1, dict(self.answer(topic).settings))

    def configure(self, topic: str, settings: Mapping[str, str]) -> None:
        """See Log."""
        self.step("configure")
        self.answer(topic).settings.update(settings)

    def close_topic(self, topic: str) -> int:
        """See Log; the only broker has the setting at once."""
        self.configure(topic, {SIZE_SETTING: CLOSED_BYTES})
        return self.describe(topic).end

    def delete_topic(self, topic: str) -> None:
        """See Log."""
        self.step("delete_topic")
        self.broker.topics.pop(topic, None)

    def answer(self, topic: str) -> SimTopic:
        """A topic. Raises TopicMissing, and LogUnavailable for a client that is cut off."""
        if self.client in self.broker.world.reads_cut:
            raise LogUnavailable("the log does not answer", retriable=True)
        return self.broker.found(topic)

    def describe(self, topic: str) -> TopicState:
        """See Log."""
        self.step("describe")
        found = self.answer(topic)
        state = TopicState(found.topic_id, found.begin, found.end)
        self.step(ANSWER)
        return state

    def acknowledged_end(self, topic: str) -> int:
        """See Log."""
        del topic
        return 0

    @property
    def write_fault(self) -> str:
        """See Log."""
        return ""

    def written_end(self, topic: str) -> int:
        """See Log."""
        return self.answer(topic).end

    def reader(self, starts: Mapping[str, int], *, name: str = "", follow: bool = False) -> SimReader:
        """See Log."""
        del name, follow
        return SimReader(self, dict(starts))

    def commit(self, name: str, offsets: Mapping[str, int]) -> None:
        """See Log."""

    def trim(self, topic: str, before: int) -> None:
        """See Log."""
        self.step("trim")
        found = self.answer(topic)
        before = min(before, found.end)
        if before > found.begin:
            self.broker.on_trim(self.client, topic, before)
            del found.records[: found.index(before)]
            found.begin = before

    def appender(self, *, repeats: bool = False) -> SimAppender:
        """See Log."""
        del repeats
        return SimAppender(self)

    def close(self) -> None:
        """See Log."""


class SimReader:
    """See Reader. A client that is cut off gets nothing, and no error, as from Kafka."""

    def __init__(self, log: SimLog, positions: dict[str, int]) -> None:
        self._log = log
        self._positions = positions
        self._paused: set[str] = set()
        self._answered: set[str] = set()

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        """See Reader; returns at once."""
        del timeout_s
        self._log.step("poll")
        world, taken = self._log.broker.world, list[Record]()
        if self._log.client in world.reads_cut:
            return taken
        for name, position in self._positions.items():
            if name in self._paused:
                continue
            topic = self._log.broker.found(name)
            if position == topic.end:
                self._answered.add(name)
                continue
            if not topic.begin <= position <= topic.end:
                raise LogTruncated(f"topic {name} holds offsets {topic.begin} to {topic.end}, not {position}")
            start = topic.index(position)
            records = topic.records[start : start + max_records - len(taken)]
            if name in self._log.broker.undeliverable:
                records = self._deliverable(name, records)
            taken += records
            reached_end = start + len(records) == len(topic.records)
            self._answered.add(name)
            self._positions[name] = topic.end if reached_end else records[-1].offset + 1 if records else position
        return taken

    def _deliverable(self, topic: str, records: list[Record]) -> list[Record]:
        """The records before one that cannot be read. Raises RecordUndeliverable when that is the first."""
        bad, until_ms = self._log.broker.undeliverable[topic]
        if self._log.broker.world.now_ms >= until_ms:
            return records
        if records and records[0].offset == bad:
            raise RecordUndeliverable(f"offset {bad} cannot be read", topic=topic, offset=bad)
        return [record for record in records if record.offset < bad] if records and records[0].offset < bad else records

    def answered(self, topic: str) -> bool:
        """See Reader."""
        return topic in self._answered

    def position(self, topic: str) -> int:
        """See Reader."""
        return self._positions[topic]

    def seek(self, topic: str, offset: int) -> None:
        """See Reader."""
        self._positions[topic] = offset

    def pause(self, topics: Iterable[str]) -> None:
        """See Reader."""
        self._paused.update(topics)

    def resume(self, topics: Iterable[str]) -> None:
        """See Reader."""
        self._paused.difference_update(topics)

    def close(self) -> None:
        """See Reader."""


class SimAppender:
    """See Appender."""

    def __init__(self, log: SimLog) -> None:
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
        """See Appender; the record arrives later."""
        self._log.step("append")
        self._log.broker.send(self._log.client, topic, bytes(value), key, headers, on_delivery)

    def prepare(self, topic: str) -> None:
        """See Appender; the topics are known."""

    def flush(self, timeout_s: float) -> int:
        """See Appender."""
        del timeout_s
        return 0

    def close(self, flush_s: float = 0.0) -> None:
        """See Appender."""
        del flush_s
