"""The tombstones of one table as columns: which rows they delete, with work that adds up instead of multiplying.

A scan or a seal applies many tombstones to many batches, and looks at many files. What is asked of a set for each of
them is computed once for the set (see also `tombstone_match`). Pure functions.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, repeat

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.consumers.store.batch_columns import Int64s, Mask, unify_series
from headrace.consumers.store.memtable import LiveBatch
from headrace.consumers.store.segment import SegmentEntry
from headrace.consumers.store.tombstone_match import EARLIEST, LATEST, TombstoneMatch, TombstoneSteps, match_series
from headrace.consumers.store.tombstones import Tombstone
from headrace.schemas.series import slot_of

FILES_KNOWN_MAX = 65_536
"""Files whose deletes a set remembers, about 300 bytes each."""
OLDER_KNOWN_MAX = 64
"""Earlier versions of which a set remembers what had come: those of cuts whose files are listed and read."""
_OF_TOMBSTONE = -1
"""In the place of a slot: it came where the tombstone did."""


class TombstoneSet:
    """Tombstones of one table, lowest rank first. Immutable.

    The place of a tombstone is its index in this order; the floor of a row is the place of the first tombstone
    that outranks it. `general` are those that concern rows of any slot, `limited` those that were handed over.
    """

    def __init__(self, tombstones: Iterable[Tombstone] = ()) -> None:
        """Cheap: the columns are made at the first use."""
        self._given = tuple(tombstones)

    @cached_property
    def items(self) -> tuple[Tombstone, ...]:
        """The tombstones, lowest rank first."""
        return tuple(sorted(self._given, key=_rank))

    def __len__(self) -> int:
        return len(self._given)

    def __iter__(self) -> Iterator[Tombstone]:
        return iter(self.items)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, TombstoneSet) and self.items == other.items)

    __hash__ = None  # type: ignore[assignment]

    def select(self, mask: Mask) -> TombstoneSet:
        """The tombstones that `mask`, one flag each, marks."""
        if mask.all():
            return self
        return TombstoneSet(self.items[place] for place in np.flatnonzero(mask).tolist())

    @cached_property
    def general(self) -> TombstoneSet:
        """Those of the own log."""
        return self.select(~self._limited)

    @cached_property
    def limited(self) -> TombstoneSet:
        """Those that were handed over, each for some slots."""
        return self.select(self._limited)

    def newer_than(self, version: int) -> TombstoneSet:
        """The tombstones that came after `version` of this log."""
        return self.select(self._came_at > version)

    def up_to(self, version: int) -> TombstoneSet:
        """What came up to `version` of this log; the same object each time, so that it computes its columns once."""
        if self._extent[0] <= version:
            return self
        found = self._older.get(version)
        if found is None:
            if len(self._older) >= OLDER_KNOWN_MAX:
                self._older.clear()
            older = (each.up_to(version) for each in self.items)
            found = self._older[version] = TombstoneSet(each for each in older if each is not None)
        return found

    def outranking(self, era: int, version: int, first_ns: int, last_ns: int) -> TombstoneSet:
        """Those that may delete rows of a rank with times from `first_ns` to `last_ns`."""
        place = self.floor(era, version)
        if place == len(self):
            return NO_TOMBSTONES
        return self.select((self._places >= place) & (self._starts <= last_ns) & (self._lasts >= first_ns))

    def by_slots(self) -> Mapping[tuple[int, tuple[int, ...]], TombstoneSet]:
        """Limited ones by the number of all slots and those that they concern."""
        found: dict[tuple[int, tuple[int, ...]], list[Tombstone]] = defaultdict(list)
        for each in self.items:
            found[each.slots_total, each.slots].append(each)
        return {slots: TombstoneSet(items) for slots, items in found.items()}

    def is_late(self, era_min: int) -> Mask:
        """Which are for rows that may still come: those that were handed over, and those of an era above `era_min`."""
        return self._limited | (np.array([each.era for each in self.items], np.int64) > era_min)

    def unapplied_mask(self, entry: SegmentEntry) -> Mask:
        """Which tombstones may delete rows of a segment of the table and are not yet applied to it."""
        # By ranks and time range of the catalogue alone: a tombstone that matches no row of the file costs one
        # rewrite or one look at its runs, and never a wrong answer.
        # A file that was loaded has a `cleaned_version` of this log, or 0; that of its earlier holder would
        # count records of another log, and would hide every delete that came here since.
        if not self._may_concern(entry):
            return np.zeros(len(self), np.bool_)
        mask = (self._came_at > entry.cleaned_version) & (self._lasts >= entry.min_time_ns)
        mask &= self._starts <= entry.max_time_ns
        return mask & self._outranking(entry) if mask.any() else mask

    def _may_concern(self, entry: SegmentEntry) -> bool:
        # A scan, a seal and a plan of merges look at every file, and most are of other times than all deletes.
        newest, first, last = self._extent
        return newest >= entry.cleaned_version and first <= entry.max_time_ns and last >= entry.min_time_ns

    def _outranking(self, entry: SegmentEntry) -> Mask:
        outranking = self._from(self.floor(entry.era, entry.last_version, entry.held_since))
        if self._slot_places:
            # They are of the eras of earlier holders, and concern what these have decided.
            rank = max((entry.era, entry.last_version), entry.loaded_rank)
            concerned = self._limited_to(entry) & self._from(self.floor(*rank))
            outranking = np.where(self._limited, concerned, outranking)
        return outranking

    def _from(self, place: int) -> Mask:
        found: Mask = self._places >= place
        return found

    def _limited_to(self, entry: SegmentEntry) -> Mask:
        """Which limited ones concern the slot of a segment, and came there behind what it has applied."""
        slot = slot_of(entry.database, entry.bucket, entry.slice_number, self._slots_total)
        slots, places, numbers = self._by_slot
        low, high = np.searchsorted(slots, [slot, slot + 1])
        came = places[low:high]
        concerned = np.zeros(len(self._slot_places) + 1, np.bool_)
        concerned[numbers[low:high][(came == _OF_TOMBSTONE) | (came > entry.cleaned_version)]] = True
        found: Mask = concerned[self._slot_number]
        return found

    def unapplied(self, entry: SegmentEntry) -> TombstoneSet:
        """The tombstones of `unapplied_mask`, and those that came with the segment.

        All of them delete whatever they match in it.
        """
        own = self._unapplied_own(entry) if self._given and self._may_concern(entry) else NO_TOMBSTONES
        return TombstoneSet((*own.items, *entry.carried)) if entry.carried else own

    def _unapplied_own(self, entry: SegmentEntry) -> TombstoneSet:
        # A scan asks twice for each file, and scans follow one another much faster than deletes. A merge may give a
        # name again, with other bytes, or with more deletes applied.
        key = (entry.name, entry.file_digest, entry.cleaned_version, entry.held_since, entry.loaded_rank)
        found = self._of_file.get(key)
        if found is None:
            if len(self._of_file) >= FILES_KNOWN_MAX:
                self._of_file.clear()
            found = self._of_file[key] = self.select(self.unapplied_mask(entry))
        return found

    def floor(self, era: int, version: int, held_since: int = 0, cleaned_version: int = 0) -> int:
        """The place of the first tombstone that outranks rows of (era, version), and is of era `held_since` or later.

        Of the own log's, it came after `cleaned_version`: those are in the order in which they came.
        """
        found = bisect_right(self.items, max((era, version), (held_since, -1)), key=_rank)
        if not cleaned_version:
            return found
        return max(found, bisect_right(self.items, cleaned_version, key=lambda each: each.came_at))

    def matches(self, keys: pa.StringArray) -> bool:
        """Whether any tombstone matches any of these series, at whatever time."""
        return any(match.places.size for match in self._matches(keys))

    def of_series(self, keys: pa.StringArray) -> TombstoneSet:
        """Those that match any of these series, at whatever time."""
        mask = np.zeros(len(self), np.bool_)
        for match in self._matches(keys):
            mask[match.places] = True
        return self.select(mask)

    def deleted(self, keys: pa.StringArray, codes: npt.NDArray[np.integer], times: Int64s, floors: Int64s) -> Mask:
        """Which rows are deleted; row i has series `keys[codes[i]]`, time `times[i]` and floor `floors[i]`."""
        deleted = np.zeros(len(codes), np.bool_)
        for match in self._matches(keys):
            if not match.places.size:
                continue
            touched = np.zeros(match.classes, np.bool_)
            touched[match.of_class] = True
            rows = np.flatnonzero(touched[match.class_of_key][codes])
            steps = TombstoneSteps.of(match, self._starts, self._lasts)
            highest = steps.highest(match.class_of_key[codes[rows]], times[rows])
            deleted[rows[highest >= floors[rows]]] = True
        return deleted

    @cached_property
    def _came_at(self) -> Int64s:
        return np.array([each.came_at for each in self.items], np.int64)

    @cached_property
    def _limited(self) -> Mask:
        return np.array([bool(each.slots) for each in self.items], np.bool_)

    @cached_property
    def _of_file(self) -> dict[tuple[str, str, int, int, tuple[int, int]], TombstoneSet]:
        return {}

    @cached_property
    def _extent(self) -> tuple[int, int, int]:
        """(the newest place where one came, the first time that one deletes, the last such time), for none an empty one."""
        if not self._given:
            return -1, LATEST, EARLIEST
        return int(self._came_at.max()), int(self._starts.min()), int(self._lasts.max())

    @cached_property
    def _places(self) -> Int64s:
        return np.arange(len(self))

    @cached_property
    def _slots_total(self) -> int:
        return max(each.slots_total for each in self.items)

    @cached_property
    def _older(self) -> dict[int, TombstoneSet]:
        return {}

    @cached_property
    def _slot_places(self) -> dict[tuple[tuple[int, ...], tuple[int, ...]], int]:
        """The distinct slots of limited ones with their places, numbered. What came together has the same."""
        distinct = dict.fromkeys((each.slots, each.places) for each in self.items if each.slots)
        return {slots: number for number, slots in enumerate(distinct)}

    @cached_property
    def _slot_number(self) -> Int64s:
        """The number of the slots of each, -1 for those of any slot."""
        return np.array([self._slot_places.get((each.slots, each.places), -1) for each in self.items], np.int64)

    @cached_property
    def _by_slot(self) -> tuple[Int64s, Int64s, Int64s]:
        """(slots in order, the place where the slot came or _OF_TOMBSTONE, the number of what has the slot)."""
        given = list(self._slot_places)
        lengths = [len(slots) for slots, _ in given]
        slots = np.fromiter(chain.from_iterable(each for each, _ in given), np.int64, sum(lengths))
        came = chain.from_iterable(places or repeat(_OF_TOMBSTONE, len(of)) for of, places in given)
        places = np.fromiter(came, np.int64, len(slots))
        order = np.argsort(slots, kind="stable")
        return slots[order], places[order], np.repeat(np.arange(len(given)), lengths)[order]

    @cached_property
    def _starts(self) -> Int64s:
        return np.array([EARLIEST if each.start_ns is None else each.start_ns for each in self.items], np.int64)

    @cached_property
    def _lasts(self) -> Int64s:
        """The last time that each deletes: ends are exclusive, and a column of them has no value for "no end"."""
        return np.array([_last(each) for each in self.items], np.int64)

    def _matches(self, keys: pa.StringArray) -> Iterator[TombstoneMatch]:
        """The series of each tombstone, for each set of tag names that tombstones have."""
        for names, places in self._by_names.items():
            yield match_series(keys, names, places, [self.items[place].tags for place in places])

    @cached_property
    def _by_names(self) -> dict[tuple[str, ...], list[int]]:
        by_names: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for place, each in enumerate(self.items):
            # A range that is empty deletes nothing, and has no last time.
            end_ns = LATEST + 1 if each.end_ns is None else each.end_ns
            if (EARLIEST if each.start_ns is None else each.start_ns) < end_ns:
                by_names[tuple(name for name, _ in each.tags)].append(place)
        return by_names


NO_TOMBSTONES = TombstoneSet()


def visible(batches: Sequence[LiveBatch], tombstones: TombstoneSet) -> list[pa.RecordBatch]:
    """The rows of each batch that no tombstone of higher rank deletes."""
    rows, general = [batch.rows for batch in batches], tombstones.general
    if not general:
        return rows
    floors = [general.floor(batch.era, batch.version, batch.held_since) for batch in batches]
    return without_deleted(rows, general, floors)


def without_deleted(
    batches: Sequence[pa.RecordBatch], tombstones: TombstoneSet, floors: Sequence[int]
) -> list[pa.RecordBatch]:
    """The rows of each batch that no tombstone from its floor on deletes."""
    left = list(batches)
    outranked = [number for number, rows in enumerate(batches) if floors[number] < len(tombstones) and len(rows)]
    if not outranked:
        return left
    found = [batches[number] for number in outranked]
    keys, codes = unify_series(found)
    times = np.concatenate([rows.column(1).to_numpy(zero_copy_only=True) for rows in found])
    lengths = np.array([len(rows) for rows in found], np.int64)
    deleted = tombstones.deleted(keys, codes, times, np.repeat([floors[number] for number in outranked], lengths))
    ends = np.cumsum(lengths)
    # Batches without a deleted row are not copied.
    for place in np.unique(np.searchsorted(ends, np.flatnonzero(deleted), "right")).tolist():
        keep = ~deleted[ends[place] - lengths[place] : ends[place]]
        left[outranked[place]] = found[place].filter(pa.array(keep))
    return left


def by_table(tombstones: Iterable[Tombstone]) -> dict[tuple[str, str], TombstoneSet]:
    """The tombstones of each table."""
    found: dict[tuple[str, str], list[Tombstone]] = defaultdict(list)
    for each in tombstones:
        found[(each.database, each.table)].append(each)
    return {table: TombstoneSet(items) for table, items in found.items()}


def _rank(tombstone: Tombstone) -> tuple[int, int]:
    return tombstone.era, tombstone.version


def _last(tombstone: Tombstone) -> int:
    if tombstone.end_ns is None:
        return LATEST
    return max(tombstone.end_ns - 1, EARLIEST)
