"""Deletes that late rows of former holders must not outlive: a part of a group's state. Pure.

A group may keep thousands of them, and its state is encoded at each seal. So each of them is encoded once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache

from headrace.schemas.group_changes import RECORD_SLOTS_MAX, HandedDelete, Rank, delete_record
from headrace.schemas.spliced_codec import SplicedCodec

KEPT_DELETES_MAX = 10_000
"""Deletes that a group remembers for late rows of slots that came or left; the oldest is forgotten first."""
_Name = tuple[Rank, str, str, tuple[tuple[str, tuple[str, ...]], ...], int | None, int | None]


@cache
def state_codec() -> SplicedCodec:
    """What encodes the state of a group."""
    return SplicedCodec("state", "changes", "deletes")


@dataclass(slots=True)
class _Kept:
    handed: HandedDelete
    slots: frozenset[int]
    encoded: bytes = b""


class KeptDeletes:
    """The deletes in the order in which they came, the newest `KEPT_DELETES_MAX` of them. Equal by what it keeps."""

    def __init__(self, deletes: Iterable[HandedDelete] = ()) -> None:
        self._by_name: dict[_Name, _Kept] = {}
        for each in deletes:
            self.keep(each)

    def __iter__(self) -> Iterator[HandedDelete]:
        return (each.handed for each in self._by_name.values())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeptDeletes) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"KeptDeletes({list(self)})"

    def keep(self, handed: HandedDelete) -> None:
        """Remember a delete for the slots that it concerns, beside those for which it is known."""
        # No table has more slots. A record made by hand may name any: together they would be too many to read again.
        if handed.slots and handed.slots[-1] >= RECORD_SLOTS_MAX:
            handed = replace(handed, slots=tuple(slot for slot in handed.slots if slot < RECORD_SLOTS_MAX))
        if not handed.slots:
            return
        name = _name(handed)
        known = self._by_name.pop(name, None)
        # Each former holder of some of the slots passes it on: as many deletes as ways would come back with them.
        if known is not None and known.slots.issuperset(handed.slots):
            self._by_name[name] = known
        else:
            slots = known.slots.union(handed.slots) if known is not None else frozenset(handed.slots)
            self._by_name[name] = _Kept(replace(handed, slots=tuple(sorted(slots))), slots)
        if len(self._by_name) > KEPT_DELETES_MAX:
            del self._by_name[next(iter(self._by_name))]

    def of(self, slots: Iterable[int]) -> tuple[HandedDelete, ...]:
        """Those that concern some of the slots, the oldest first."""
        concerned = frozenset(slots)
        return tuple(each.handed for each in self._by_name.values() if not concerned.isdisjoint(each.slots))

    def encoded(self) -> list[bytes]:
        """Each of them as the state has it."""
        found = []
        for each in self._by_name.values():
            if not each.encoded:
                each.encoded = state_codec().item(delete_record(each.handed))
            found.append(each.encoded)
        return found


def _name(handed: HandedDelete) -> _Name:
    # By its content too: records of two logs may have one rank, and then they concern other slots.
    delete = handed.delete
    tags = tuple((tag, tuple(values)) for tag, values in sorted(delete.tags.items()))
    return handed.rank, delete.database, delete.table, tags, delete.start_ns, delete.end_ns
