"""The series of each row of a user table, by a few integer operations per row instead of a string."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.schemas.errors import HeadraceError
from headrace.schemas.series import escape_table, series_keys

_COMBINED_MAX = 1 << 62


class ColumnMissing(HeadraceError):
    """A table lacks a column that it needs."""


@dataclass(frozen=True, slots=True)
class SeriesRows:
    """`codes[row]` is the place of the row's tag combination in the arrays of `tags` (one string array a
    tag).

    A combination whose tags are absent in two ways (null and empty) may be there twice.
    """

    codes: npt.NDArray[np.int32]
    count: int
    tags: dict[str, pa.StringArray]

    def keys(self, table_name: str) -> pa.StringArray:
        """The series key of each combination."""
        if not self.tags:
            return pa.array([escape_table(table_name)] * self.count, pa.string())
        return series_keys(table_name, self.tags)


def tag_names(table: pa.Table, tags: Sequence[str] | None) -> list[str]:
    """The tag columns of `table`: those named, or the dictionary-typed ones. Raises ColumnMissing."""
    if tags is None:
        return [field.name for field in table.schema if pa.types.is_dictionary(field.type)]
    if missing := [name for name in tags if name not in table.column_names]:
        raise ColumnMissing(f"there is no column {missing[0]!r}", action=f"columns are {', '.join(table.column_names)}")
    return list(tags)


def series_rows(table: pa.Table, tags: Sequence[str]) -> SeriesRows:
    """The distinct tag combinations of `table`, numbered in order of first appearance, and each row's number."""
    combined = np.zeros(table.num_rows, np.int64)
    combinations = 1
    for name in tags:
        indices, size = _indices(table[name])
        # The next product would overflow int64: number only the combinations that occur, of which there are
        # at most rows.
        if combinations * size > _COMBINED_MAX:
            encoded = pc.dictionary_encode(pa.array(combined))
            combined, combinations = encoded.indices.to_numpy().astype(np.int64), len(encoded.dictionary)
        combined = combined * size + indices
        combinations *= size
    encoded = pc.dictionary_encode(pa.array(combined))
    codes, count = encoded.indices.to_numpy(), len(encoded.dictionary)
    first = np.empty(count, np.int64)
    # Assigned from back to front: of equal codes the first row remains.
    first[codes[::-1]] = np.arange(table.num_rows)[::-1]
    return SeriesRows(codes, count, {name: _strings(table[name].take(pa.array(first))) for name in tags})


def _indices(column: pa.ChunkedArray) -> tuple[npt.NDArray[np.int64], int]:
    """A number for the value of each row (null is 0), and one more than the largest possible."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    chunks = column.unify_dictionaries().chunks
    size = len(chunks[0].dictionary) if chunks else 0
    indices = [pc.fill_null(chunk.indices.cast(pa.int64()), -1).to_numpy() + 1 for chunk in chunks]
    return np.concatenate([np.empty(0, np.int64), *indices]), size + 1


def _strings(column: pa.ChunkedArray) -> pa.StringArray:
    decoded = column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
    return pa.concat_arrays(decoded.cast(pa.string()).chunks or [pa.array([], pa.string())])
