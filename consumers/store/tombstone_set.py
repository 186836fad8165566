"""The tombstones of one table as columns: which rows they delete, with work that adds up instead of multiplying.

A scan or a seal applies many tombstones to many batches. Tag predicates are evaluated once for each distinct
series of all batches together, never for each pair of batch and tombstone. The time ranges of the tombstones
of one set of series then become a step function, from time to the highest rank that deletes there, and a row
looks itself up in it. Pure functions.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.consumers.store.batch_columns import Int64s, Mask, tag_values, unify_series
from headrace.consumers.store.memtable import LiveBatch
from headrace.consumers.store.segment import SegmentEntry
from headrace.consumers.store.tombstones import Tombstone
from headrace.schemas.series import slot_of

FILES_KNOWN_MAX = 65_536
"""Files whose deletes a set remembers, about 300 bytes each."""
_EARLIEST, _LATEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


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
        if self._slot_sets:
            # They are of the eras of earlier holders, and concern what these have decided.
            rank = max((entry.era, entry.last_version), entry.loaded_rank)
            concerned = self._limited_to(entry) & self._from(self.floor(*rank))
            outranking = np.where(self._limited, concerned, outranking)
        return outranking

    def _from(self, place: int) -> Mask:
        found: Mask = self._places >= place
        return found

    def _limited_to(self, entry: SegmentEntry) -> Mask:
        """Which limited ones concern the slot of a segment."""
        slot = slot_of(entry.database, entry.bucket, entry.slice_number, self._slots_total)
        concerned = [_has(slots, slot) for slots in self._slot_sets]
        found: Mask = np.array([*concerned, False], np.bool_)[self._slot_set]
        return found

    def unapplied(self, entry: SegmentEntry) -> TombstoneSet:
        """The tombstones of `unapplied_mask`, and those that came with the segment.

        All of them delete whatever they match in it.
        """
        own = self._unapplied_own(entry) if self._given and self._may_concern(entry) else TombstoneSet()
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

    def deleted(self, keys: pa.StringArray, codes: npt.NDArray[np.integer], times: Int64s, floors: Int64s) -> Mask:
        """Which rows are deleted; row i has series `keys[codes[i]]`, time `times[i]` and floor `floors[i]`."""
        deleted = np.zeros(len(codes), np.bool_)
        for match in self._matches(keys):
            if not match.places.size:
                continue
            touched = np.zeros(match.classes, np.bool_)
            touched[match.of_class] = True
            rows = np.flatnonzero(touched[match.class_of_key][codes])
            steps = _Steps.of(match, self._starts, self._lasts)
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
            return -1, _LATEST, _EARLIEST
        return int(self._came_at.max()), int(self._starts.min()), int(self._lasts.max())

    @cached_property
    def _places(self) -> Int64s:
        return np.arange(len(self))

    @cached_property
    def _slots_total(self) -> int:
        return max(each.slots_total for each in self.items)

    @cached_property
    def _slot_sets(self) -> dict[tuple[int, ...], int]:
        """The distinct slots of limited ones, numbered. What was handed over together has the same, so they are few."""
        return {slots: number for number, slots in enumerate(dict.fromkeys(x.slots for x in self.items if x.slots))}

    @cached_property
    def _slot_set(self) -> Int64s:
        """The number of the slots of each, -1 for those of any slot."""
        return np.array([self._slot_sets.get(each.slots, -1) for each in self.items], np.int64)

    @cached_property
    def _starts(self) -> Int64s:
        return np.array([_EARLIEST if each.start_ns is None else each.start_ns for each in self.items], np.int64)

    @cached_property
    def _lasts(self) -> Int64s:
        """The last time that each deletes: ends are exclusive, and a column of them has no value for "no end"."""
        return np.array([_last(each) for each in self.items], np.int64)

    def _matches(self, keys: pa.StringArray) -> Iterator[_Match]:
        """The series of each tombstone, for each set of tag names that tombstones have."""
        for names, places in self._by_names.items():
            yield _match(keys, names, places, [self.items[place].tags for place in places])

    @cached_property
    def _by_names(self) -> dict[tuple[str, ...], list[int]]:
        by_names: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for place, each in enumerate(self.items):
            # A range that is empty deletes nothing, and has no last time.
            end_ns = _LATEST + 1 if each.end_ns is None else each.end_ns
            if (_EARLIEST if each.start_ns is None else each.start_ns) < end_ns:
                by_names[tuple(name for name, _ in each.tags)].append(place)
        return by_names


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


@dataclass(frozen=True, slots=True)
class _Match:
    """Series in classes of equal values of some tags, and the pairs of class and tombstone that match.

    `class_of_key` has the class of each key; pair i is class `of_class[i]` with the tombstone at `places[i]`.
    """

    class_of_key: Int64s
    classes: int
    of_class: Int64s
    places: Int64s


def _match(
    keys: pa.StringArray,
    names: Sequence[str],
    places: Sequence[int],
    tags: Sequence[tuple[tuple[str, tuple[str, ...]], ...]],
) -> _Match:
    """Matches series with tombstones that all name the tags `names`; `tags` has those of each."""
    class_of_key, classes = np.zeros(len(keys), np.int64), 1
    of_class, pairs = np.zeros(len(places), np.int64), np.arange(len(places))
    for position, name in enumerate(names):
        values = pc.fill_null(tag_values(keys, name), "").dictionary_encode()
        code_of_key, distinct = values.indices.to_numpy(zero_copy_only=False).astype(np.int64), len(values.dictionary)
        pairs, of_class, codes = _allowed(values.dictionary, [each[position][1] for each in tags], pairs, of_class)
        # Classes are numbered anew after each tag, so the numbers never exceed the number of series.
        known, class_of_key = np.unique(class_of_key * distinct + code_of_key, return_inverse=True)
        classes = len(known)
        wanted = of_class * distinct + codes
        found = np.minimum(np.searchsorted(known, wanted), max(classes - 1, 0))
        kept = known[found] == wanted if classes else np.zeros(len(wanted), np.bool_)
        of_class, pairs = found[kept], pairs[kept]
    return _Match(class_of_key, classes, of_class, np.array(places, np.int64)[pairs])


def _allowed(
    dictionary: pa.StringArray, allowed: Sequence[tuple[str, ...]], pairs: Int64s, of_class: Int64s
) -> tuple[Int64s, Int64s, Int64s]:
    """Each pair once for every value of the tag that its tombstone allows and a series has, with that value."""
    counts = np.array([len(values) for values in allowed], np.int64)
    given = pa.array([value for values in allowed for value in values], pa.string())
    codes = pc.fill_null(pc.index_in(given, value_set=dictionary), -1).to_numpy(zero_copy_only=False).astype(np.int64)
    owners = np.repeat(np.arange(len(allowed)), counts)[codes >= 0]
    codes = codes[codes >= 0]
    starts = np.searchsorted(owners, np.arange(len(allowed)))
    present = np.bincount(owners, minlength=len(allowed)).astype(np.int64)
    repeats = present[pairs]
    # Number of each copy among those of its pair, to pick the value from the tombstone's list.
    number = np.arange(repeats.sum()) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    expanded = np.repeat(pairs, repeats)
    return expanded, np.repeat(of_class, repeats), codes[starts[expanded] + number]


@dataclass(frozen=True, slots=True)
class _Steps:
    """For each class a step function from time to the highest place of a tombstone that deletes there.

    Step i begins at (class, time) `begins[i]`, a code over `boundaries`, and has the place `places[i]`, -1 for
    none.
    """

    boundaries: Int64s
    begins: Int64s
    places: Int64s

    @classmethod
    def of(cls, match: _Match, starts: Int64s, lasts: Int64s) -> _Steps:
        """The steps of all pairs of a match; `starts` and `lasts` are those of the tombstones."""
        start, last = starts[match.places], lasts[match.places]
        ending = last < _LATEST
        boundaries = np.unique(np.concatenate([start, last[ending] + 1, [_EARLIEST]]))
        width = len(boundaries)
        low = match.of_class * width + np.searchsorted(boundaries, start)
        # A range without end reaches to the next class.
        high = (match.of_class + 1) * width
        high[ending] = match.of_class[ending] * width + np.searchsorted(boundaries, last[ending] + 1)
        # A class without tombstones after it needs a step of its own that ends its predecessor's.
        begins = np.unique(np.concatenate([low, high, match.of_class * width]))
        places = _highest_in(len(begins), np.searchsorted(begins, low), np.searchsorted(begins, high), match.places)
        return cls(boundaries, begins, places)

    def highest(self, classes: Int64s, times: Int64s) -> Int64s:
        """The highest place for each (class, time), -1 where nothing deletes; every class has a step."""
        time = np.searchsorted(self.boundaries, times, "right") - 1
        return self.places[np.searchsorted(self.begins, classes * len(self.boundaries) + time, "right") - 1]


def _highest_in(cells: int, low: Int64s, high: Int64s, values: Int64s) -> Int64s:
    """For each cell the highest of `values` whose range [low, high) contains it, -1 without one."""
    # A range of any length is two overlapping ranges of one power of two. From the longest power down, each
    # range hands its value to its two halves, so the work is (ranges + cells) · log(cells), all in NumPy.
    power = np.frexp((high - low).astype(np.float64))[1] - 1
    best = np.full(cells, -1, np.int64)
    for exponent in range(int(power.max(initial=0)), -1, -1):
        half = 1 << exponent
        chosen = power == exponent
        np.maximum.at(best, low[chosen], values[chosen])
        np.maximum.at(best, high[chosen] - half, values[chosen])
        if exponent:
            half >>= 1
            halves = best.copy()
            np.maximum(halves[half:], best[:-half], out=halves[half:])
            best = halves
    return best


def _has(slots: tuple[int, ...], slot: int) -> bool:
    place = bisect_left(slots, slot)
    return place < len(slots) and slots[place] == slot


def _rank(tombstone: Tombstone) -> tuple[int, int]:
    return tombstone.era, tombstone.version


def _last(tombstone: Tombstone) -> int:
    if tombstone.end_ns is None:
        return _LATEST
    return max(tombstone.end_ns - 1, _EARLIEST)
