"""Tombstones: which rows a delete removes.

A tombstone deletes exactly the rows of lower rank that it matches, whenever they arrive. It is applied to
unsealed rows when they are read or sealed. It is applied to a segment at each read, until the segment is
rewritten without the rows. headrace.consumers.store.tombstone_set applies many of them at once.

Versions of different logs count different records, so a tombstone and a row are compared only if one log gave
both, or if the log of the tombstone held the row's slot in a later era. A store keeps the tombstones of its
own log. Those of earlier holders of a slot come with the files that they concern, and apply to these alone
(`SegmentEntry.carried`). The version of a tombstone of the own log is also the place where it came: whether a
file or a last row has it applied is decided by that place, and which rows it deletes by its rank.

A delete that an earlier holder hands over has the rank of that log, the place where it came here, and the slots
that it concerns. Unsealed rows have it applied when it comes, and when they come (`StoreView`): later it
concerns files and last rows alone. It comes once more with each slot that moves, by every way. So a store keeps one
tombstone for all of that, with the place of each slot (`joined`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

JOINED_KNOWN_MAX = 64
"""Slots of deletes that are joined once for all that came together: a change brings thousands, of thousands of slots."""


@dataclass(frozen=True, slots=True)
class Tombstone:
    """One delete of rows of a table with rank below (era, version).

    It matches rows with time in [start_ns, end_ns) whose tags all have an allowed value ("" = absent). One that was
    handed over has the `place` where it came and matches rows of `slots` only, of `slots_total`. `places` are those of
    the slots, if it came at several; `place` is the newest then. `is_drop`: it is of retention and no user's, so it
    concerns this store alone.
    """

    database: str
    table: str
    era: int
    version: int
    tags: tuple[tuple[str, tuple[str, ...]], ...] = ()
    start_ns: int | None = None
    end_ns: int | None = None
    place: int = 0
    slots: tuple[int, ...] = ()
    slots_total: int = 0
    is_drop: bool = False
    places: tuple[int, ...] = ()

    @property
    def came_at(self) -> int:
        """The version of this group's log at which it came."""
        return self.place or self.version

    @property
    def is_whole_table(self) -> bool:
        """True if rows of all series and times match."""
        return not (self.tags or self.slots) and self.start_ns is None and self.end_ns is None

    @property
    def is_fence(self) -> bool:
        """True if it matches no row: it is in the log for its position alone."""
        return self.start_ns is not None and self.end_ns is not None and self.start_ns >= self.end_ns

    def outranks(self, era: int, version: int) -> bool:
        """True if rows of this rank are lower."""
        return (era, version) < (self.era, self.version)

    @property
    def delete(self) -> Tombstone:
        """What it deletes, wherever it came and for whichever slots."""
        return replace(self, place=0, slots=(), places=())

    def up_to(self, version: int) -> Tombstone | None:
        """What of it came up to a version of this group's log; None for nothing."""
        if self.came_at <= version:
            return self
        return self._for({slot: at for slot, at in self._placed.items() if at <= version})

    def since(self, version: int) -> Tombstone | None:
        """What of it came later than a version of this group's log; None for nothing."""
        return self._for({slot: at for slot, at in self._placed.items() if at > version})

    @property
    def _placed(self) -> dict[int, int]:
        return _placed((self.slots, self.places or self.place))

    def _for(self, placed: Mapping[int, int]) -> Tombstone | None:
        if not placed:
            return None
        slots, places, place = _in_order(placed)
        return replace(self, slots=slots, places=places, place=place)

    def to_json(self) -> str:
        """Stable text; equal tombstones give equal text."""
        values = self.values()
        # Left out of those that earlier builds read: the key in the index has a hash of it.
        if not self.slots:
            for name in ("place", "slots", "slots_total"):
                del values[name]
        return json.dumps(values, sort_keys=True, separators=(",", ":"))

    def values(self) -> dict[str, Any]:
        """The fields for JSON; earlier builds know no `is_drop` and no `places`, so the others are without them."""
        # Not `asdict`, which copies each of a thousand slots.
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        for name in ("is_drop", "places"):
            if not values[name]:
                del values[name]
        return values

    @classmethod
    def from_json(cls, text: str | bytes) -> Tombstone:
        """The inverse of `to_json`."""
        return cls.from_values(json.loads(text))

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Tombstone:
        """The inverse of `values`, also of one that went through JSON."""
        tags = tuple((name, tuple(allowed)) for name, allowed in values["tags"])
        numbers = {name: tuple(values.get(name, ())) for name in ("slots", "places")}
        return cls(**{**values, "tags": tags, **numbers})


def tombstone(
    version: int,
    era: int,
    table: tuple[str, str],
    tags: Mapping[str, Sequence[str]],
    start_ns: int | None,
    end_ns: int | None,
) -> Tombstone:
    """A tombstone in canonical form: tags and their values sorted."""
    # The index key has a hash of the text, so one delete must not have two texts.
    canonical = tuple((name, tuple(sorted(set(allowed)))) for name, allowed in sorted(tags.items()))
    return Tombstone(table[0], table[1], era, version, canonical, start_ns, end_ns)


def joined(earlier: Tombstone, later: Tombstone) -> Tombstone:
    """One delete that was handed over twice: each slot has the place where it came last."""
    sides = ((each.slots, each.places or each.place) for each in (earlier, later))
    slots, places, place = _joined(*sides)
    return replace(later, slots=slots, places=places, place=place)


_Slots = tuple[tuple[int, ...], tuple[int, ...] | int]
"""Slots, and their places or the one of all."""


@lru_cache(JOINED_KNOWN_MAX)
def _joined(earlier: _Slots, later: _Slots) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    return _in_order({**_placed(earlier), **_placed(later)})


def _placed(given: _Slots) -> dict[int, int]:
    slots, places = given
    return dict(zip(slots, (places,) * len(slots) if isinstance(places, int) else places, strict=True))


def _in_order(places: Mapping[int, int]) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    slots = tuple(sorted(places))
    found = tuple(places[slot] for slot in slots)
    return slots, () if min(found) == max(found) else found, max(found)


def rows_between(rows: pa.RecordBatch, start_ns: int | None, end_ns: int | None) -> pa.RecordBatch:
    """The rows of a row batch with time in [start_ns, end_ns)."""
    if start_ns is None and end_ns is None:
        return rows
    times = rows.column(1).to_numpy(zero_copy_only=True)
    keep = np.ones(len(times), np.bool_)
    if start_ns is not None:
        keep &= times >= start_ns
    if end_ns is not None:
        keep &= times < end_ns
    return rows if keep.all() else rows.filter(pa.array(keep))
