"""Deletes: which rows one hides, and when it can be forgotten.

A delete hides exactly the rows of lower rank that it matches, whenever they arrive. It is applied to unsealed rows when they are read or sealed,
to a sealed file at reading until that file is rewritten, and by then for good.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import pyarrow as pa

from consumers.store.series import Mask, series_mask


@dataclass(frozen=True, slots=True)
class Tombstone:
    """One delete: rows of a table with time in [start_ns, end_ns) whose tags all have an allowed value ("" = absent), of rank below
    (era, version)."""

    database: str
    table: str
    era: int
    version: int
    tags: tuple[tuple[str, tuple[str, ...]], ...] = ()
    start_ns: int | None = None
    end_ns: int | None = None

    def outranks(self, era: int, version: int) -> bool:
        """True if rows of this rank are lower."""
        return (era, version) < (self.era, self.version)

    def touches(self, min_time_ns: int, max_time_ns: int) -> bool:
        """True if the time range of the delete meets [min_time_ns, max_time_ns], both ends included."""
        after_start = self.start_ns is None or max_time_ns >= self.start_ns
        return after_start and (self.end_ns is None or min_time_ns < self.end_ns)

    def covers(self, keys: pa.StringArray) -> Mask:
        """Which series the delete is about."""
        return series_mask(keys, dict(self.tags))

    def to_json(self) -> str:
        """Stable text; equal deletes give equal text."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> Tombstone:
        """The inverse of `to_json`."""
        values = json.loads(text)
        values["tags"] = tuple((name, tuple(allowed)) for name, allowed in values["tags"])
        return cls(**values)


def tombstone(
    version: int,
    era: int,
    table: tuple[str, str],
    tags: Mapping[str, Sequence[str]],
    start_ns: int | None,
    end_ns: int | None,
) -> Tombstone:
    """A delete in its one canonical form: tags and their values sorted."""
    canonical = tuple((name, tuple(sorted(set(allowed)))) for name, allowed in sorted(tags.items()))
    return Tombstone(table[0], table[1], era, version, canonical, start_ns, end_ns)


def survivors(rows: pa.RecordBatch, tombstones: Iterable[Tombstone]) -> pa.RecordBatch:
    """The rows of a row batch that none of `tombstones` (all of higher rank than the batch) hides."""
    hidden: Mask | None = None
    times = rows.column(1).to_numpy(zero_copy_only=True)
    series = rows.column(0)
    for each in tombstones:
        mask = each.covers(series.dictionary)
        if not mask.any():
            continue
        hit = mask[series.indices.to_numpy(zero_copy_only=True)]
        if each.start_ns is not None:
            hit &= times >= each.start_ns
        if each.end_ns is not None:
            hit &= times < each.end_ns
        hidden = hit if hidden is None else hidden | hit
    if hidden is None or not hidden.any():
        return rows
    return rows.filter(pa.array(~hidden))


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
