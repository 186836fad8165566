"""Rows of one table between the walks and Arrow: plain arrays, cheap to slice, join and reorder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.workload.fields import Values
from headrace.workload.tables import HostTags, TableSpec

NO_FIELD = -1


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one table: host, time (ns), fields, and the index of a null field (`NO_FIELD`: none)."""

    hosts: npt.NDArray[np.int32]
    times: npt.NDArray[np.int64]
    values: list[Values]
    null_field: npt.NDArray[np.int8] | None = None

    def __len__(self) -> int:
        return len(self.times)

    def take(self, where: npt.NDArray[np.int64] | slice) -> Rows:
        """The rows at these places, in this order."""
        nulls = None if self.null_field is None else self.null_field[where]
        return Rows(self.hosts[where], self.times[where], [column[where] for column in self.values], nulls)


def joined(parts: list[Rows]) -> Rows:
    """All rows of `parts` (at least one), in order."""
    if len(parts) == 1:
        return parts[0]
    nulls = [part.null_field for part in parts if part.null_field is not None]
    columns = [np.concatenate(column) for column in zip(*(part.values for part in parts), strict=True)]
    return Rows(
        np.concatenate([part.hosts for part in parts]),
        np.concatenate([part.times for part in parts]),
        columns,
        np.concatenate(nulls) if nulls else None,
    )


def recut(chunks: Iterable[Rows], rows_per_batch: int) -> Iterator[Rows]:
    """The same rows in batches of exactly `rows_per_batch`; the last one may be shorter. No rows are one batch of none."""
    held: list[Rows] = []
    is_cut = False
    for chunk in chunks:
        held.append(chunk)
        if sum(map(len, held)) < rows_per_batch:
            continue
        rows = joined(held)
        # The rest waits for the next chunk: batches must not depend on how the rows were generated.
        whole = len(rows) - len(rows) % rows_per_batch
        for first in range(0, whole, rows_per_batch):
            is_cut = True
            yield rows.take(slice(first, first + rows_per_batch))
        held = [rows.take(slice(whole, None))]
    # A table without rows has columns all the same: its file must be one that can be read.
    if sum(map(len, held)) or (held and not is_cut):
        yield joined(held)


def to_arrow(spec: TableSpec, tags: list[HostTags], rows: Rows) -> pa.Table:
    """A user table: tags as dictionary<int32, string>, `time` as int64 ns, then the fields."""
    columns: dict[str, pa.Array] = {tag.name: tag.column(rows.hosts) for tag in tags}
    columns["time"] = pa.array(rows.times)
    for index, (field, values) in enumerate(zip(spec.fields, rows.values, strict=True)):
        mask = None if rows.null_field is None else rows.null_field == index
        columns[field.name] = pa.array(values, mask=mask)
    return pa.table(columns)
