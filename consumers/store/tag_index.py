"""Which of many series have some values of tags, found without a look at each series.

The index of one tag has the distinct values in order, and the places of the series of each. It is made when a condition
names the tag for the first time, and kept as long as the series keys that it is of.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.consumers.store.batch_columns import Int64s, values_of_tags

LOOKED_UP_MAX = 100
"""Values that are looked up one by one; more are compared with every distinct value."""
LISTED_MAX = 4_096
"""Distinct values of a tag that are kept as a list too."""
KEPT_MAX = 1_000
"""Row batches whose indices `TagIndices` keeps."""
NO_PLACES: Int64s = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class _OneTag:
    """Distinct values in order; the series of value i are `places[starts[i]:starts[i + 1]]`. "" for an absent tag."""

    values: pa.StringArray
    starts: Int64s
    places: Int64s
    listed: list[str] | None
    """The values once more where they are few, which are found sooner there."""

    @classmethod
    def of(cls, keys: pa.StringArray, tag: str) -> _OneTag:
        encoded = pc.fill_null(values_of_tags(keys, [tag])[tag], "").dictionary_encode()
        order = pc.sort_indices(encoded.dictionary)
        ranks = np.empty(len(order), np.int64)
        ranks[order.to_numpy()] = np.arange(len(order))
        codes = ranks[encoded.indices.to_numpy(zero_copy_only=False)]
        places = np.argsort(codes, kind="stable")
        starts = np.searchsorted(codes[places], np.arange(len(order) + 1))
        values = encoded.dictionary.take(order)
        return cls(values, starts, places, values.to_pylist() if len(values) <= LISTED_MAX else None)

    def of_values(self, wanted: Sequence[str]) -> Int64s:
        """The places of the series with one of these values, in order."""
        # Most statements name one series, of which most segments have none.
        if len(wanted) == 1:
            rank = self._find(wanted[0])
            return NO_PLACES if rank < 0 else self.places[self.starts[rank] : self.starts[rank + 1]]
        distinct = set(wanted)
        if len(distinct) > LOOKED_UP_MAX:
            values = pa.array(sorted(distinct))
            found = np.flatnonzero(pc.is_in(self.values, value_set=values).to_numpy(zero_copy_only=False)).tolist()
        else:
            found = [rank for value in distinct if (rank := self._find(value)) >= 0]
        pieces = [self.places[self.starts[rank] : self.starts[rank + 1]] for rank in found]
        return np.sort(np.concatenate(pieces)) if pieces else NO_PLACES

    def _find(self, value: str) -> int:
        # Arrow orders texts by their bytes, which is the order of their characters.
        if self.listed is not None:
            place = bisect_left(self.listed, value)
            return place if place < len(self.listed) and self.listed[place] == value else -1
        place = bisect_left(range(len(self.values)), value, key=lambda at: self.values[at].as_py())
        return place if place < len(self.values) and self.values[place].as_py() == value else -1


@dataclass(frozen=True, slots=True)
class TagIndex:
    """The index of an array of series keys. Thread-safe: at worst two threads make the same part of it."""

    keys: pa.StringArray
    _tags: dict[str, _OneTag] = field(default_factory=dict)

    def places(self, tags: Mapping[str, Sequence[str]]) -> Int64s:
        """The places of the series that have for each tag one of its values, "" for an absent tag; in order."""
        found: Int64s | None = None
        for tag, wanted in tags.items():
            one = self._tags.get(tag)
            if one is None:
                one = self._tags[tag] = _OneTag.of(self.keys, tag)
            places = one.of_values(wanted)
            # A series has one value of a tag, so no place comes twice from one tag.
            found = places if found is None else np.intersect1d(found, places, assume_unique=True)
        return np.arange(len(self.keys)) if found is None else found


class TagIndices:
    """The indices of row batches with series keys that others hold, by a name for each. Thread-safe."""

    def __init__(self) -> None:
        """Starts empty."""
        self._lock = threading.Lock()
        self._indices: dict[Hashable, tuple[pa.RecordBatch, TagIndex]] = {}

    def of(self, name: Hashable, batch: pa.RecordBatch) -> TagIndex:
        """The index of the first column of the batch that has a name now."""
        with self._lock:
            known = self._indices.get(name)
            # By identity: batches are immutable, and to compare them costs what the index saves.
            if known is None or known[0] is not batch:
                if len(self._indices) >= KEPT_MAX:
                    self._indices.clear()
                known = self._indices[name] = (batch, TagIndex(batch.column(0)))
        return known[1]
