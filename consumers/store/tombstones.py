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
concerns files and last rows alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Tombstone:
    """One delete of rows of a table with rank below (era, version).

    It matches rows with time in [start_ns, end_ns) whose tags all have an allowed value ("" = absent). One that was
    handed over has the `place` where it came and matches rows of `slots` only, of `slots_total`. `is_drop`: it is of
    retention and no user's, so it concerns this store alone.
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

    @property
    def came_at(self) -> int:
        """The version of this group's log at which it came."""
        return self.place or self.version

    @property
    def is_whole_table(self) -> bool:
        """True if rows of all series and times match."""
        return not (self.tags or self.slots) and self.start_ns is None and self.end_ns is None

    def outranks(self, era: int, version: int) -> bool:
        """True if rows of this rank are lower."""
        return (era, version) < (self.era, self.version)

    def to_json(self) -> str:
        """Stable text; equal tombstones give equal text."""
        values = self.values()
        if not self.slots:
            # Left out of those of the own log: earlier builds read them, and the key in the index has a hash of it.
            for name in ("place", "slots", "slots_total"):
                del values[name]
        return json.dumps(values, sort_keys=True, separators=(",", ":"))

    def values(self) -> dict[str, Any]:
        """The fields for JSON; earlier builds know no `is_drop`, so the others are without it."""
        # Not `asdict`, which copies each of a thousand slots.
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        if not self.is_drop:
            del values["is_drop"]
        return values

    @classmethod
    def from_json(cls, text: str | bytes) -> Tombstone:
        """The inverse of `to_json`."""
        return cls.from_values(json.loads(text))

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Tombstone:
        """The inverse of `values`, also of one that went through JSON."""
        tags = tuple((name, tuple(allowed)) for name, allowed in values["tags"])
        return cls(**{**values, "tags": tags, "slots": tuple(values.get("slots", ()))})


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
