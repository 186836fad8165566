"""Disorder as in TSBS: rows that never arrive, rows and batches of rows that arrive late, fields that are
missing.

Rows come in batches of 10 entries. 1 % of the batches are missing, 5 % come up to 60 steps late. Of the
entries of the others 10 % are missing, 30 % come up to 3 steps late, and 10 % lack one field. What happens to
a row depends on its place in the table alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.workload.rows import NO_FIELD, Rows, joined
from headrace.workload.streams import Purpose, generator

BATCH_ENTRIES = 10
BATCH_MISSING_CHANCE = 0.01
BATCH_LATE_CHANCE = 0.05
BATCH_LATE_STEPS_MAX = 60
ENTRY_MISSING_CHANCE = 0.10
ENTRY_LATE_CHANCE = 0.30
ENTRY_LATE_STEPS_MAX = 3
NULL_FIELD_CHANCE = 0.10
_COUNT_ROWS = 1 << 18


@dataclass(frozen=True, slots=True)
class Fate:
    """For consecutive rows: which are kept, how many rows each is late, which of its fields is null."""

    kept: npt.NDArray[np.bool_]
    delay_rows: npt.NDArray[np.int64]
    null_field: npt.NDArray[np.int8]


class Fates:
    """The fates of the rows of one table, in order."""

    def __init__(self, seed: int, table_id: int, hosts: int, fields: int) -> None:
        self._entry_stream = generator(seed, table_id, Purpose.DISORDER_ENTRY)
        self._batch_stream = generator(seed, table_id, Purpose.DISORDER_BATCH)
        self._hosts = hosts
        self._fields = fields
        self._next_row = 0
        self._open_batch = np.empty((0, 2))

    def draw(self, rows: int) -> Fate:
        """The fates of the next `rows` rows; how rows are spread over calls makes no difference."""
        missing, late, null = self._entry_stream.random((rows, 3)).T
        batch_missing, batch_late = self._batch_numbers(rows).T
        kept = (missing >= ENTRY_MISSING_CHANCE) & (batch_missing >= BATCH_MISSING_CHANCE)
        delay = self._delay(late, ENTRY_LATE_CHANCE, ENTRY_LATE_STEPS_MAX)
        delay += self._delay(batch_late, BATCH_LATE_CHANCE, BATCH_LATE_STEPS_MAX)
        # The number that decided on a null also picks its field: scaled, it is uniform again.
        chosen = (null * (self._fields / NULL_FIELD_CHANCE)).astype(np.int64)
        null_field = np.where(null < NULL_FIELD_CHANCE, np.minimum(chosen, self._fields - 1), NO_FIELD)
        return Fate(kept, delay, null_field.astype(np.int8))

    def _delay(self, uniform: npt.NDArray[np.float64], chance: float, steps_max: int) -> npt.NDArray[np.int64]:
        """Rows of delay: 1 to `steps_max` steps of all hosts where `uniform` is below `chance`, else 0."""
        span = steps_max * self._hosts
        return np.where(uniform < chance, 1 + (uniform * (span / chance)).astype(np.int64), 0)

    def _batch_numbers(self, rows: int) -> npt.NDArray[np.float64]:
        """The random numbers of the batch of each of the next rows; a batch not yet complete keeps its own."""
        offset = self._next_row % BATCH_ENTRIES
        batches = -(-(offset + rows) // BATCH_ENTRIES)
        drawn = self._batch_stream.random((batches - len(self._open_batch), 2))
        numbers = np.concatenate([self._open_batch, drawn])
        self._next_row += rows
        self._open_batch = numbers[-1:] if self._next_row % BATCH_ENTRIES else np.empty((0, 2))
        return np.repeat(numbers, BATCH_ENTRIES, axis=0)[offset : offset + rows]


def disordered(chunks: Iterable[Rows], fates: Fates) -> Iterator[Rows]:
    """The rows of `chunks` (a whole table) as they arrive; memory holds about 60 steps of late rows."""
    pending: Rows | None = None
    pending_keys = np.empty((0, 2), np.int64)
    next_row = 0
    for chunk in chunks:
        fate = fates.draw(len(chunk))
        places = next_row + np.flatnonzero(fate.kept)
        arrivals = places + fate.delay_rows[fate.kept]
        fresh = Rows(chunk.hosts, chunk.times, chunk.values, fate.null_field).take(places - next_row)
        next_row += len(chunk)
        held = fresh if pending is None else joined([pending, fresh])
        keys = np.concatenate([pending_keys, np.stack([arrivals, places], axis=1)])
        order = np.lexsort((keys[:, 1], keys[:, 0]))
        # No later row can arrive before `next_row`: delays are never negative.
        due = int(np.searchsorted(keys[order, 0], next_row))
        yield held.take(order[:due])
        pending, pending_keys = held.take(order[due:]), keys[order[due:]]
    if pending is not None:
        yield pending


def count_kept(fates: Fates, rows: int) -> tuple[int, int]:
    """How many of the next `rows` rows are kept, and how many of their fields are null."""
    kept = nulls = 0
    for first in range(0, rows, _COUNT_ROWS):
        fate = fates.draw(min(_COUNT_ROWS, rows - first))
        kept += int(np.count_nonzero(fate.kept))
        nulls += int(np.count_nonzero(fate.kept & (fate.null_field != NO_FIELD)))
    return kept, nulls
