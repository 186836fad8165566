"""Which Parquet encoding each field of a segment is written in: a sample of its values in, a choice out.

Only encodings that Spark's vectorised reader, DuckDB, polars, pandas and pyarrow all decode are candidates.
Spark refuses BYTE_STREAM_SPLIT. Each candidate encodes the sample in memory, and the smallest wins unless a
faster one is nearly as small. The choice follows from the rows and the library's version alone, so replicas
write equal bytes. It never changes a value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.schemas.tables import FieldType

SAMPLE_ROWS_MAX = 32_768
"""At 8 bytes a value this is the size from which zstd finds the repetitions that it finds in a whole page."""

SAMPLE_SHARE = 16
"""A sample is at most one row in this many, so that a choice costs little beside the encoding."""

SAMPLE_ROWS_MIN = 512
"""A column with fewer rows keeps the first candidate of its type: a merge soon writes it again."""

SAMPLE_BYTES_MAX = 4 << 20
"""Most text of a sample."""

_BLOCKS = 4
"""A sample is so many ranges of rows, evenly spread: neighbours show repetition, distance shows other series."""

_WORTHWHILE = 0.9
"""A slower candidate must be smaller than this share of a faster one."""

_NEW_VALUES_MAX = 0.5
"""A dictionary is no candidate where more than this share of the sample's values occurs once."""

DENSE_LEVEL = 3
"""The zstd level from which PLAIN doubles shrink by about a fifth; levels above bring little."""


class Encoding(Enum):
    """A Parquet encoding that every reader of segments decodes, by its name in Arrow's writer."""

    DICTIONARY = "RLE_DICTIONARY"
    PLAIN = "PLAIN"
    DELTA_BINARY_PACKED = "DELTA_BINARY_PACKED"
    DELTA_BYTE_ARRAY = "DELTA_BYTE_ARRAY"


@dataclass(frozen=True, slots=True)
class ColumnEncoding:
    """How a column is written: its encoding, and the zstd level of its pages."""

    encoding: Encoding
    level: int


CANDIDATES: Mapping[FieldType, tuple[Encoding, ...]] = {
    FieldType.FLOAT64: (Encoding.DICTIONARY, Encoding.PLAIN),
    FieldType.INT64: (Encoding.DELTA_BINARY_PACKED, Encoding.DICTIONARY),
    FieldType.BOOL: (Encoding.PLAIN,),
    FieldType.STRING: (Encoding.DICTIONARY, Encoding.PLAIN, Encoding.DELTA_BYTE_ARRAY),
}
"""The candidates of each type, the fastest first."""


def choose_encodings(
    fields: Mapping[str, pa.Array], kinds: Mapping[str, FieldType], row_group_rows: int, level: int
) -> dict[str, ColumnEncoding]:
    """The encoding of each field.

    `fields` are whole columns in file order, `level` is the zstd level of the store.
    """
    chosen = {name: ColumnEncoding(CANDIDATES[kinds[name]][0], level) for name in fields}
    samples = {name: sample(values) for name, values in fields.items() if len(CANDIDATES[kinds[name]]) > 1}
    samples = {name: values for name, values in samples.items() if len(values) >= SAMPLE_ROWS_MIN}
    group_rows = {name: min(len(fields[name]), row_group_rows) for name in samples}
    for name, encoding in _smallest(samples, kinds, group_rows, level).items():
        chosen[name] = ColumnEncoding(encoding, level)
    plain = {
        name: values
        for name, values in samples.items()
        if chosen[name].encoding is Encoding.PLAIN and kinds[name] is FieldType.FLOAT64
    }
    if level < DENSE_LEVEL and plain:
        usual, dense = (_trial(plain, Encoding.PLAIN, each) for each in (level, DENSE_LEVEL))
        for name in plain:
            if dense[name].data_bytes < usual[name].data_bytes * _WORTHWHILE:
                chosen[name] = ColumnEncoding(Encoding.PLAIN, DENSE_LEVEL)
    return chosen


