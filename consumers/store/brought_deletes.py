"""The deletes that a file brings to a centre, as few as they can be. Pure.

All of them delete whatever they match in the file, and nothing else. So a delete that matches no series of it stays
behind, and so do values that no series has. Of what differs in one tag alone one delete is made, and of ranges that
meet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from headrace.consumers.store.batch_columns import tag_values
from headrace.consumers.store.tombstone_set import TombstoneSet
from headrace.consumers.store.tombstones import Tombstone

Tags = tuple[tuple[str, tuple[str, ...]], ...]
_Alike = tuple[tuple[str, ...], int | None, int | None]
"""(names of tags, start, end)."""


def brought_deletes(deletes: TombstoneSet, keys: pa.StringArray) -> tuple[Tombstone, ...]:
    """What deletes that outrank a file with these series delete in it, lowest rank first.

    A user may have deleted each of thousands of devices, and thousands of others in one delete: all of these would not
    fit into the manifest of the file, nor into the record of its load.
    """
    alike: dict[_Alike, list[tuple[Tombstone, Tags]]] = {}
    present: dict[str, frozenset[str]] = {}
    for each in deletes.of_series(keys).items:
        for name, _ in each.tags:
            if name not in present:
                present[name] = frozenset(pc.unique(pc.fill_null(tag_values(keys, name), "")).to_pylist())
        tags = tuple((name, tuple(sorted(present[name].intersection(values)))) for name, values in each.tags)
        alike.setdefault((tuple(name for name, _ in tags), each.start_ns, each.end_ns), []).append((each, tags))
    found = _united(one for same in alike.values() for one in _joined(same))
    return tuple(sorted(found, key=lambda each: (each.era, each.version)))


def _joined(same: Sequence[tuple[Tombstone, Tags]]) -> list[Tombstone]:
    """Deletes of one range and one set of tags: those that differ in one tag are one, of the highest rank."""
    counts = [len({tags[place] for _, tags in same}) for place in range(len(same[0][1]))]
    # The tag with the most values mostly names the device.
    place = max(range(len(counts)), key=counts.__getitem__, default=0)
    groups: dict[Tags, tuple[Tombstone, set[str]]] = {}
    for each, tags in same:
        rest, values = tags[:place] + tags[place + 1 :], tags[place][1] if tags else ()
        highest, known = groups.setdefault(rest, (each, set()))
        known.update(values)
        groups[rest] = max(highest, each, key=lambda one: (one.era, one.version)), known
    return [
        Tombstone(one.database, one.table, one.era, one.version, _with(rest, one.tags, place, values), *_range(one))
        for rest, (one, values) in groups.items()
    ]


def _united(deletes: Iterable[Tombstone]) -> list[Tombstone]:
    """Deletes of the same series whose ranges overlap, or follow each other, are one, of the highest rank."""
    by_tags: dict[Tags, list[Tombstone]] = {}
    for each in sorted(deletes, key=lambda one: (one.start_ns is not None, one.start_ns or 0)):
        ranges = by_tags.setdefault(each.tags, [])
        if not ranges or not _meets(ranges[-1], each):
            ranges.append(each)
            continue
        before = ranges[-1]
        end_ns = None if before.end_ns is None or each.end_ns is None else max(before.end_ns, each.end_ns)
        highest = max(before, each, key=lambda one: (one.era, one.version))
        ranges[-1] = replace(highest, start_ns=before.start_ns, end_ns=end_ns)
    return [each for ranges in by_tags.values() for each in ranges]


def _meets(before: Tombstone, each: Tombstone) -> bool:
    """Whether nothing lies between two ranges, of which one begins no later than the other."""
    return before.end_ns is None or each.start_ns is None or each.start_ns <= before.end_ns


def _with(rest: Tags, tags: Tags, place: int, values: set[str]) -> Tags:
    return (*rest[:place], (tags[place][0], tuple(sorted(values))), *rest[place:]) if tags else ()


def _range(one: Tombstone) -> tuple[int | None, int | None]:
    return one.start_ns, one.end_ns
