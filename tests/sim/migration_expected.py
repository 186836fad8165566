"""What the groups' logs ask for: by key, every record that counts, in the order in which one wins over another.

A record counts once for a slot, and not behind a newer batch of its producer. Both are decided by the log that has
it, and by what the former holders of the slot had read of that producer, once that has arrived.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headrace.schemas.group_changes import GroupKey, HandedOver, HandedRows, Slots, Takeover
from headrace.schemas.messages import Message, ProducerPosition

Seen = set[tuple[int, bytes]]
"""Sequence and digest of the messages of one batch."""
Batches = dict[str, tuple[int, Seen]]
"""By producer, its newest batch."""


@dataclass(frozen=True, order=True, slots=True)
class Entry:
    """A record about a key: its place in the order of that key, its value (None: deleted), and its log."""

    era: int
    version: int
    value: int | None = field(compare=False)
    topic: str = field(compare=False)


@dataclass
class Knowledge:
    """What one log has shown of producers, and, by origin and slot, what came with a takeover and behind it.

    `sections` are the slots of each part of a takeover: a late batch for one of them is known for all of them.
    """

    own: Batches = field(default_factory=dict)
    inherited: dict[GroupKey, dict[int, Batches]] = field(default_factory=dict)
    sections: dict[GroupKey, set[Slots]] = field(default_factory=dict)

    def counts(self, message: Message) -> bool:
        """Whether the log itself has neither this message nor a newer batch of its producer; it has it now."""
        position = message.position
        if is_known(self.own, position, message.digest):
            return False
        note(self.own, position.producer, position.batch, [(position.sequence, message.digest)])
        return True

    def counts_for(self, slot: int, message: Message) -> bool:
        """Whether no former holder of a slot had read it, or a newer batch."""
        known = (each[slot] for each in self.inherited.values() if slot in each)
        return not any(is_known(each, message.position, message.digest) for each in known)

    def of_slot(self, slot: int) -> list[Batches]:
        """All that is known of the producers of a slot."""
        return [self.own, *(each[slot] for each in self.inherited.values() if slot in each)]

    def from_origin(self, origin: GroupKey, slot: int) -> Batches:
        """What one former holder knew of the producers of a slot."""
        return self.inherited.setdefault(origin, {}).setdefault(slot, {})


class Expected:
    """The records of every log that count. `entries` are in order, the one that wins is the last."""

    def __init__(self) -> None:
        self.entries: dict[str, list[Entry]] = {}
        self.logs: dict[str, Knowledge] = {}
        self._leaving: dict[tuple[GroupKey, int], dict[int, Batches]] = {}

    def add(self, key: str, entry: Entry) -> None:
        """A record about a key is in a log."""
        insort(self.entries.setdefault(key, []), entry)

    def log(self, topic: str) -> Knowledge:
        """What a log has shown of producers."""
        return self.logs.setdefault(topic, Knowledge())

    def value(self, key: str) -> int | None:
        """The value that an answer with everything must have; None for none."""
        order = self.entries.get(key)
        return order[-1].value if order else None

    def admits(self, key: str, value: int | None, read: Mapping[str, int]) -> bool:
        """Whether an answer may have a value that contains each log up to a version at least."""
        for entry in reversed(self.entries.get(key, ())):
            if entry.value == value:
                return True
            if entry.version <= read.get(entry.topic, 0):
                return False
        return value is None

    def cut(self, origin: GroupKey, topic: str, version: int, slots: Iterable[int]) -> None:
        """Slots leave a group: what it knows of their producers leaves with them."""
        known = self.log(topic)
        self._leaving[origin, version] = {slot: _merged(known.of_slot(slot)) for slot in slots}

    def handed(self, topic: str, handed: HandedOver, *, last: bool) -> None:
        """A hand-over counts at a log; `last`: everything of its cut is here now."""
        log, origin, body = self.log(topic), handed.origin, handed.body
        if isinstance(body, HandedRows):
            position = body.position
            for section in log.sections.get(origin, ()):
                for slot in section if not set(section).isdisjoint(body.slots) else ():
                    note(
                        log.from_origin(origin, slot),
                        position.producer,
                        position.batch,
                        [(position.sequence, body.digest)],
                    )
        elif isinstance(body, Takeover):
            log.sections.setdefault(origin, set()).add(body.slots)
            whole = self._leaving.get((origin, handed.position.version), {}) if last else {}
            for slot in body.slots:
                known = log.from_origin(origin, slot)
                for each in body.producers:
                    note(known, each.producer, each.batch, each.seen)
                # What the parts have not brought, nobody would miss.
                for producer, (batch, seen) in whole.get(slot, {}).items():
                    note(known, producer, batch, seen)


def is_known(batches: Batches, position: ProducerPosition, digest: bytes) -> bool:
    """Whether a message is a repeat, or of an older batch."""
    batch, seen = batches.get(position.producer, (-1, set()))
    return position.batch < batch or (position.batch == batch and (position.sequence, digest) in seen)


def note(batches: Batches, producer: str, batch: int, seen: Iterable[tuple[int, bytes]]) -> None:
    """Messages of a batch were read."""
    known, before = batches.get(producer, (-1, set()))
    if batch > known:
        batches[producer] = batch, set(seen)
    elif batch == known:
        before.update(seen)


def _merged(all_batches: Iterable[Batches]) -> Batches:
    found: Batches = {}
    for batches in all_batches:
        for producer, (batch, seen) in batches.items():
            note(found, producer, batch, seen)
    return found
