"""What `headrace write` refuses although it can be read: implausible times, rows that overwrite each other, NaN."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace._replaced_rows import RepeatedTimes
from headrace.connectors.formats.interface import LINE_COLUMN, REJECTED_LINES
from headrace.connectors.formats.time_rules import TimeRules, instant
from headrace.producers.repeated_rows import RowsRepeat
from headrace.producers.writer import WriterSettings
from headrace.schemas.errors import HeadraceError
from headrace.schemas.tables import TIME_COLUMN, Catalogue

Mask = npt.NDArray[np.bool_]


class RowsNotCompared(HeadraceError):
    """The temporary disk is too small or broken, so repeated times would not be found."""

    exit_code = 3


@dataclass(frozen=True, slots=True)
class FileRules:
    """What the user has allowed, or wants refused, for a whole file."""

    any_time: bool = False
    no_tags: bool = False
    reject_nan: bool = False


class BlockRules:
    """Applies the rules of a file to its blocks, one after the other."""

    def __init__(
        self, catalogue: Catalogue, database: str, settings: WriterSettings, rules: FileRules, ns_per_unit: int
    ) -> None:
        self._catalogue = catalogue
        self._database = database
        self._settings = settings
        self._rules = rules
        self._ns_per_unit = ns_per_unit
        self._seen: dict[str, RepeatedTimes] = {}
        self._units_checked = False

    def check_units(self, tables: Mapping[str, pa.Table]) -> None:
        """Raises TimesImplausible when the first times of a table in the first block are all in another age."""
        if self._units_checked:
            return
        self._units_checked = any(rows.num_rows for rows in tables.values())
        for name, rows in tables.items():
            self._times_of(name).check_unit(rows)

    def check_repeats(self, tables: Mapping[str, pa.Table]) -> None:
        """Raises RowsRepeat when rows of a table that does not exist yet share a time, also with earlier blocks.

        For rows without tags only.
        """
        for name, rows in tables.items():
            if name not in self._seen and not self.is_new(name):
                continue
            seen = self._seen.setdefault(name, RepeatedTimes())
            with _temporary_disk():
                _refuse_repeated(name, seen.add(np.asarray(rows.column(TIME_COLUMN))))

    def finish_repeats(self) -> None:
        """Raises RowsRepeat when any two rows of all blocks share a time. To be called behind the last block."""
        for name, seen in self._seen.items():
            with _temporary_disk():
                _refuse_repeated(name, seen.finish())

    def is_new(self, table: str) -> bool:
        """Whether the cluster does not have the table yet."""
        return self._catalogue.newest(self._database, table).version == 0

    def split(self, table: str, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
        """(rows that are written, lines that are refused); `rows` have line numbers.

        Raises ResolutionFixed.
        """
        found = self._times_of(table).refusals(rows)
        if self._rules.reject_nan:
            found += _nan_refusals(rows)
        if not found:
            return rows, REJECTED_LINES.empty_table()
        good, rejected = np.ones(rows.num_rows, np.bool_), []
        for mask, reason in found:
            # A line has one reason, the first.
            numbers = rows.column(LINE_COLUMN).filter(pa.array(mask & good))
            rejected.append(pa.table([numbers, pa.repeat(pa.scalar(reason), len(numbers))], schema=REJECTED_LINES))
            good &= ~mask
        return rows.filter(pa.array(good)), pa.concat_tables(rejected)

    def _times_of(self, table: str) -> TimeRules:
        resolution = self._settings.resolution_of(self._catalogue.newest(self._database, table))
        return TimeRules(table, resolution, self._rules.any_time, self._ns_per_unit)


def _refuse_repeated(table: str, repeated: int | None) -> None:
    if repeated is not None:
        raise RowsRepeat(
            f"rows of the new table {table!r} share the time {instant(repeated)}, and without tags "
            "the last of them would replace the others",
            action="name the columns that identify a series with `--tags A,B`, or give `--no-tags`",
        )


@contextmanager
def _temporary_disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RowsNotCompared(
            f"the times of a table without tags cannot be kept in {tempfile.gettempdir()}: {error}",
            action="free space there, name the columns of a series with `--tags A,B`, or give `--no-tags`",
        ) from error


def nan_values(rows: pa.Table) -> int:
    """Field values that are NaN."""
    return sum(pc.sum(pc.is_nan(rows.column(name))).as_py() or 0 for name in _decimals(rows))


def _nan_refusals(rows: pa.Table) -> list[tuple[Mask, str]]:
    masks = ((name, np.asarray(pc.fill_null(pc.is_nan(rows.column(name)), False))) for name in _decimals(rows))
    return [(mask, f"field {name!r} is nan") for name, mask in masks if mask.any()]


def _decimals(rows: pa.Table) -> list[str]:
    return [column.name for column in rows.schema if pa.types.is_floating(column.type)]
