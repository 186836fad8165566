"""Which segments to merge: size-tiered compaction as a pure decision.

The leader decides and appends the merge to the log; every replica executes it with the same result. Inputs
are neighbours in rank within one slice, bucket and era, so the name of the output states exactly the ranks
that it holds: from the first version of the first input to the last version of the last one. What files of sync
senders allow is in headrace.consumers.store.synced.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from headrace.consumers.store.segment import SegmentEntry
from headrace.consumers.store.segment_files import SegmentName
from headrace.consumers.store.settings import StoreSettings
from headrace.consumers.store.synced import (
    Settled,
    in_order,
    is_settled,
    leaves_place,
    may_join,
    rank_of,
    settled_of,
    whole_versions,
)
from headrace.consumers.store.tombstone_set import NO_TOMBSTONES, TombstoneSet

Unit = Sequence[SegmentEntry]
"""Segments that a merge has all of or none, see `whole_versions`."""
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
    entries: Iterable[SegmentEntry],
    tombstones: Mapping[tuple[str, str], TombstoneSet],
    settings: StoreSettings,
    progress: int | None = None,
) -> list[Compaction]:
    """The merges to do now, in order of name; no two share a file.

    Neighbours of one slice and bucket are merged, up to `compaction_rows_max` rows, when at least
    `compaction_files_min` of them are of one size and the others smaller. A row is thus rewritten O(log n)
    times for n rows in its slice and bucket. A segment with an unapplied tombstone is rewritten alone unless
    it is merged anyway. Files with rows of a version above `progress`, that of the centre which is furthest behind, stay
    as they are (docs/internals/sync.md).
    """

    def stays(entry: SegmentEntry) -> bool:
        # Rows that a centre has accepted must not come again in a file that it has not.
        return entry.awaited or (progress is not None and entry.rows_version > progress)

    locations: dict[tuple[str, str, int, int, int, int], list[SegmentEntry]] = defaultdict(list)
    of_location: dict[tuple[str, str, int, int], list[SegmentEntry]] = defaultdict(list)
    for entry in entries:
        locations[_rank_space(entry)].append(entry)
        of_location[entry.location].append(entry)
    plans: list[Compaction] = []
    for location, segments in sorted(locations.items()):
        units = whole_versions(sorted(segments, key=rank_of))
        merges = _plan_location(units, settled_of(of_location[location[:4]]), settings, stays)
        merged = {name for each in merges for name in each.inputs}
        deletes = tombstones.get(location[:2], NO_TOMBSTONES)
        plans += merges
        for entry in (entry for unit in units for entry in unit):
            if not stays(entry) and entry.name not in merged and deletes.unapplied(entry):
                plans.append(_compaction([entry]))
    return plans


def output_name(inputs: Sequence[SegmentEntry]) -> SegmentName:
    """The name of the segment that replaces `inputs` (lowest rank first)."""
    first, last = inputs[0], inputs[-1]
    order = first.order if len(inputs) == 1 else ""
    ranks = (first.era, first.first_version, last.last_version, order)
    # Where an input has these ranks, the generation must change: the old file stays until its readers are done, and a
    # replaced file must never change under them.
    same = [each.generation for each in inputs if rank_of(each) == ranks]
    return SegmentName(*first.location, *ranks, generation=max(same, default=-1) + 1)


def are_neighbours(inputs: Sequence[SegmentEntry], entries: Iterable[SegmentEntry]) -> bool:
    """True if `inputs` are of one slice, bucket and era, in order of rank, without another between them.

    Several inputs have all files of their first and last version.
    """
    # A segment between two inputs would have ranks inside the output's range. The order of files by name, by
    # which the highest rank wins, would then be wrong.
    # Versions are compared within one location and era only, and those are of one log: a location is in one
    # slot, an era is one slot table, and a table gives a slot one holder. So two origins never give one name.
    location = {_rank_space(entry) for entry in inputs}
    if len(location) != 1 or not in_order(inputs):
        return False
    if len(inputs) == 1:
        return True
    names = {entry.name for entry in inputs}
    low, high = inputs[0].first_version, inputs[-1].last_version
    return not any(
        _rank_space(entry) in location and low <= entry.last_version and entry.first_version <= high
        for entry in entries
        if entry.name not in names
    )


def _rank_space(entry: SegmentEntry) -> tuple[str, str, int, int, int, int]:
    """Segments that are equal in this have versions of one log, and are subject to the same tombstones."""
    return *entry.location, entry.era, entry.held_since


def _plan_location(
    units: Sequence[Unit], settled: Settled, settings: StoreSettings, stays: Callable[[SegmentEntry], bool]
) -> list[Compaction]:
    """The merges of one slice, bucket and era."""

    # A file that is not here cannot be merged, nor can those on its two sides be merged around it.
    def is_apart(unit: Unit) -> bool:
        joined = len(unit) > 1 and not leaves_place(unit, settled)
        return joined or any(map(stays, unit)) or not is_settled(unit, settled)

    return [
        _compaction(candidate)
        for apart, neighbours in groupby(units, key=is_apart)
        if not apart
        for candidate in _candidates(list(neighbours), settled, settings)
    ]


def _candidates(units: Sequence[Unit], settled: Settled, settings: StoreSettings) -> list[list[SegmentEntry]]:
    """Neighbours to merge, of the smallest size that has any."""
    # Larger sizes wait until the smaller merges are done: their outputs may join a larger merge, which saves
    # rewriting the same rows twice.
    tiers = [_tier(_rows(unit), settings) for unit in units]
    for tier in sorted(set(tiers)):
        found = [
            [entry for unit, _ in neighbours for entry in unit]
            for neighbours in _neighbours(list(zip(units, tiers, strict=True)), tier, settled, settings)
            if sum(len(unit) for unit, own in neighbours if own == tier) >= settings.compaction_files_min
        ]
        # Not those of one version alone, see `synced`.
        found = [each for each in found if each[0].first_version < each[-1].last_version]
        if found:
            return found
    return []


def _neighbours(
    units: Sequence[tuple[Unit, int]], tier: int, settled: Settled, settings: StoreSettings
) -> Iterator[list[tuple[Unit, int]]]:
    """Maximal lists of neighbours of at most this tier, none with more rows than allowed."""
    found: list[tuple[Unit, int]] = []
    rows, rows_max = 0, settings.compaction_rows_max
    for unit, own in units:
        size = _rows(unit)
        before = [entry for each, _ in found for entry in each]
        fits = own <= tier and rows + size <= rows_max
        if found and not (fits and may_join(before, unit, settled) and leaves_place([*before, *unit], settled)):
            yield found
            found, rows = [], 0
        if own <= tier and size <= rows_max:
            found.append((unit, own))
            rows += size
    if found:
        yield found


def _rows(unit: Unit) -> int:
    return sum(entry.rows for entry in unit)


def _tier(rows: int, settings: StoreSettings) -> int:
    # Below a quarter of a row group all files are of one size: there the price is that of a file and not of its
    # rows.
    tier, size = 0, settings.row_group_rows // _TIER_FACTOR
    while rows > size:
        tier, size = tier + 1, size * _TIER_FACTOR
    return tier


def _compaction(inputs: Sequence[SegmentEntry]) -> Compaction:
    return Compaction(tuple(entry.name for entry in inputs), output_name(inputs).relative)
