"""Counts the rows of one write that replace others of it: the same table, series and time."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from headrace.producers.router import encode_series
from headrace.schemas.tables import TIME_COLUMN

# 128 MiB of hashes. Rows behind are not compared, and the count is then a lower bound.
COMPARED_ROWS_MAX = 16 * 1024 * 1024
# Odd, with its bits spread: the product keeps times of one series apart, and mixes them with the hash of the series.
_TIME_FACTOR = np.int64(-7_046_029_254_386_353_131)

Times = npt.NDArray[np.int64]


class ReplacedRows:
    """The rows that were written, as 64-bit hashes of series and time."""

    def __init__(self, rows_max: int = COMPARED_ROWS_MAX) -> None:
        self._rows_max = rows_max
        self._hashes: list[npt.NDArray[np.int64]] = []
        self._compared = 0
        self.exact = True

    def add(self, table: str, rows: pa.Table, tags: Collection[str]) -> None:
        """Add rows of a table."""
        left = self._rows_max - self._compared
        self.exact = self.exact and rows.num_rows <= left
        rows = rows.slice(0, left)
        if not rows.num_rows:
            return
        codes, keys = encode_series(table, {name: rows.column(name) for name in tags}, rows.num_rows)
        # Once a series and not once a row.
        hashes = np.array([xxhash.xxh3_64_intdigest(key.encode()) for key in keys.to_pylist()], np.uint64).view(
            np.int64
        )
        self._hashes.append(hashes[codes] ^ np.asarray(rows.column(TIME_COLUMN)) * _TIME_FACTOR)
        self._compared += rows.num_rows

    def count(self) -> int:
        """Rows that replaced another one."""
        if not self._hashes:
            return 0
        # One array of all, kept: the next count adds to it.
        self._hashes = [np.sort(np.concatenate(self._hashes))]
        ordered = self._hashes[0]
        return int((ordered[1:] == ordered[:-1]).sum())


class RepeatedTimes:
    """Finds the first time that two rows of one table share; for a table of one series."""

    def __init__(self, rows_max: int = COMPARED_ROWS_MAX) -> None:
        self._rows_max = rows_max
        self._times: Times = np.empty(0, np.int64)

    def add(self, times: Times) -> int | None:
        """Add the times of more rows; one that is there twice, None while there is none."""
        added = np.sort(times)
        # Most files are in order of time, and then nothing before can be equal.
        in_order = not len(added) or not len(self._times) or added[0] > self._times[-1]
        together = added if in_order else np.sort(np.concatenate((self._times, added)))
        equal = np.flatnonzero(together[1:] == together[:-1])
        if len(equal):
            return int(together[equal[0]])
        if len(self._times) < self._rows_max:
            self._times = np.concatenate((self._times, added)) if in_order else together
        return None
