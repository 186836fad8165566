"""What the takeovers of a cut bring to the groups that took slots. Immutable, and pure.

Every leader of the donor divides it into the same parts, whenever it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from headrace.consumers.replication.producer_section import sync_fences
from headrace.schemas.group_changes import GroupKey, HandedDelete, MovedProducer, Slots, Takeover

TAKEOVER_BYTES_MAX = 4 * 1024 * 1024
"""Estimated size of one part of a takeover, so that a message has room for it."""
_IDENTITY_BYTES = 32
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class CutMemory:
    """What the takeovers of one cut bring: the slots of each target, producers by slots as of the cut, loaded files."""

    table_version: int
    targets: tuple[tuple[GroupKey, Slots], ...]
    loads: bytes
    sections: tuple[tuple[Slots, tuple[MovedProducer, ...]], ...]
    deletes: tuple[HandedDelete, ...] = ()
    _divided: dict[tuple[GroupKey, int], tuple[Takeover, ...]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def takeovers(self, key: GroupKey, slots_total: int) -> tuple[Takeover, ...]:
        """The parts of the takeover of one target, in order: a function of the state at the cut."""
        # Each part is sent by itself, and to divide thousands of deletes takes a part of a second.
        if (key, slots_total) not in self._divided:
            self._divided[key, slots_total] = tuple(self._takeovers(key, slots_total))
        return self._divided[key, slots_total]

    def _takeovers(self, key: GroupKey, slots_total: int) -> list[Takeover]:
        slots = dict(self.targets)[key]
        head = (self.table_version, slots_total)
        found = [Takeover(*head, slots, sync_fences(slots, self.sections), self.loads)]
        for section_slots, producers in self.sections:
            if common := tuple(sorted(set(section_slots).intersection(slots))):
                found += (Takeover(*head, common, part) for part in _in_parts(producers))
        concerned = ((each, tuple(sorted(set(slots).intersection(each.slots)))) for each in self.deletes)
        deletes = [replace(each, slots=common) for each, common in concerned if common]
        found += (Takeover(*head, slots, deletes=part) for part in _batches(deletes, lambda each: len(repr(each))))
        return found


def _in_parts(producers: tuple[MovedProducer, ...]) -> Iterable[tuple[MovedProducer, ...]]:
    """Producers in parts that fit a message; one with too many messages is in several."""
    most = TAKEOVER_BYTES_MAX // _IDENTITY_BYTES
    pieces = (
        MovedProducer(each.producer, each.batch, each.seen[start : start + most])
        for each in producers
        for start in range(0, max(1, len(each.seen)), most)
    )
    return _batches(pieces, lambda each: len(each.producer.encode()) + _IDENTITY_BYTES * (1 + len(each.seen)))


def _batches(items: Iterable[_Item], size_of: Callable[[_Item], int]) -> Iterable[tuple[_Item, ...]]:
    # By estimated sizes, and never by encoded ones: whoever appends the next part divides them in the same way.
    part, size_bytes = list[_Item](), 0
    for each in items:
        if part and size_bytes + size_of(each) > TAKEOVER_BYTES_MAX:
            yield tuple(part)
            part, size_bytes = [], 0
        part.append(each)
        size_bytes += size_of(each)
    if part:
        yield tuple(part)
