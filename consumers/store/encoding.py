"""Which Parquet encoding each field of a segment is written in: a sample of its values in, a choice out.

Only encodings that Spark's vectorised reader, DuckDB, polars, pandas and pyarrow all decode are candidates.
Spark refuses BYTE_STREAM_SPLIT. Each candidate encodes the sample in memory, and the cheapest wins: its bytes,
and bytes for the time that compression takes. A column that zstd shrinks by too little for its time is not
compressed. Times in this module are constants, never measured: the choice follows from the rows and the
library's version alone, so replicas write equal bytes. It never changes a value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.schemas.tables import FieldType

SAMPLE_ROWS_MAX = 32_768
"""At 8 bytes a value this is the size from which zstd finds the repetitions that it finds in a whole page."""

SAMPLE_SHARE = 128
"""A larger sample is at most one row in this many, so that a choice costs little beside the encoding."""

SAMPLE_ROWS = 2_048
"""A sample has at least so many rows, or all of them."""

TRIED_ROWS_MIN = 512
"""A column with fewer rows keeps the first candidate of its type: a merge soon writes it again."""

SAMPLE_BYTES_MAX = 4 << 20
"""Most text of a sample."""

_BLOCKS = 32
"""A sample is so many ranges of rows, evenly spread: neighbours show repetition, distance shows other series."""

_WORTHWHILE = 0.9
"""A slower candidate must be smaller than this share of a faster one."""

_DISTINCT_SHARE_MAX = 0.25
"""A dictionary is no candidate for a row group with more distinct values than this share of its rows."""

_COMPRESSED_BYTE_COST = 0.01
"""Bytes on disk that are worth sparing zstd one byte, about 4 ns. A column that shrinks by less stays as it is."""


class Encoding(Enum):
    """A Parquet encoding that every reader of segments decodes, by its name in Arrow's writer."""

    DICTIONARY = "RLE_DICTIONARY"
    PLAIN = "PLAIN"
    DELTA_BINARY_PACKED = "DELTA_BINARY_PACKED"
    DELTA_BYTE_ARRAY = "DELTA_BYTE_ARRAY"


@dataclass(frozen=True, slots=True)
class ColumnEncoding:
    """How a column is written: its encoding, and the zstd level of its pages, None for uncompressed."""

    encoding: Encoding
    level: int | None


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
    samples = {name: values for name, values in samples.items() if len(values) >= TRIED_ROWS_MIN}
    group_rows = {name: min(len(fields[name]), row_group_rows) for name in samples}
    return chosen | _cheapest(samples, kinds, group_rows, level)


