"""Counts the rows of one write that replace others of it: the same table, series and time."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import BinaryIO, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from headrace.producers.router import encode_series
from headrace.schemas.tables import TIME_COLUMN

# 128 MiB of hashes or times; more are on disk.
COMPARED_ROWS_MAX = 16 * 1024 * 1024
# Odd, with its bits spread: the product keeps times of one series apart, and mixes them with the hash of the series.
_TIME_FACTOR = np.int64(-7_046_029_254_386_353_131)

_STORED_STEP_BYTES = 8 << 20

Numbers = npt.NDArray[np.int64]


class ReplacedRows:
    """The rows that were written, as 64-bit hashes of series and time.

    Hashes beyond `rows_max` are kept in a temporary file, 8 bytes each, and memory holds `rows_max` at most. Where
    that disk is full the rows behind are not compared: what is written already must not fail for a count.
    """

    def __init__(self, rows_max: int = COMPARED_ROWS_MAX) -> None:
        self._rows_max = rows_max
        self._hashes: list[Numbers] = []
        self._rows = 0
        self._stored: _StoredNumbers | None = None
        self.exact = True

    def add(self, table: str, rows: pa.Table, tags: Collection[str]) -> None:
        """Add rows of a table."""
        if not rows.num_rows or not self.exact:
            return
        codes, keys = encode_series(table, {name: rows.column(name) for name in tags}, rows.num_rows)
        # Once a series and not once a row.
        hashes = np.array([xxhash.xxh3_64_intdigest(key.encode()) for key in keys.to_pylist()], np.uint64).view(
            np.int64
        )
        self._hashes.append(hashes[codes] ^ np.asarray(rows.column(TIME_COLUMN)) * _TIME_FACTOR)
        self._rows += rows.num_rows
        if self._rows > self._rows_max:
            self._store()

    def finish(self) -> int:
        """Rows that replaced another one; at least so many unless `exact`. To be called once, behind the last `add`."""
        if self._stored is not None:
            self._store()
        if self._stored is None:
            return _repeated(np.sort(np.concatenate(self._hashes))) if self._hashes else 0
        with self._stored as stored:
            try:
                return sum(map(_repeated, stored.parts(self._rows_max)))
            except OSError:
                self.exact = False
                return 0

    def _store(self) -> None:
        try:
            self._stored = self._stored or _StoredNumbers()
            for block in self._hashes:
                self._stored.write(block)
        except OSError:
            self.exact = False
            if self._stored is not None:
                self._stored.close()
            self._stored = None
            return
        self._hashes, self._rows = [], 0


class RepeatedTimes:
    """Finds a time that two rows of one table share; for a table of one series.

    Times beyond `rows_max` are kept in a temporary file, 8 bytes each, and memory holds `rows_max` at most.
    """

    def __init__(self, rows_max: int = COMPARED_ROWS_MAX) -> None:
        self._rows_max = rows_max
        self._blocks: list[Numbers] = []
        self._rows = 0
        self._last: int | None = None
        self._in_order = True
        self._stored: _StoredNumbers | None = None

    def add(self, times: Numbers) -> int | None:
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
        self._store()
        with self._stored as stored:
            found = map(_first_repeated, stored.parts(self._rows_max))
            return next((each for each in found if each is not None), None)

    def _store(self) -> None:
        self._stored = self._stored or _StoredNumbers()
        for block in self._blocks:
            self._stored.write(block)
        self._blocks, self._rows = [], 0


class _StoredNumbers:
    """Numbers of 64 bits in a temporary file."""

    def __init__(self) -> None:
        self._file: BinaryIO = tempfile.TemporaryFile(prefix="headrace-rows-")  # noqa: SIM115 - `close` closes it
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Delete the file."""
        # What a full disk did not take is written once more, and needed by nobody.
        with suppress(OSError):
            self._file.close()

    def write(self, numbers: Numbers) -> None:
        """Append numbers."""
        self._file.write(np.ascontiguousarray(numbers).data)
        self._count += len(numbers)

    def parts(self, part_max: int) -> Iterator[Numbers]:
        """All numbers, each part sorted and hardly larger than `part_max`; equal ones are in one part."""
        # Half full on average, since parts are not equally large.
        count = 2 * self._count // part_max + 1
        self._file.seek(0)
        with ExitStack() as opened:
            files = [opened.enter_context(tempfile.TemporaryFile(prefix="headrace-rows-")) for _ in range(count)]
            while data := self._file.read(_STORED_STEP_BYTES):
                numbers = np.frombuffer(data, np.int64)
                # The high half: the low bits of a product are those of times, which are whole seconds or the like.
                part_of = ((numbers * _TIME_FACTOR).view(np.uint64) >> np.uint64(32)) % np.uint64(count)
                for number, file in enumerate(files):
                    file.write(numbers[part_of == number].data)
            for file in files:
                file.seek(0)
                yield np.sort(np.frombuffer(file.read(), np.int64))


def _first_repeated(ordered: Numbers) -> int | None:
    equal = np.flatnonzero(ordered[1:] == ordered[:-1])
    return int(ordered[equal[0]]) if len(equal) else None


def _repeated(ordered: Numbers) -> int:
    return int((ordered[1:] == ordered[:-1]).sum())
