"""Tombstones: which rows a delete removes, and which segments it is not yet applied to.

A tombstone deletes exactly the rows of lower rank that it matches, whenever they arrive. It is applied to
unsealed rows when they are read or sealed. It is applied to a segment at each read, until the segment is
rewritten without the rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import pyarrow as pa

from headrace.consumers.store.batch_columns import Mask, series_mask
from headrace.consumers.store.segment import SegmentEntry


@dataclass(frozen=True, slots=True)
class Tombstone:
    """One delete of rows of a table with rank below (era, version).

    It matches rows with time in [start_ns, end_ns) whose tags all have an allowed value ("" = absent).
    """

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

    def overlaps_time(self, min_time_ns: int, max_time_ns: int) -> bool:
        """True if the time range of the delete overlaps [min_time_ns, max_time_ns], both ends included."""
        after_start = self.start_ns is None or max_time_ns >= self.start_ns
        return after_start and (self.end_ns is None or min_time_ns < self.end_ns)

    def matches(self, keys: pa.StringArray) -> Mask:
        """Which series the delete matches."""
        return series_mask(keys, dict(self.tags))

    def to_json(self) -> str:
        """Stable text; equal tombstones give equal text."""
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
    """A tombstone in canonical form: tags and their values sorted."""
    # The index key has a hash of the text, so one delete must not have two texts.
    canonical = tuple((name, tuple(sorted(set(allowed)))) for name, allowed in sorted(tags.items()))
    return Tombstone(table[0], table[1], era, version, canonical, start_ns, end_ns)


def without_deleted(rows: pa.RecordBatch, tombstones: Iterable[Tombstone]) -> pa.RecordBatch:
    """The rows of a row batch that none of `tombstones` (all of higher rank than the batch) deletes."""
    deleted: Mask | None = None
    times = rows.column(1).to_numpy(zero_copy_only=True)
    series = rows.column(0)
    for each in tombstones:
        # The tag predicate runs once a series; rows only look up its result by their dictionary index.
        mask = each.matches(series.dictionary)
        if not mask.any():
            continue
        hit = mask[series.indices.to_numpy(zero_copy_only=True)]
        if each.start_ns is not None:
            hit &= times >= each.start_ns
        if each.end_ns is not None:
            hit &= times < each.end_ns
        deleted = hit if deleted is None else deleted | hit
    if deleted is None or not deleted.any():
        return rows
    return rows.filter(pa.array(~deleted))


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


def unapplied(entry: SegmentEntry, tombstones: Iterable[Tombstone]) -> list[Tombstone]:
    """The tombstones that may delete rows of a segment and are not yet applied to it."""
    # By ranks and time range of the catalogue alone: a tombstone that matches no row of the file costs one
    # rewrite or one look at its runs, and never a wrong answer.
    return [
        each
        for each in tombstones
        if (each.database, each.table) == (entry.database, entry.table)
        and each.version > entry.cleaned_version
        and each.outranks(entry.era, entry.last_version)
        and each.overlaps_time(entry.min_time_ns, entry.max_time_ns)
    ]
