"""What the former holder of some slots knew of producers: replicated state of the group that took them. Pure.

A repeat of a message that the former holder applied, and a record of an older batch, must not count at the new
holder. They are recognised for rows of these slots only: for others the new holder has its own memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.schemas.group_changes import BEGINNING, HandOverPosition, MovedProducer, Slots
from headrace.schemas.message_bodies import ProducerPosition
from headrace.schemas.messages import is_deletes_producer

SECTION_PRODUCERS_MAX = 30_000
"""Producers that are remembered for the slots of one takeover; the one with the oldest last record is forgotten."""
SECTIONS_MAX = 1_024
"""Sections of one origin that are remembered; the oldest is forgotten first."""


@dataclass(slots=True)
class Newest:
    """The newest batch of a producer, and (sequence, digest) of its messages."""

    batch: int
    seen: set[tuple[int, bytes]]


@dataclass(slots=True)
class Section:
    """The producers of some slots, the one with the oldest last record first."""

    slots: frozenset[int]
    producers: dict[str, Newest] = field(default_factory=dict)

    def note(self, producer: str, batch: int, seen: Iterable[tuple[int, bytes]]) -> None:
        """Messages of a producer were applied under its former holder."""
        known = self.producers.pop(producer, None)
        # Parts of one takeover may divide a producer's batch: those of the same batch add up.
        if known is None or batch > known.batch:
            known = Newest(batch, set())
        if batch == known.batch:
            known.seen.update(seen)
        self.producers[producer] = known
        if len(self.producers) > SECTION_PRODUCERS_MAX:
            del self.producers[next(iter(self.producers))]

    def add(self, producers: Iterable[MovedProducer]) -> None:
        """Producers of a takeover, in its order."""
        for each in producers:
            self.note(each.producer, each.batch, each.seen)

    def knows(self, position: ProducerPosition, digest: bytes) -> bool:
        """Whether a message is a repeat, or of an older batch."""
        known = self.producers.get(position.producer)
        if known is None or position.batch > known.batch:
            return False
        return position.batch < known.batch or (position.sequence, digest) in known.seen

    def moved(self) -> tuple[MovedProducer, ...]:
        """The producers as a takeover has them, in this order."""
        return tuple(MovedProducer(name, each.batch, tuple(sorted(each.seen))) for name, each in self.producers.items())


@dataclass(slots=True)
class Origin:
    """A group whose slots this one took: the newest position that counted, and what it knew of producers.

    `table_version` is that of the newest table by which slots came from it: the first part of their takeover is here.
    """

    position: HandOverPosition = BEGINNING
    sections: list[Section] = field(default_factory=list)
    table_version: int = 0

    def section(self, slots: frozenset[int]) -> Section:
        """The section of exactly these slots, made if it is missing."""
        for each in self.sections:
            if each.slots == slots:
                return each
        self.sections.append(Section(slots))
        del self.sections[:-SECTIONS_MAX]
        return self.sections[-1]

    def note(self, slots: Iterable[int], position: ProducerPosition, digest: bytes) -> None:
        """The former holder has applied a late message for some of its slots."""
        for each in self.sections:
            if not each.slots.isdisjoint(slots):
                each.note(position.producer, position.batch, [(position.sequence, digest)])


def sections_of_cut(
    leaving: frozenset[int], own: tuple[MovedProducer, ...], inherited: Sequence[Section]
) -> tuple[tuple[Slots, tuple[MovedProducer, ...]], ...]:
    """What is known of the producers of slots that leave: that of this group, and what earlier holders knew beyond it.

    Of each slot the newest batch of a producer counts. Producers of which the same is known for the same slots are one
    section. If all were passed on as it came, slots that leave and come back with each change would have three times as
    many sections each time.
    """
    newest = {each.producer: each for each in own}
    known = [tuple(each for each in section.moved() if _is_beyond(each, newest)) for section in inherited]
    by_sections: dict[tuple[int, ...], list[int]] = {}
    for slot in sorted(leaving):
        places = tuple(place for place, each in enumerate(inherited) if known[place] and slot in each.slots)
        by_sections.setdefault(places, []).append(slot)
    slots_of: dict[MovedProducer, list[int]] = {}
    for places, slots in by_sections.items():
        merged = Section(frozenset(slots))
        for place in places:
            merged.add(known[place])
        for each in merged.moved():
            slots_of.setdefault(each, []).extend(slots)
    by_slots: dict[Slots, list[MovedProducer]] = {}
    for each, slots in slots_of.items():
        by_slots.setdefault(tuple(sorted(slots)), []).append(each)
    found = [(tuple(sorted(leaving)), own), *((slots, tuple(producers)) for slots, producers in by_slots.items())]
    return tuple((slots, producers) for slots, producers in found if producers)


def sync_fences(slots: Slots, sections: Iterable[tuple[Slots, tuple[MovedProducer, ...]]]) -> tuple[MovedProducer, ...]:
    """The newest batch of the deletes of each sync sender that all of some slots have behind them.

    They go with the first part of a takeover: what comes between its parts must not count for what it lacks. The
    messages of these batches are not named, so one of them may count again: no file is loaded before its list ends.
    """
    wanted = frozenset(slots)
    known: dict[str, list[tuple[int, frozenset[int]]]] = {}
    for section_slots, producers in sections:
        concerned = wanted.intersection(section_slots)
        for each in producers:
            if is_deletes_producer(each.producer):
                known.setdefault(each.producer, []).append((each.batch, concerned))
    found = []
    for producer, batches in sorted(known.items()):
        covered = frozenset[int]()
        for batch, concerned in sorted(batches, key=lambda each: each[0], reverse=True):
            covered = covered | concerned if covered else concerned
            if covered == wanted:
                found.append(MovedProducer(producer, batch, ()))
                break
    return tuple(found)


def _is_beyond(known: MovedProducer, newest: Mapping[str, MovedProducer]) -> bool:
    """Whether what an earlier holder knew of a producer says more than this group knows."""
    own = newest.get(known.producer)
    return own is None or known.batch > own.batch or (known.batch == own.batch and not set(known.seen) <= set(own.seen))
