"""Tags that stand side by side in JSON lines, taken as one text: lines of one series say the same there, so it is read once for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from connectors.formats.json_columns import Column, tag_codes
from connectors.formats.lines import Booleans, Integers, lines_of_messages
from connectors.formats.pieces import joined_array
from connectors.formats.templates import Matched, Template, match
from connectors.formats.values import both


@dataclass(frozen=True, slots=True)
class TagRun:
    """Members that are tags and neighbours: `template` is that of their text, from the first name's quote to the last value."""

    template: Template
    columns: tuple[Column, ...]

    def codes(self, texts: pa.DictionaryArray) -> tuple[list[pa.Array], Booleans | None]:
        """A tag column for each of the members, and which of `texts` are written plainly; every distinct text is read once."""
        reading = _Reading(self)
        rows = np.asarray(texts.indices)
        plain = np.zeros(len(texts.dictionary), np.bool_)
        reading.read(texts.dictionary)
        places = np.zeros(len(plain), np.int32)
        if reading.rows:
            read = np.concatenate(reading.rows)
            plain[read] = True
            places[read] = np.arange(len(read))
        taken = pa.array(places[rows])
        return [reading.column(place, taken) for place in range(len(self.columns))], (
            None if plain.all() else plain[rows]
        )


@dataclass(slots=True)
class _Reading:
    """The distinct texts of a run, read in parts."""

    run: TagRun
    rows: list[Integers] = field(default_factory=list)
    tags: list[list[pa.Array]] = field(default_factory=list)

    def read(self, texts: pa.Array) -> None:
        """Take the texts apart that have the form of the run."""
        lines = lines_of_messages(texts.cast(pa.large_binary()))
        for first, last in lines.chunks():
            self._take(match(lines, self.run.template, np.arange(first, last)))

    def column(self, place: int, taken: pa.Array) -> pa.Array:
        """Tag `place` of the texts numbered `taken`, in the order in which they were read."""
        if not self.rows:
            return pa.DictionaryArray.from_arrays(pa.nulls(len(taken), pa.int32()), pa.array([], pa.string()))
        whole = joined_array([part[place] for part in self.tags])
        return pa.DictionaryArray.from_arrays(whole.indices.take(taken), whole.dictionary)

    def _take(self, matched: Matched) -> None:
        """Keep what is written plainly."""
        good: Booleans | None = None
        tags: list[pa.Array] = []
        for place, column in enumerate(self.run.columns):
            codes, valid = tag_codes(column, matched.encoded(place))
            good = both(good, valid)
            tags.append(codes)
        kept = matched.rows
        if good is not None and not good.all():
            kept, tags = kept[good], [codes.filter(pa.array(good)) for codes in tags]
        if len(kept):
            self.rows.append(kept)
            self.tags.append(tags)


def runs_of(columns: Sequence[Column]) -> list[tuple[int, int]]:
    """The neighbours that are tags, at least two each, as (first, one after the last)."""
    runs: list[tuple[int, int]] = []
    first = 0
    while first < len(columns):
        last = first
        while last < len(columns) and columns[last].role == "tag":
            last += 1
        if last - first > 1:
            runs.append((first, last))
        first = max(last, first + 1)
    return runs
