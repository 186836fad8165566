"""Files of sync senders: which rank they get here, and which of them may be merged. Pure.

A file gets its rank from the log of this group alone, when its load is carried out: jobs run in the order of the log,
so the catalogue is the same then on every replica.

- In order: (era of the group, version of the load). The group has sealed before, so no own segment has ranks on both
  sides of it.
- Late: a segment of the location has rows of a file that the sender ordered higher. The file ranks below the lowest
  such segment and above all that is below it: at the version of that segment if it is one file of a sender, else at
  the version before its first one.

Several files may be at one version. Their `order` then decides, which is the sender's and a digest that makes it
unique. Only whole versions are merged, so the output has no order: it is the lowest of its last version, and files that
come to that version later rank above it.

A merge also takes away the place between its inputs. So two files of one sender are merged only once the sender has
settled all files between them (`SyncedRows.settled`): accepted them, or given them up for good.

And it decides which names can come. A late file ranks at the version before a merged segment. If merges took the files
of one version alone, and all their rows were deleted, the next late files would come to that version again, and their
merge to that name: readers may have the first one still. If a merge began with version 1, a late file would have
version 0, which no other group takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import xxhash

from headrace.consumers.store.segment import SegmentEntry
from headrace.consumers.store.segment_files import SegmentName
from headrace.schemas.message_rules import ORDER_END
from headrace.schemas.messages import Load, SyncedRows

FIRST_VERSION = 1
"""That of the first record of a log that counts."""
Settled = Mapping[str, str]
"""The newest settled order of each sender in one location."""


def place_of(load: Load) -> str:
    """`SegmentEntry.order` of the file of a load."""
    if not load.sender:
        return load.order
    # Two senders may give one order, and both may come to one version.
    digest = xxhash.xxh3_64_hexdigest(load.sender.encode() + b"\0" + load.content_digest)
    return f"{load.order}{ORDER_END}{digest}"


def ranked(entry: SegmentEntry, era: int, version: int, present: Iterable[SegmentEntry]) -> SegmentEntry:
    """A file of a sync sender with its rank here; `present` are the segments of its location.

    `era` and `version` are those of the load.
    """
    (own,) = entry.synced
    entry = replace(entry, loaded_rank=(era, version))
    later = [
        each for each in present if any(rows.sender == own.sender and rows.order > own.order for rows in each.synced)
    ]
    if not later:
        return _at(entry, era, version, 0)
    lowest = min(later, key=rank_of)
    # Of its era, also that of an earlier holder of the slot: the file is below rows that came with it.
    at = lowest.first_version if lowest.order else lowest.first_version - 1
    return _at(entry, lowest.era, at, lowest.held_since)


def rank_of(entry: SegmentEntry) -> tuple[int, int, int, str]:
    """Sorts the segments of one location, lowest rank first; names sort alike."""
    return entry.era, entry.first_version, entry.last_version, entry.order


def share_ranks(one: SegmentEntry, other: SegmentEntry) -> bool:
    """Whether two segments of one location and era have ranks in common."""
    lower, upper = sorted((one, other), key=rank_of)
    if lower.last_version < upper.first_version:
        return False
    # One file of a sender ranks above what ends at its version.
    return not (upper.order and lower.last_version == upper.first_version and lower.order != upper.order)


def settled_of(entries: Iterable[SegmentEntry]) -> dict[str, str]:
    """What each sender has settled, as far as the segments of one location show it."""
    found: dict[str, str] = {}
    for entry in entries:
        for rows in entry.synced:
            found[rows.sender] = max(found.get(rows.sender, ""), rows.settled)
    return found


def may_join(lower: Sequence[SegmentEntry], upper: Sequence[SegmentEntry], settled: Settled) -> bool:
    """Whether a merge may have segments of both, as far as files of senders may still come between them."""
    senders = {rows.sender for entry in lower for rows in entry.synced}
    return all(
        rows.order <= settled.get(rows.sender, "") for entry in upper for rows in entry.synced if rows.sender in senders
    )


def whole_versions(segments: Sequence[SegmentEntry]) -> list[list[SegmentEntry]]:
    """Segments of one era, lowest rank first, in lists that a merge has all of or none."""
    units: list[list[SegmentEntry]] = []
    for entry in segments:
        if units and units[-1][-1].last_version >= entry.first_version:
            units[-1].append(entry)
        else:
            units.append([entry])
    return units


def leaves_place(segments: Sequence[SegmentEntry], settled: Settled) -> bool:
    """Whether a merge of segments, lowest rank first, has a version below it, or no file of a sender comes there."""
    return segments[0].first_version > FIRST_VERSION or all(
        rows.order <= settled.get(rows.sender, "") for entry in segments for rows in entry.synced
    )


def is_settled(unit: Sequence[SegmentEntry], settled: Settled) -> bool:
    """Whether the segments of one list of `whole_versions` may be merged with each other, see `may_join`."""
    # One pass: a burst of late files leaves thousands of them at one version, and every plan asks.
    senders = set[str]()
    for entry in unit:
        if any(rows.sender in senders and rows.order > settled.get(rows.sender, "") for rows in entry.synced):
            return False
        senders.update(rows.sender for rows in entry.synced)
    return True


def in_order(inputs: Sequence[SegmentEntry]) -> bool:
    """Whether segments of one location and era are named lowest rank first, without a rank in common."""
    return all(rank_of(one) < rank_of(two) and not share_ranks(one, two) for one, two in pairwise(inputs))


def of_all(inputs: Sequence[SegmentEntry]) -> tuple[tuple[SyncedRows, ...], tuple[str, ...]]:
    """`synced` and `stores` of the output of a merge."""
    found: dict[str, SyncedRows] = {}
    for rows in (rows for entry in inputs for rows in entry.synced):
        known = found.get(rows.sender, rows)
        found[rows.sender] = SyncedRows(rows.sender, max(known.order, rows.order), max(known.settled, rows.settled))
    stores = dict.fromkeys(store for entry in inputs for store in entry.stores)
    return tuple(found[sender] for sender in sorted(found)), tuple(stores)


def name_of(entry: SegmentEntry) -> SegmentName:
    """The name that follows from the ranks of a segment."""
    return SegmentName(*entry.location, *rank_of(entry), generation=entry.generation)


def _at(entry: SegmentEntry, era: int, version: int, held_since: int) -> SegmentEntry:
    placed = replace(entry, era=era, first_version=version, last_version=version, held_since=held_since, generation=0)
    return replace(placed, name=name_of(placed).relative)