def sample(values: pa.Array) -> pa.Array:
    """Ranges of rows of a column, evenly spread; a function of the column alone."""
    rows = min(SAMPLE_ROWS_MAX, max(SAMPLE_ROWS_MIN, len(values) // SAMPLE_SHARE), len(values))
    if pa.types.is_large_string(values.type) and values.nbytes:
        rows = min(rows, SAMPLE_BYTES_MAX * len(values) // values.nbytes)
    if rows == len(values):
        return values
    size = rows // _BLOCKS
    starts = [block * (len(values) - size) // (_BLOCKS - 1) for block in range(_BLOCKS)]
    return pa.concat_arrays([values.slice(start, size) for start in starts])


@dataclass(frozen=True, slots=True)
class _Distinct:
    """How many values of a sample differ, how many of them occur once, and how many are not null."""

    values: int
    once: int
    total: int

    @classmethod
    def of(cls, values: pa.Array) -> _Distinct:
        """The counts of one sample."""
        indices = values.dictionary_encode().indices.drop_null().to_numpy(zero_copy_only=False)
        counts = np.bincount(indices)
        return cls(len(counts), int((counts == 1).sum()), len(indices))

    @property
    def new_values(self) -> float:
        """The chance that the next value is a new one (Good and Turing)."""
        return self.once / self.total if self.total else 0.0

    def in_rows(self, rows: int, sample_rows: int) -> float:
        """The estimated number of distinct values in `rows` rows."""
        return self.values + self.new_values * max(0, rows - sample_rows)


@dataclass(frozen=True, slots=True)
class _TrialSize:
    """Compressed bytes of an encoded sample: its dictionary, and the rest."""

    dictionary_bytes: int
    data_bytes: int

    def per_row(self, distinct: _Distinct, sample_rows: int, rows: int) -> float:
        """Estimated bytes a row in a row group of `rows` rows."""
        if not self.dictionary_bytes or not distinct.values:
            return self.data_bytes / sample_rows
        # A row group shares one dictionary, so a sample has too much of it for its rows. Its indices are as
        # wide as the number of distinct values needs.
        values = distinct.in_rows(rows, sample_rows)
        dictionary = self.dictionary_bytes * values / distinct.values / rows
        wider = max(1, math.ceil(math.log2(values))) / max(1, math.ceil(math.log2(distinct.values)))
        return dictionary + self.data_bytes * wider / sample_rows


def _smallest(
    samples: Mapping[str, pa.Array], kinds: Mapping[str, FieldType], group_rows: Mapping[str, int], level: int
) -> dict[str, Encoding]:
    """The candidate of each column with the fewest estimated bytes a row, faster ones preferred."""
    distinct = {name: _Distinct.of(values) for name, values in samples.items()}
    allowed = {name: _allowed(kinds[name], distinct[name]) for name in samples}
    sizes: dict[str, dict[Encoding, float]] = {name: {} for name in samples}
    for encoding in Encoding:
        # A column with one candidate left needs no trial.
        tried = {name: samples[name] for name, left in allowed.items() if encoding in left and len(left) > 1}
        for name, size in _trial(tried, encoding, level).items():
            sizes[name][encoding] = size.per_row(distinct[name], len(samples[name]), group_rows[name])
    return {name: _preferred(left, sizes[name]) for name, left in allowed.items()}


def _allowed(kind: FieldType, distinct: _Distinct) -> list[Encoding]:
    hopeless = distinct.new_values > _NEW_VALUES_MAX
    return [each for each in CANDIDATES[kind] if not (hopeless and each is Encoding.DICTIONARY)]


def _preferred(candidates: Sequence[Encoding], sizes: Mapping[Encoding, float]) -> Encoding:
    best = candidates[0]
    for each in candidates[1:]:
        if sizes[each] < sizes[best] * _WORTHWHILE:
            best = each
    return best


def _trial(samples: Mapping[str, pa.Array], encoding: Encoding, level: int) -> dict[str, _TrialSize]:
    """The size of each sample in one encoding; samples may have different lengths."""
    found: dict[str, _TrialSize] = {}
    for _, same in groupby(sorted(samples, key=lambda name: len(samples[name])), key=lambda name: len(samples[name])):
        names = list(same)
        columns = [str(number) for number in range(len(names))]
        chosen = dict.fromkeys(columns, ColumnEncoding(encoding, level))
        table = pa.Table.from_arrays([samples[name] for name in names], names=columns)
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(sink, table.schema, **writer_options(chosen), write_statistics=False) as writer:
            writer.write_table(table, row_group_size=len(table))
        group = pq.read_metadata(pa.BufferReader(sink.getvalue())).row_group(0)
        for number, name in enumerate(names):
            chunk = group.column(number)
            own = chunk.data_page_offset - chunk.dictionary_page_offset if chunk.has_dictionary_page else 0
            found[name] = _TrialSize(own, chunk.total_compressed_size - own)
    return found


def writer_options(encodings: Mapping[str, ColumnEncoding]) -> dict[str, Any]:
    """The options of Arrow's Parquet writer for columns in these encodings, all of them zstd."""
    coded = {name for name, each in encodings.items() if each.encoding is Encoding.DICTIONARY}
    return {
        "use_dictionary": sorted(coded),
        "column_encoding": {name: each.encoding.value for name, each in encodings.items() if name not in coded},
        "compression": "zstd",
        "compression_level": {name: each.level for name, each in encodings.items()},
    }
