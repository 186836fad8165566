"""The workloads `cpu` and `iot`: data sets in the manner of TSBS, as streams of Arrow tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import pyarrow as pa

from headrace.schemas.errors import HeadraceError
from headrace.workload.disorder import Fates, count_kept, disordered
from headrace.workload.fields import FieldWalks
from headrace.workload.rows import Rows, recut, to_arrow
from headrace.workload.streams import BLOCK_HOSTS, block_count
from headrace.workload.tables import CPU, DIAGNOSTICS, READINGS, HostTags, TableSpec, host_tags, truck_tags

DEFAULT_START_NS = 1_767_225_600_000_000_000  # 2026-01-01T00:00:00Z
DEFAULT_INTERVAL_S = 10
DEFAULT_ROWS_PER_BATCH = 100_000
HOSTS_MAX = 1_000_000
_NS_PER_S = 1_000_000_000
_CHUNK_ROWS = 1 << 17


class WorkloadInvalid(HeadraceError):
    """An impossible data set: a number out of range, an unknown table."""


@dataclass(frozen=True)
class Workload:
    """A data set: `hosts` series a table, a row every `interval_s` from `start_ns` (ns UTC) for `duration_s`
    seconds.

    Two equal workloads give the same rows in the same order, on every machine and for every batch size; the
    rows of a host are the same for every number of hosts (in order only: disorder depends on the place in the
    table). Raises WorkloadInvalid on construction.
    """

    kind: Literal["cpu", "iot"]
    hosts: int
    start_ns: int
    duration_s: float
    interval_s: float = DEFAULT_INTERVAL_S
    seed: int = 0
    disorder: bool = False

    def __post_init__(self) -> None:
        what = "trucks" if self.kind == "iot" else "hosts"
        if not 1 <= self.hosts <= HOSTS_MAX:
            raise WorkloadInvalid(f"{self.hosts} {what}: give 1 to {HOSTS_MAX}")
        # `not … >=` instead of `<`: NaN fails every comparison, and so is refused.
        if not self.seed >= 0:
            raise WorkloadInvalid(f"seed {self.seed} is negative", action="give 0 or more")
        if not self.interval_s >= 1e-9:
            raise WorkloadInvalid(f"an interval of {self.interval_s} s is too short", action="give 1e-9 s or more")
        if not self.interval_s <= self.duration_s < float("inf"):
            raise WorkloadInvalid(
                f"{self.duration_s} s hold no row at an interval of {self.interval_s} s",
                action="give a longer duration",
            )
        limits = np.iinfo(np.int64)
        if not limits.min <= self.start_ns <= self.start_ns + self.steps * self._interval_ns <= limits.max:
            raise WorkloadInvalid(
                "the data set leaves the years 1677 to 2262", action="start nearer to today, or make it shorter"
            )

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables, in order."""
        return tuple(spec.name for spec in self._specs)

    @property
    def tags(self) -> tuple[str, ...]:
        """Names of the tags, the same in every table."""
        return tuple(tag.name for tag in self._host_tags)

    @property
    def steps(self) -> int:
        """Rows of one host in one table, disorder apart."""
        return int(round(self.duration_s * _NS_PER_S) // self._interval_ns)

    @property
    def rows(self) -> int:
        """Rows in all tables. With disorder the first call takes about a second per 20 M rows."""
        return sum(rows for rows, _ in self._counts.values())

    @property
    def points(self) -> int:
        """Field values that are not null, in all tables; costs the same as `rows`."""
        return sum(points for _, points in self._counts.values())

    def rows_of(self, table: str) -> int:
        """Rows in one table."""
        return self._counts[table][0]

    def points_of(self, table: str) -> int:
        """Field values that are not null in one table."""
        return self._counts[table][1]

    def chosen(self, tables: Sequence[str] | None) -> tuple[str, ...]:
        """These tables in the order of the workload, None for all.

        Raises WorkloadInvalid for one that it does not have.
        """
        if unknown := [name for name in tables or () if name not in self.tables]:
            raise WorkloadInvalid(f"{self.kind} has no table {unknown[0]!r}", action=f"it has {', '.join(self.tables)}")
        return tuple(name for name in self.tables if tables is None or name in tables)

    def batches(
        self, rows_per_batch: int = DEFAULT_ROWS_PER_BATCH, tables: Sequence[str] | None = None
    ) -> Iterator[tuple[str, pa.Table]]:
        """(table name, rows), each table in turn; a batch has exactly `rows_per_batch` rows, a table's last
        one fewer.

        Tags are dictionary<int32, string>, `time` is int64 ns, fields are float64 or int64. Each call starts
        from the beginning; memory holds a few batches. Raises WorkloadInvalid for a table that this workload
        does not have.
        """
        if rows_per_batch < 1:
            raise WorkloadInvalid(f"{rows_per_batch} rows a batch: give 1 or more")
        wanted = self.chosen(tables)
        return self._in_turn(
            {spec.name: self._table(spec, rows_per_batch) for spec in self._specs if spec.name in wanted}
        )

    def read(self, table: str) -> pa.Table:
        """One whole table in memory; for tests and small sets."""
        return pa.concat_tables([batch for _, batch in self.batches(tables=[table])]).combine_chunks()

    @staticmethod
    def _in_turn(streams: dict[str, Iterator[pa.Table]]) -> Iterator[tuple[str, pa.Table]]:
        # A batch of each table in turn, so that all tables grow together as those of a real fleet do.
        while streams:
            for name in tuple(streams):
                batch = next(streams[name], None)
                if batch is None:
                    del streams[name]
                else:
                    yield name, batch

    def _table(self, spec: TableSpec, rows_per_batch: int) -> Iterator[pa.Table]:
        chunks = self._chunks(spec)
        if self.disorder:
            chunks = disordered(chunks, self._fates(spec))
        return (to_arrow(spec, self._host_tags, rows) for rows in recut(chunks, rows_per_batch))

    def _chunks(self, spec: TableSpec) -> Iterator[Rows]:
        """All rows in order, about `_CHUNK_ROWS` at once, whole steps always."""
        walks = FieldWalks(spec.fields, self.seed, spec.table_id, self.hosts)
        # Any size gives the same rows: the random streams continue from step to step.
        chunk_steps = max(1, _CHUNK_ROWS // (block_count(self.hosts) * BLOCK_HOSTS))
        for first in range(0, self.steps, chunk_steps):
            steps = min(chunk_steps, self.steps - first)
            times = self.start_ns + self._interval_ns * np.arange(first, first + steps, dtype=np.int64)
            hosts = np.tile(np.arange(self.hosts, dtype=np.int32), steps)
            yield Rows(hosts, np.repeat(times, self.hosts), walks.advance(steps))

    def _fates(self, spec: TableSpec) -> Fates:
        return Fates(self.seed, spec.table_id, self.hosts, len(spec.fields))

    @cached_property
    def _counts(self) -> dict[str, tuple[int, int]]:
        return {spec.name: self._count(spec) for spec in self._specs}

    def _count(self, spec: TableSpec) -> tuple[int, int]:
        rows, nulls = self.hosts * self.steps, 0
        if self.disorder:
            rows, nulls = count_kept(self._fates(spec), rows)
        return rows, rows * len(spec.fields) - nulls

    @property
    def _specs(self) -> tuple[TableSpec, ...]:
        return (CPU,) if self.kind == "cpu" else (READINGS, DIAGNOSTICS)

    @cached_property
    def _host_tags(self) -> list[HostTags]:
        return (host_tags if self.kind == "cpu" else truck_tags)(self.hosts, self.seed)

    @property
    def _interval_ns(self) -> int:
        return round(self.interval_s * _NS_PER_S)


def cpu(
    hosts: int,
    start_ns: int = DEFAULT_START_NS,
    duration_s: float = 3_600,
    interval_s: float = DEFAULT_INTERVAL_S,
    seed: int = 0,
) -> Workload:
    """Servers: table `cpu`, 10 tags, 10 int64 fields that walk in [0, 100]."""
    return Workload("cpu", hosts, start_ns, duration_s, interval_s, seed)


def iot(
    trucks: int,
    start_ns: int = DEFAULT_START_NS,
    duration_s: float = 3_600,
    interval_s: float = DEFAULT_INTERVAL_S,
    seed: int = 0,
    disorder: bool = False,
) -> Workload:
    """A fleet: tables `readings` (7 float64 fields) and `diagnostics` (2 float64, 1 int64), each with 8 tags."""
    return Workload("iot", trucks, start_ns, duration_s, interval_s, seed, disorder)
