"""Deletes that late rows of former holders must not outlive: a part of a group's state. Pure.

A group may keep thousands of them, and its state is encoded at each seal. So each of them is encoded once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from headrace.schemas.group_changes import HandedDelete, Rank, Slots, delete_record
from headrace.schemas.spliced_codec import SplicedCodec

KEPT_DELETES_MAX = 10_000
"""Deletes that a group remembers for late rows of slots that came or left; the oldest is forgotten first."""


@cache
def state_codec() -> SplicedCodec:
    """What encodes the state of a group."""
    return SplicedCodec("state", "changes", "deletes")


@dataclass(slots=True)
class _Kept:
    handed: HandedDelete
    encoded: bytes = b""


class KeptDeletes:
    """The deletes in the order in which they came, the newest `KEPT_DELETES_MAX` of them. Equal by what it keeps."""

    def __init__(self, deletes: Iterable[HandedDelete] = ()) -> None:
        self._by_name: dict[tuple[Rank, Slots], _Kept] = {}
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
        """Remember a delete for the slots that it concerns, also one that was known."""
        name = handed.rank, handed.slots
        self._by_name.pop(name, None)
        self._by_name[name] = _Kept(handed)
        if len(self._by_name) > KEPT_DELETES_MAX:
            del self._by_name[next(iter(self._by_name))]

    def of(self, slots: Iterable[int]) -> tuple[HandedDelete, ...]:
        """Those that concern some of the slots, the oldest first."""
        concerned = frozenset(slots)
        return tuple(each for each in self if not concerned.isdisjoint(each.slots))

    def encoded(self) -> list[bytes]:
        """Each of them as the state has it."""
        found = []
        for each in self._by_name.values():
            if not each.encoded:
                each.encoded = state_codec().item(delete_record(each.handed))
            found.append(each.encoded)
        return found