def sample(values: pa.Array) -> pa.Array:
    """Ranges of rows of a column, evenly spread; a function of the column alone."""
    rows = min(SAMPLE_ROWS_MAX, max(SAMPLE_ROWS, len(values) // SAMPLE_SHARE), len(values))
    if pa.types.is_large_string(values.type) and values.nbytes:
        rows = min(rows, SAMPLE_BYTES_MAX * len(values) // values.nbytes)
    if rows == len(values):
        return values
    size = rows // _BLOCKS
    starts = [block * (len(values) - size) // (_BLOCKS - 1) for block in range(_BLOCKS)]
    return pa.concat_arrays([values.slice(start, size) for start in starts])


@dataclass(frozen=True, slots=True)
class _Distinct:
    """How many values differ in a sample, in its first half, their bytes, and how many rows the sample has."""

    whole: int
    half: int
    value_bytes: int
    rows: int

    @classmethod
    def of(cls, values: pa.Array) -> _Distinct:
        """The counts of one sample."""
        encoded = values.dictionary_encode()
        # Indices are given out in order of first occurrence, so the highest one counts what came before.
        indices = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        whole, half = int(indices.max()) + 1, int(indices[: len(indices) // 2].max()) + 1
        return cls(whole, half, encoded.dictionary.nbytes, len(indices))

    def in_rows(self, rows: int) -> float:
        """The estimated number of distinct values in `rows` rows."""
        # Of K equally frequent values n rows show K (1 - exp(-n / K)). The second half of a sample then shows q
        # times the new values of the first, and n times as many rows (1 - q ** 2n) / (1 - q ** 2) times as
        # many values. As many new values to the end, as of a counter or of long runs, are q = 1.
        times = max(1.0, rows / self.rows)
        q = (self.whole - self.half) / self.half if self.half else 0.0
        return self.whole * (times if q >= 1 else min(times, (1 - q ** (2 * times)) / (1 - q**2)))

    def scaled(self, dictionary_bytes: int, index_bytes: int, rows: int) -> float:
        """Bytes a row in a row group of `rows` rows, of a sample with such a dictionary and such indices."""
        # A row group shares one dictionary, so a sample has too much of it for its rows. Its indices are as
        # wide as the number of distinct values needs.
        values = self.in_rows(rows)
        wider = max(1.0, math.log2(values)) / max(1.0, math.log2(self.whole))
        return dictionary_bytes * values / self.whole / rows + index_bytes * wider / self.rows


@dataclass(frozen=True, slots=True)
class _TrialSize:
    """Bytes of an encoded sample: its compressed dictionary, its other compressed pages, and all of them
    before compression.
    """

    dictionary_bytes: int
    data_bytes: int
    raw_bytes: int

    def costs(self, distinct: _Distinct, rows: int) -> tuple[float, float]:
        """What a row costs in a row group of `rows` rows, in bytes: (uncompressed, compressed)."""
        if self.dictionary_bytes and distinct.whole:
            in_dictionary = min(distinct.value_bytes, self.raw_bytes)
            raw = distinct.scaled(in_dictionary, self.raw_bytes - in_dictionary, rows)
            small = distinct.scaled(self.dictionary_bytes, self.data_bytes, rows)
        else:
            raw, small = self.raw_bytes / distinct.rows, self.data_bytes / distinct.rows
        return raw, small + raw * _COMPRESSED_BYTE_COST


@dataclass(frozen=True, slots=True)
class _Priced:
    """A candidate with the cost of a row, and whether zstd found repetitions in it."""

    column: ColumnEncoding
    cost: float
    repeats: bool


def _cheapest(
    samples: Mapping[str, pa.Array], kinds: Mapping[str, FieldType], group_rows: Mapping[str, int], level: int
) -> dict[str, ColumnEncoding]:
    """The candidate of least cost for each column, faster ones preferred."""
    distinct = {name: _Distinct.of(values) for name, values in samples.items()}
    allowed = {name: _allowed(kinds[name], distinct[name].in_rows(rows) / rows) for name, rows in group_rows.items()}
    best: dict[str, _Priced] = {}
    for place in range(max(map(len, allowed.values()), default=0)):
        # The candidates of a type are tried one after the other: the cost of one may rule out the next.
        tried = {name: left[place] for name, left in allowed.items() if place < len(left)}
        tried = {name: each for name, each in tried.items() if _can_win(each, samples[name], best.get(name))}
        chosen = {name: ColumnEncoding(each, level) for name, each in tried.items()}
        for name, size in _trial({name: samples[name] for name in chosen}, chosen).items():
            raw, compressed = size.costs(distinct[name], group_rows[name])
            repeats = compressed < raw * _WORTHWHILE
            priced = _Priced(chosen[name], compressed, repeats)
            if raw <= compressed:
                priced = _Priced(ColumnEncoding(chosen[name].encoding, None), raw, repeats)
            if name not in best or priced.cost < best[name].cost * _WORTHWHILE:
                best[name] = priced
    return {name: priced.column for name, priced in best.items()}


def _allowed(kind: FieldType, distinct_share: float) -> list[Encoding]:
    if not distinct_share:
        # Nulls have no pages of values, in any encoding.
        return [CANDIDATES[kind][0]]
    hopeless = distinct_share > _DISTINCT_SHARE_MAX
    return [each for each in CANDIDATES[kind] if not (hopeless and each is Encoding.DICTIONARY)]


def _can_win(candidate: Encoding, values: pa.Array, best: _Priced | None) -> bool:
    if best is None or candidate is not Encoding.PLAIN or values.type != pa.float64():
        return True
    # PLAIN beats indices only by repetitions of several values, and zstd finds those in the indices as well. PLAIN
    # pages have the bytes of their values, and each of them costs, however well they compress.
    raw = (len(values) - values.null_count) * 8
    return best.repeats and raw / len(values) * _COMPRESSED_BYTE_COST < best.cost * _WORTHWHILE


def _trial(samples: Mapping[str, pa.Array], encodings: Mapping[str, ColumnEncoding]) -> dict[str, _TrialSize]:
    """The size of each sample in its encoding; samples may have different lengths."""
    found: dict[str, _TrialSize] = {}
    for _, same in groupby(sorted(samples, key=lambda name: len(samples[name])), key=lambda name: len(samples[name])):
        names = list(same)
        table = pa.Table.from_arrays([samples[name] for name in names], names=names)
        options = writer_options({name: encodings[name] for name in names})
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(sink, table.schema, **options, write_statistics=False) as writer:
            writer.write_table(table, row_group_size=len(table))
        group = pq.read_metadata(pa.BufferReader(sink.getvalue())).row_group(0)
        for number, name in enumerate(names):
            chunk = group.column(number)
            own = chunk.data_page_offset - chunk.dictionary_page_offset if chunk.has_dictionary_page else 0
            found[name] = _TrialSize(own, chunk.total_compressed_size - own, chunk.total_uncompressed_size)
    return found


def writer_options(encodings: Mapping[str, ColumnEncoding]) -> dict[str, Any]:
    """The options of Arrow's Parquet writer for columns in these encodings, zstd or uncompressed."""
    coded = {name for name, each in encodings.items() if each.encoding is Encoding.DICTIONARY}
    return {
        "use_dictionary": sorted(coded),
        "column_encoding": {name: each.encoding.value for name, each in encodings.items() if name not in coded},
        "compression": {name: "none" if each.level is None else "zstd" for name, each in encodings.items()},
        "compression_level": {name: each.level for name, each in encodings.items() if each.level is not None},
    }
