"""The Kafka of a centre in a simulation of sync: partitions that lose their beginning, and a group that rebalances."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from random import Random

from headrace.connectors.log.kafka_group import Partition, PartitionEnd, PartitionEvent, PartitionRecord
from headrace.connectors.log.topics import Topics

RECORDS_MAX = 6
COMMIT_LOST = 0.1
OnPartitions = Callable[[list[Partition]], None]


@dataclass
class SimPartition:
    """Records from `begin` on; those below are dropped."""

    records: list[bytes] = field(default_factory=list)
    begin: int = 0

    @property
    def end(self) -> int:
        """The next offset."""
        return len(self.records)


class SimKafka:
    """Partitions of manifests and chunks, and the committed offsets of the group that reads them."""

    def __init__(self, random: Random, topics: Topics, numbers: int) -> None:
        self.random = random
        self.topics = topics
        self.numbers = range(numbers)
        self.partitions: dict[Partition, SimPartition] = {
            (topic, number): SimPartition()
            for topic in (topics.sync_manifest, topics.sync_chunk)
            for number in self.numbers
        }
        self.committed: dict[Partition, int] = {}
        self.members: dict[str, SimConsumer] = {}
        self._giving_up: set[SimConsumer] = set()
        self._stable = False
        self.rebalances = self.dropped = 0
        self.faults = True

    def append(self, topic: str, number: int, value: bytes) -> None:
        """One record."""
        self.partitions[topic, number].records.append(value)

    def drop_chunks(self) -> None:
        """Retention takes some of the oldest chunks of a partition."""
        found = self.partitions[self.topics.sync_chunk, self.random.choice(self.numbers)]
        before = found.begin
        found.begin = self.random.randint(found.begin, found.end)
        self.dropped += found.begin - before

    # The coordinator: everybody gives up what they have, then everybody gets a share.

    def join(self, consumer: SimConsumer) -> None:
        """A consumer joins; one under a known name takes the place and the partitions of the older one."""
        older = self.members.get(consumer.name)
        self.members[consumer.name] = consumer
        if older is not None:
            self._giving_up.discard(older)
            if self._stable:
                consumer.coming = set(older.assigned if older.coming is None else older.coming)
            else:
                self._assign_if_free()
            return
        self._rebalance()

    def leave(self, consumer: SimConsumer) -> None:
        """A consumer left, or its session ended: it does not know that yet."""
        if self.members.get(consumer.name) is consumer:
            del self.members[consumer.name]
            self._giving_up.discard(consumer)
            self._rebalance()

    def waits_for(self, consumer: SimConsumer) -> bool:
        """Whether a consumer must give up its partitions first."""
        return consumer in self._giving_up

    def gave_up(self, consumer: SimConsumer) -> None:
        """A consumer has given up its partitions."""
        self._giving_up.discard(consumer)
        self._assign_if_free()

    def _rebalance(self) -> None:
        self.rebalances += 1
        self._stable = False
        for each in self.members.values():
            each.coming = None
        self._giving_up = set(self.members.values())
        self._assign_if_free()

    def _assign_if_free(self) -> None:
        if self._giving_up or not self.members:
            return
        self._stable = True
        names = sorted(self.members)
        for place, name in enumerate(names):
            mine = {number for number in self.numbers if number % len(names) == place}
            self.members[name].coming = {each for each in self.partitions if each[1] in mine}


class SimConsumer:
    """See GroupConsumer."""

    def __init__(self, kafka: SimKafka, name: str, on_assigned: OnPartitions, on_revoked: OnPartitions) -> None:
        self.name = name
        self.assigned: set[Partition] = set()
        self.coming: set[Partition] | None = None
        self._kafka = kafka
        self._random = kafka.random
        self._on_assigned, self._on_revoked = on_assigned, on_revoked
        self._positions: dict[Partition, int] = {}
        self._paused: set[Partition] = set()

    @property
    def is_member(self) -> bool:
        """Whether the group counts it."""
        return self._kafka.members.get(self.name) is self

    def poll(self, max_records: int, timeout_s: float) -> list[PartitionEvent]:
        """See GroupConsumer."""
        del timeout_s
        if not self.is_member:
            self._give_up()
            self._kafka.join(self)
            return []
        if self._kafka.waits_for(self):
            self._give_up()
            self._kafka.gave_up(self)
            return []
        if self.coming is not None:
            self._take_over()
        partitions = sorted(self.assigned - self._paused)
        self._random.shuffle(partitions)
        return [event for each in partitions for event in self._read(each, min(max_records, RECORDS_MAX))]

    def _read(self, partition: Partition, most: int) -> list[PartitionEvent]:
        log = self._kafka.partitions[partition]
        start = max(self._positions[partition], log.begin)
        end = min(log.end, start + self._random.randint(0, most))
        self._positions[partition] = end
        found: list[PartitionEvent] = [
            PartitionRecord(partition, offset, 0, None, log.records[offset]) for offset in range(start, end)
        ]
        return [*found, PartitionEnd(partition, end)] if end == log.end else found

    def _give_up(self) -> None:
        if self.assigned:
            self._on_revoked(sorted(self.assigned))
        self.assigned = set()
        self._paused = set()

    def _take_over(self) -> None:
        assert self.coming is not None
        self.assigned, self.coming = self.coming, None
        for each in self.assigned:
            self._positions[each] = self._kafka.committed.get(each, 0)
        if self.assigned:
            self._on_assigned(sorted(self.assigned))

    def bounds(self, partition: Partition) -> tuple[int, int]:
        """See GroupConsumer."""
        found = self._kafka.partitions[partition]
        return found.begin, found.end

    def pause(self, partitions: Iterable[Partition]) -> None:
        """See GroupConsumer."""
        self._paused.update(partitions)

    def resume(self, partitions: Iterable[Partition]) -> None:
        """See GroupConsumer."""
        self._paused.difference_update(partitions)

    def seek(self, partition: Partition, offset: int) -> None:
        """See GroupConsumer."""
        self._positions[partition] = offset

    def commit(self, offsets: Mapping[Partition, int]) -> None:
        """See GroupConsumer: one that is no member any more commits nothing, and any commit may be lost."""
        if self.is_member and not (self._kafka.faults and self._random.random() < COMMIT_LOST):
            self._kafka.committed.update({each: at for each, at in offsets.items() if each in self.assigned})

    def close(self) -> None:
        """See GroupConsumer."""
