"""When a group held slots that have left, and those that have come back: replicated state. Pure.

A writer with a table of an earlier holding may come after the slot is back. Its rows belong to that holding: with
the present era a batch that was given up would outrank what the group in between took since.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.schemas.group_changes import GroupKey, Slots

EARLIER_HOLDINGS_MAX = 16
"""Earlier holdings of one slot that are kept. A writer of a table before them has the era of the oldest one kept."""


@dataclass(frozen=True, slots=True)
class Given:
    """Who holds a slot that this group gave up, the era of its late rows here, and the version of the cut."""

    target: GroupKey
    era: int
    version: int


@dataclass(frozen=True, slots=True)
class Holding:
    """A time for which the group held a slot: the table with which the slot came back after it, and its last era."""

    until: int
    era: int


@dataclass(slots=True)
class Holdings:
    """The earlier holdings of each slot that has come back, the oldest first. `newest` is the last table of a return.

    The tuples are replaced and never changed.
    """

    earlier: dict[int, tuple[Holding, ...]] = field(default_factory=dict)
    newest: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        """See the class."""
        self.newest = max((each[-1].until for each in self.earlier.values()), default=0)

    def end(self, slot: int, until: int, era: int) -> None:
        """A slot comes back with a table; its late rows had an era so far."""
        self.earlier[slot] = (*self.earlier.get(slot, ()), Holding(until, era))[-EARLIER_HOLDINGS_MAX:]
        self.newest = max(self.newest, until)

    def era(self, slot: int, table_version: int) -> int | None:
        """The era of the earlier holding to which a record routed by a table belongs; None for the newest holding."""
        return next((each.era for each in self.earlier.get(slot, ()) if table_version < each.until), None)

    def by_era(self, slots: Iterable[int], table_version: int, present: int) -> list[tuple[int, Slots]]:
        """The slots by the era of rows that were routed by a table; `present` is that of the newest holding."""
        found: dict[int, list[int]] = {}
        for slot in slots:
            era = self.era(slot, table_version) if table_version < self.newest else None
            found.setdefault(present if era is None else era, []).append(slot)
        return [(era, tuple(numbers)) for era, numbers in sorted(found.items())]
