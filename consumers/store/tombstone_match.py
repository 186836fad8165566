"""Which series and times many tombstones match, as columns. Pure functions.

Tag predicates are evaluated once for each distinct series of all batches together, never for each pair of batch and
tombstone. The time ranges of the tombstones of one set of series then become a step function, from time to the highest
place of a tombstone that deletes there, and a row looks itself up in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.consumers.store.batch_columns import Int64s, tag_values

EARLIEST, LATEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class TombstoneMatch:
    """Series in classes of equal values of some tags, and the pairs of class and tombstone that match.

    `class_of_key` has the class of each key; pair i is class `of_class[i]` with the tombstone at `places[i]`.
    """

    class_of_key: Int64s
    classes: int
    of_class: Int64s
    places: Int64s


def match_series(
    keys: pa.StringArray,
    names: Sequence[str],
    places: Sequence[int],
    tags: Sequence[tuple[tuple[str, tuple[str, ...]], ...]],
) -> TombstoneMatch:
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
    return TombstoneMatch(class_of_key, classes, of_class, np.array(places, np.int64)[pairs])


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
class TombstoneSteps:
    """For each class a step function from time to the highest place of a tombstone that deletes there.

    Step i begins at (class, time) `begins[i]`, a code over `boundaries`, and has the place `places[i]`, -1 for
    none.
    """

    boundaries: Int64s
    begins: Int64s
    places: Int64s

    @classmethod
    def of(cls, match: TombstoneMatch, starts: Int64s, lasts: Int64s) -> TombstoneSteps:
        """The steps of all pairs of a match; `starts` and `lasts` are those of the tombstones."""
        start, last = starts[match.places], lasts[match.places]
        ending = last < LATEST
        boundaries = np.unique(np.concatenate([start, last[ending] + 1, [EARLIEST]]))
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
