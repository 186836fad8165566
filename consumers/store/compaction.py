"""Which segments to merge: size-tiered compaction as a pure decision.

The leader decides and appends the merge to the log; every replica executes it with the same result. Inputs
are neighbours in rank within one slice, bucket and era, so the name of the output states exactly the ranks
that it holds: from the first version of the first input to the last version of the last one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from headrace.consumers.store.segment import SegmentEntry
from headrace.consumers.store.segment_files import SegmentName
from headrace.consumers.store.settings import StoreSettings
from headrace.consumers.store.tombstone_set import TombstoneSet, by_table
from headrace.consumers.store.tombstones import Tombstone

_TIER_FACTOR = 4
"""Segments whose rows differ by less than this factor are of one size."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """One merge: names of the inputs, lowest rank first, and of the output that replaces them.

    There is no output file when all rows of the inputs are deleted.
    """

    inputs: tuple[str, ...]
    output: str


def plan_compaction(
    entries: Iterable[SegmentEntry], tombstones: Sequence[Tombstone], settings: StoreSettings
) -> list[Compaction]:
    """The merges to do now, in order of name; no two share a file.

    Neighbours of one slice and bucket are merged, up to `compaction_rows_max` rows, when at least
    `compaction_files_min` of them are of one size and the others smaller. A row is thus rewritten O(log n)
    times for n rows in its slice and bucket. A segment with an unapplied tombstone is rewritten alone unless
    it is merged anyway.
    """
    locations: dict[tuple[str, str, int, int, int, int], list[SegmentEntry]] = defaultdict(list)
    for entry in entries:
        locations[_rank_space(entry)].append(entry)
    plans: list[Compaction] = []
    of_table, none = by_table(tombstones), TombstoneSet()
    for location, segments in sorted(locations.items()):
        segments.sort(key=lambda entry: entry.first_version)
        # A file that is not here cannot be merged, nor can those on its two sides be merged around it.
        for awaited, here in groupby(segments, key=lambda entry: entry.awaited):
            if not awaited:
                plans.extend(_plan_location(list(here), of_table.get(location[:2], none), settings))
    return plans


def output_name(inputs: Sequence[SegmentEntry]) -> SegmentName:
    """The name of the segment that replaces `inputs` (lowest rank first)."""
    # A single input keeps its version range, so the generation must change: the old file stays until its
    # readers are done, and a replaced file must never change under them.
    first, last = inputs[0], inputs[-1]
    generation = first.generation + 1 if len(inputs) == 1 else 0
    return SegmentName(
        first.database,
        first.table,
        first.slice_number,
        first.bucket,
        first.era,
        first.first_version,
        last.last_version,
        generation,
    )


def are_neighbours(inputs: Sequence[SegmentEntry], entries: Iterable[SegmentEntry]) -> bool:
    """True if `inputs` are of one slice, bucket and era, in order of rank, without another between them."""
    # A segment between two inputs would have ranks inside the output's range. The order of files by name, by
    # which the highest rank wins, would then be wrong.
    # Versions are compared within one location and era only, and those are of one log: a location is in one
    # slot, an era is one slot table, and a table gives a slot one holder. So two origins never give one name.
    location = {_rank_space(entry) for entry in inputs}
    ordered = all(one.last_version < two.first_version for one, two in pairwise(inputs))
    if len(location) != 1 or not ordered:
        return False
    names = {entry.name for entry in inputs}
    low, high = inputs[0].first_version, inputs[-1].last_version
    return not any(
        _rank_space(entry) in location and low <= entry.first_version <= high
        for entry in entries
        if entry.name not in names
    )


def _rank_space(entry: SegmentEntry) -> tuple[str, str, int, int, int, int]:
    """Segments that are equal in this have versions of one log, and are subject to the same tombstones."""
    return *entry.location, entry.era, entry.held_since


def _plan_location(
    segments: Sequence[SegmentEntry], tombstones: TombstoneSet, settings: StoreSettings
) -> Iterator[Compaction]:
    merged: set[str] = set()
    for candidate in _candidates(segments, settings):
        merged |= {entry.name for entry in candidate}
        yield _compaction(candidate)
    for entry in segments:
        if entry.name not in merged and tombstones.unapplied(entry):
            yield _compaction([entry])


def _candidates(segments: Sequence[SegmentEntry], settings: StoreSettings) -> list[list[SegmentEntry]]:
    """Neighbours to merge, of the smallest size that has any."""
    # Larger sizes wait until the smaller merges are done: their outputs may join a larger merge, which saves
    # rewriting the same rows twice.
    tiers = [_tier(entry.rows, settings) for entry in segments]
    for tier in sorted(set(tiers)):
        found = [
            [entry for entry, _ in neighbours]
            for neighbours in _neighbours(list(zip(segments, tiers, strict=True)), tier, settings.compaction_rows_max)
            if sum(own == tier for _, own in neighbours) >= settings.compaction_files_min
        ]
        if found:
            return found
    return []


def _neighbours(
    segments: Sequence[tuple[SegmentEntry, int]], tier: int, rows_max: int
) -> Iterator[list[tuple[SegmentEntry, int]]]:
    """Maximal lists of neighbours of at most this tier, none with more rows than allowed."""
    found: list[tuple[SegmentEntry, int]] = []
    rows = 0
    for entry, own in segments:
        if found and (own > tier or rows + entry.rows > rows_max):
            yield found
            found, rows = [], 0
        if own <= tier and entry.rows <= rows_max:
            found.append((entry, own))
            rows += entry.rows
    if found:
        yield found


def _tier(rows: int, settings: StoreSettings) -> int:
    tier, size = 0, settings.row_group_rows // _TIER_FACTOR
    while rows > size:
        tier, size = tier + 1, size * _TIER_FACTOR
    return tier


def _compaction(inputs: Sequence[SegmentEntry]) -> Compaction:
    return Compaction(tuple(entry.name for entry in inputs), output_name(inputs).relative)
