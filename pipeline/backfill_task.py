"""The files of one Spark task into the forward logs, one after the other, in blocks of bounded size.

The producer of a file is a digest of its content and of the job. So a file that is written again, from whatever
place, gives the messages that replicas have seen, and changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from headrace.connectors.formats.file_blocks import Block, iterate_file
from headrace.connectors.formats.interface import LINE_COLUMN, TAG_TYPE, FormatError
from headrace.connectors.formats.time_rules import TimeRules, as_timestamps
from headrace.pipeline.backfill_plan import (
    PROGRESS_BYTES,
    BackfillJob,
    FileChanged,
    FileRefused,
    PlannedFile,
    file_digest,
    file_state,
)
from headrace.pipeline.sink_task import SinkTask
from headrace.pipeline.source_options import WriteOptions
from headrace.pipeline.task_positions import TaskPositions
from headrace.pipeline.writer_cluster import writer_cluster
from headrace.producers.cluster import Cluster
from headrace.producers.declared import DeclaredTags, DeclaredTypes
from headrace.producers.router import RowTooLarge
from headrace.producers.writer import count_points
from headrace.schemas.errors import HeadraceError
from headrace.schemas.tables import TIME_COLUMN, SchemaError, TypeClash

_REFUSED = (FormatError, SchemaError, TypeClash, RowTooLarge)


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """What became of a file: its rows, or why it was refused."""

    number: int
    digest: str = ""
    rows: int = 0
    points: int = 0


def write_files(job: BackfillJob, files: tuple[PlannedFile, ...], progress: str) -> Iterator[WrittenFile]:
    """Write files in their order. `progress` is a file of this machine for the bytes read of each, or empty.

    Raises FileRefused, FileChanged; WriteFailed, WriteUnknown, LogUnavailable.
    """
    with writer_cluster(job.target) as cluster:
        cluster.tables.refresh()
        for each in files:
            yield _FileTask(cluster, job, each, progress_report(progress, each.number)).write()


def progress_report(path: str, number: int) -> Callable[[int], None]:
    """Puts the bytes read of a file where the driver looks; nothing without a path."""

    def report(count: int) -> None:
        if not path:
            return
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.pwrite(descriptor, count.to_bytes(PROGRESS_BYTES, "little"), number * PROGRESS_BYTES)
        finally:
            os.close(descriptor)

    return report


class _FileTask:
    def __init__(self, cluster: Cluster, job: BackfillJob, file: PlannedFile, report: Callable[[int], None]) -> None:
        self._cluster, self._job, self._file, self._report = cluster, job, file, report
        self._points = 0

    def write(self) -> WrittenFile:
        path, job = self._file.path, self._job
        try:
            digest = file_digest(path)
            positions = TaskPositions(job.producer(path, digest, self._file.folder_tags), self._file.batch, 0)
            options = WriteOptions(job.target, job.options.tags, resolution=job.resolution)
            written = SinkTask(self._cluster, options, positions).write_tables(self._tables())
        except _REFUSED as error:
            raise FileRefused(f"{path}: {error.message}", action=error.action) from error
        except OSError as error:
            raise FileRefused(
                f"{path} cannot be read by a worker: {error.strerror}",
                action="keep the files where every machine of the Spark cluster has them under this path",
            ) from error
        if file_state(path) != self._file.state:
            raise FileChanged(
                f"{path} changed while it was written", action="wait until it is complete, then give --changed"
            )
        return WrittenFile(self._file.number, digest, written.rows, self._points)

    def _tables(self) -> Iterator[pa.Table]:
        job, target, catalogue = self._job, self._job.target, self._cluster.tables.catalogue
        options = replace(
            job.options_of(self._file),
            declared=DeclaredTypes(catalogue, target.database),
            declared_tags=DeclaredTags(catalogue, target.database),
        )
        first = True
        for block in iterate_file(self._file.path, job.format, options, keep_lines=True):
            # Also where no line of the block is left for a table.
            self._check_lines(block)
            for rows in block.parsed.tables.values():
                self._check_times(rows, first=first)
                first = first and not rows.num_rows
                rows = _with_absent(rows.drop_columns([LINE_COLUMN]), job.absent_tags(self._file))
                tags = {column.name for column in rows.schema if pa.types.is_dictionary(column.type)}
                self._points += count_points(rows, {*rows.column_names} - tags - {TIME_COLUMN})
                yield as_timestamps(rows)
            self._report(block.bytes_read)

    @property
    def _unit(self) -> str:
        return "row" if self._job.format == "parquet" else "line"

    def _check_lines(self, block: Block) -> None:
        """Raises FileRefused for columns or lines that cannot be written."""
        path = self._file.path
        for name, reason in block.refused_columns.items():
            raise FileRefused(f"{path}: column {name!r} cannot be a field: {reason}", action="convert it")
        for bad in block.parsed.rejections(1):
            more = block.parsed.rejected.num_rows - 1
            raise FileRefused(
                f"{path}: {self._unit} {bad.line + 1}: {bad.reason}" + (f" (and {more} more)" if more else ""),
                action="correct or remove it, and start again with --changed; rows before it may be written",
            )

    def _check_times(self, rows: pa.Table, *, first: bool) -> None:
        """Raises FileRefused and TimesImplausible for times that the table does not take."""
        job = self._job
        known = self._cluster.tables.catalogue.newest(job.target.database, job.target.table)
        resolution = job.resolution if known.version == 0 else known.resolution
        rules = TimeRules(job.target.table, resolution, job.any_time, job.options.ns_per_unit)
        if first:
            rules.check_unit(rows)
        for mask, reason in rules.refusals(rows):
            line = rows.column(LINE_COLUMN).filter(pa.array(mask))[0].as_py()
            raise FileRefused(
                f"{self._file.path}: {self._unit} {line + 1}: {reason}",
                action="correct it, or see the options for times",
            )


def _with_absent(rows: pa.Table, tags: Sequence[str]) -> pa.Table:
    """The rows with tags that none of them has: the table has these tags, whichever file comes first."""
    for tag in tags:
        rows = rows.append_column(tag, pa.nulls(rows.num_rows, TAG_TYPE))
    return rows


def refusal(error: HeadraceError) -> dict[str, object]:
    """An error as plain values, for the driver."""
    return {
        "type": type(error).__name__,
        "message": error.message,
        "action": error.action,
        "retriable": error.retriable,
    }
