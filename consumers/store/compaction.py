"""Which segments to merge: a pure choice, made by the leader and carried out alike by every replica.

Only neighbours in rank of one slice and bucket are merged, and only within one era, so that the name of the result says truly which ranks it
holds. The result covers the version range from the first input's first to the last input's last version.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from consumers.store.names import SegmentName
from consumers.store.pruning import pending
from consumers.store.segment import SegmentEntry
from consumers.store.settings import StoreSettings
from consumers.store.tombstones import Tombstone

_TIER_FACTOR = 4


@dataclass(frozen=True, slots=True)
class Compaction:
    """One merge: names of the inputs, lowest rank first, and the name of the file that takes their place (which is absent when every row of
    the inputs turns out deleted)."""

    inputs: tuple[str, ...]
    output: str


def plan_compaction(
    entries: Iterable[SegmentEntry], tombstones: Sequence[Tombstone], settings: StoreSettings
) -> list[Compaction]:
    """The merges worth doing now, in order of name; none shares a file with another.

    Files of one slice and bucket are merged when at least `compaction_files_min` of a stretch of neighbours are of one
    size (within a factor of four) and the others smaller, up to `compaction_rows_max` rows; so a row is rewritten a
    number of times that grows with the logarithm of what lies beside it. A file that an unapplied delete touches is
    rewritten alone unless it is merged anyway.
    """
    places: dict[tuple[str, str, int, int, int], list[SegmentEntry]] = defaultdict(list)
    for entry in entries:
        places[(entry.database, entry.table, entry.slice_number, entry.bucket, entry.era)].append(entry)
    plans: list[Compaction] = []
    for _, held in sorted(places.items()):
        held.sort(key=lambda entry: entry.first_version)
        plans.extend(_plan_place(held, tombstones, settings))
    return plans


def output_name(inputs: Sequence[SegmentEntry]) -> SegmentName:
    """The segment that takes the place of `inputs` (lowest rank first)."""
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
    """True if `inputs` lie in one slice, bucket and era, in order of rank, and no other of `entries` lies between them."""
    place = {(e.database, e.table, e.slice_number, e.bucket, e.era) for e in inputs}
    ordered = all(one.last_version < two.first_version for one, two in pairwise(inputs))
    if len(place) != 1 or not ordered:
        return False
    names = {entry.name for entry in inputs}
    low, high = inputs[0].first_version, inputs[-1].last_version
    return not any(
        (e.database, e.table, e.slice_number, e.bucket, e.era) in place and low <= e.first_version <= high
        for e in entries
        if e.name not in names
    )


def _plan_place(
    held: Sequence[SegmentEntry], tombstones: Sequence[Tombstone], settings: StoreSettings
) -> Iterator[Compaction]:
    merged: set[str] = set()
    for stretch in _stretches(held, settings):
        merged |= {entry.name for entry in stretch}
        yield _compaction(stretch)
    for entry in held:
        if entry.name not in merged and pending(entry, tombstones):
            yield _compaction([entry])


def _stretches(held: Sequence[SegmentEntry], settings: StoreSettings) -> list[list[SegmentEntry]]:
    """Neighbours worth merging, of the smallest size that has any; larger ones come when that is done."""
    tiers = [_tier(entry.rows, settings) for entry in held]
    for tier in sorted(set(tiers)):
        found = [
            [entry for entry, _ in stretch]
            for stretch in _cut(list(zip(held, tiers, strict=True)), tier, settings.compaction_rows_max)
            if sum(own == tier for _, own in stretch) >= settings.compaction_files_min
        ]
        if found:
            return found
    return []


def _cut(
    held: Sequence[tuple[SegmentEntry, int]], tier: int, rows_max: int
) -> Iterator[list[tuple[SegmentEntry, int]]]:
    """Stretches of neighbours of at most this tier, none with more rows than allowed."""
    stretch: list[tuple[SegmentEntry, int]] = []
    rows = 0
    for entry, own in held:
        if stretch and (own > tier or rows + entry.rows > rows_max):
            yield stretch
            stretch, rows = [], 0
        if own <= tier and entry.rows <= rows_max:
            stretch.append((entry, own))
            rows += entry.rows
    if stretch:
        yield stretch


def _tier(rows: int, settings: StoreSettings) -> int:
    tier, size = 0, settings.row_group_rows // _TIER_FACTOR
    while rows > size:
        tier, size = tier + 1, size * _TIER_FACTOR
    return tier


def _compaction(inputs: Sequence[SegmentEntry]) -> Compaction:
    return Compaction(tuple(entry.name for entry in inputs), output_name(inputs).relative)
