"""The distinct series of one input: each is read once, however many rows it has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from connectors.formats.line_scanner import BadLine, read_series
from connectors.formats.parsed import TAG_TYPE, FormatOptions

Codes = npt.NDArray[np.int32]
UNREADABLE = -1


@dataclass(slots=True)
class SeriesRegistry:
    """Numbers for the series of an input, and what each of them is. Not thread-safe; one lives as long as one parse."""

    options: FormatOptions
    tables: list[str] = field(default_factory=list)
    tags: list[Mapping[str, str]] = field(default_factory=list)
    _known: dict[str, int] = field(default_factory=dict)
    _numbers: dict[tuple[str, tuple[tuple[str, str], ...]], int] = field(default_factory=dict)

    def number(self, table: str, tags: tuple[tuple[str, str], ...]) -> int:
        """The number of a series as the line gives it; fixed table and static tags of the options are applied here. Raises BadLine."""
        own = dict(tags)
        named = {**{name: value for name, value in self.options.static_tags if name not in own}, **own}
        table = self.options.table or table
        key = (table, tuple(sorted(named.items())))
        known = self._numbers.get(key)
        if known is not None:
            return known
        self._check_columns(table, named)
        self._numbers[key] = len(self.tables)
        self.tables.append(table)
        self.tags.append(named)
        return len(self.tables) - 1

    def numbers(self, texts: pl.Series) -> Codes:
        """The numbers of series given as they stand in line protocol; `UNREADABLE` where the text is not one series and nothing else."""
        encoded = pc.dictionary_encode(texts.to_arrow())
        distinct = encoded.dictionary.to_pylist()
        known = self._known
        for text in distinct:
            if text not in known:
                known[text] = self._read(text)
        lookup = np.array([*(known[text] for text in distinct), UNREADABLE], np.int32)
        places = np.asarray(pc.fill_null(encoded.indices, len(distinct)), np.int32)
        numbers: Codes = lookup[places]
        return numbers

    def tables_of(self, numbers: Codes) -> dict[str, npt.NDArray[np.int64] | None]:
        """Table name to the rows of `numbers` that are its own, ascending; None when all of them are."""
        used = self._used(numbers)
        names = sorted({self.tables[number] for number in used})
        if len(names) == 1:
            return {names[0]: None}
        places = {name: place for place, name in enumerate(names)}
        lookup = np.zeros(len(self.tables), np.int32)
        lookup[used] = [places[self.tables[number]] for number in used]
        owners = lookup[numbers]
        order = np.argsort(owners, kind="stable")
        bounds = np.searchsorted(owners[order], np.arange(len(names) + 1))
        return {name: order[bounds[place] : bounds[place + 1]] for name, place in places.items()}

    def tag_columns(self, numbers: Codes) -> dict[str, pa.Array]:
        """The tag columns of rows given by their series numbers, in order of name."""
        used = self._used(numbers)
        names = sorted({name for number in used for name in self.tags[number]})
        return {name: self._tag_column(name, used, numbers) for name in names}

    def distinct(self, numbers: Codes) -> list[int]:
        """The series that occur in `numbers`."""
        return [int(number) for number in self._used(numbers)]

    def _read(self, text: str) -> int:
        series = read_series(text)
        if series is None:
            return UNREADABLE
        try:
            return self.number(series.table, series.tags)
        except BadLine:
            return UNREADABLE

    def _check_columns(self, table: str, tags: Mapping[str, str]) -> None:
        declared = self.options.declared_types(table)
        for name in tags:
            if name in declared:
                raise BadLine(f"column {name!r} of table {table!r} is a field and the line has it as a tag")

    def _used(self, numbers: Codes) -> npt.NDArray[np.int64]:
        seen = np.zeros(len(self.tables), np.bool_)
        seen[numbers] = True
        return np.flatnonzero(seen)

    def _tag_column(self, name: str, used: npt.NDArray[np.int64], numbers: Codes) -> pa.Array:
        values: dict[str, int] = {}
        codes = [
            values.setdefault(text, len(values)) if (text := self.tags[number].get(name)) else -1 for number in used
        ]
        lookup = np.full(len(self.tables), -1, np.int32)
        lookup[used] = codes
        rows = lookup[numbers]
        absent = rows < 0
        indices = pa.array(rows, pa.int32(), mask=absent if absent.any() else None)
        return pa.DictionaryArray.from_arrays(indices, pa.array(list(values), pa.string())).cast(TAG_TYPE)
