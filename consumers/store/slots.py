"""Slots as the store needs them: which of its rows are in them. It does not know who holds a slot."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.consumers.store.segment import SegmentEntry
from headrace.schemas.series import slot_of


@dataclass(frozen=True, slots=True)
class Slots:
    """Some of the `total` slots of a cluster."""

    numbers: frozenset[int]
    total: int

    def hold(self, database: str, bucket: int, slice_number: int) -> bool:
        """Whether the rows of one slice and bucket of a database are in one of them."""
        return slot_of(database, bucket, slice_number, self.total) in self.numbers

    def hold_segment(self, entry: SegmentEntry) -> bool:
        """Whether a segment is in one of them."""
        return self.hold(entry.database, entry.bucket, entry.slice_number)


def without_held(entries: Iterable[SegmentEntry], held: Iterable[Slots]) -> list[SegmentEntry]:
    """The segments that merges and drops may change."""
    slots = tuple(held)
    return [entry for entry in entries if not any(each.hold_segment(entry) for each in slots)]


def held_without(held: Iterable[Slots], ended: Slots) -> tuple[Slots, ...]:
    """What stays held when some slots are not any more."""
    left = (Slots(each.numbers - ended.numbers, each.total) for each in held)
    return tuple(each for each in left if each.numbers)
