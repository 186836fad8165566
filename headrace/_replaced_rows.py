"""Counts the rows of one write that replace others of it: the same table, series and time."""

from __future__ import annotations

import tempfile
from collections.abc import Collection
from contextlib import ExitStack
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from headrace.producers.router import encode_series
from headrace.schemas.tables import TIME_COLUMN

# 128 MiB of hashes or times. Hashes of rows behind are not compared, and the count is then a lower bound.
COMPARED_ROWS_MAX = 16 * 1024 * 1024
# Odd, with its bits spread: the product keeps times of one series apart, and mixes them with the hash of the series.
_TIME_FACTOR = np.int64(-7_046_029_254_386_353_131)

_STORED_STEP_BYTES = 8 << 20

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
    """Finds a time that two rows of one table share; for a table of one series.

    Times beyond `rows_max` are kept in a temporary file, 8 bytes each, and memory holds `rows_max` at most.
    """

    def __init__(self, rows_max: int = COMPARED_ROWS_MAX) -> None:
        self._rows_max = rows_max
        self._blocks: list[Times] = []
        self._rows = 0
        self._last: int | None = None
        self._in_order = True
        self._stored: BinaryIO | None = None
        self._stored_rows = 0

    def add(self, times: Times) -> int | None:
        """Add the times of a block; one that the block has twice, None if there is none."""
        if not len(times):
            return None
        ordered = times if (times[1:] > times[:-1]).all() else np.sort(times)
        # Most files are in order of time, and then nothing before can be equal.
        self._in_order = self._in_order and (self._last is None or int(ordered[0]) > self._last)
        self._last = int(ordered[-1])
        self._blocks.append(ordered)
        self._rows += len(ordered)
        if self._rows > self._rows_max:
            self._store()
        return _first_repeated(ordered)

    def finish(self) -> int | None:
        """A time that two rows of different blocks share, None if there is none.

        To be called once, behind the last `add`.
        """
        if self._in_order or self._stored is None:
            if self._stored is not None:
                self._stored.close()
            return None if self._in_order else _first_repeated(np.sort(np.concatenate(self._blocks)))
        with self._stored:
            self._store()
            return self._repeated_in_parts()

    def _store(self) -> None:
        if self._stored is None:
            self._stored = tempfile.TemporaryFile(prefix="headrace-times-")  # noqa: SIM115 - `finish` closes it
        for block in self._blocks:
            self._stored.write(np.ascontiguousarray(block).data)
        self._stored_rows += self._rows
        self._blocks, self._rows = [], 0

    def _repeated_in_parts(self) -> int | None:
        """Split all times by their hash, so that equal ones are in one part, and look at each part."""
        assert self._stored is not None
        # Half full on average, since parts are not equally large.
        count = 2 * self._stored_rows // self._rows_max + 1
        self._stored.seek(0)
        with ExitStack() as opened:
            parts = [opened.enter_context(tempfile.TemporaryFile(prefix="headrace-times-")) for _ in range(count)]
            while data := self._stored.read(_STORED_STEP_BYTES):
                times = np.frombuffer(data, np.int64)
                # The high half: the low bits of a product are those of times, which are whole seconds or the like.
                part_of = ((times * _TIME_FACTOR).view(np.uint64) >> np.uint64(32)) % np.uint64(count)
                for number, part in enumerate(parts):
                    part.write(times[part_of == number].data)
            for part in parts:
                part.seek(0)
                repeated = _first_repeated(np.sort(np.frombuffer(part.read(), np.int64)))
                if repeated is not None:
                    return repeated
        return None


def _first_repeated(ordered: Times) -> int | None:
    equal = np.flatnonzero(ordered[1:] == ordered[:-1])
    return int(ordered[equal[0]]) if len(equal) else None
