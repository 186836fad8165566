"""A workload as files, or as text on a stream. A file appears under its name only when it is complete."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.schemas.tables import TIME_COLUMN
from headrace.workload.encode import json_lines_bytes, line_protocol_bytes
from headrace.workload.workload import Workload, WorkloadInvalid

PARTIAL_SUFFIX = ".partial"


class Format(StrEnum):
    """The formats a workload is written in."""

    PARQUET = "parquet"
    ARROW = "arrow"
    INFLUX = "influx"
    JSON = "json"

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Suffixes of such files; new files get the first one."""
        return _SUFFIXES[self]

    @property
    def is_text(self) -> bool:
        """Whether it can be written to a stream."""
        return self in (Format.INFLUX, Format.JSON)


_SUFFIXES = {
    Format.PARQUET: (".parquet",),
    Format.ARROW: (".arrow", ".ipc", ".feather"),
    Format.INFLUX: (".lp", ".influx", ".txt"),
    Format.JSON: (".json", ".jsonl", ".ndjson"),
}

Sink = Callable[[str, pa.Table], None]
"""Writes the next rows of a table, by table name."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What has been written so far."""

    rows: int
    points: int


def format_of(output: str) -> Format:
    """The format whose files end as this name does; Parquet for any other name."""
    suffix = Path(output).suffix.lower()
    return next((form for form in Format if suffix in form.suffixes), Format.PARQUET)


def target_files(workload: Workload, form: Format, output: Path, tables: Sequence[str]) -> dict[str, Path]:
    """The file of each table.

    An `output` that ends in a suffix of the format, and is no directory, is the one file of all tables; only
    line protocol can hold more than one. Anything else is a directory for one file a table. Raises
    WorkloadInvalid.
    """
    if output.is_dir() or output.suffix.lower() not in form.suffixes:
        return {name: output / f"{name}{form.suffixes[0]}" for name in tables}
    if len(tables) > 1 and form is not Format.INFLUX:
        raise _one_table_only(workload, f"one {form} file", tables)
    return dict.fromkeys(tables, output)


def write_files(workload: Workload, form: Format, files: dict[str, Path]) -> Generator[Progress, None, None]:
    """Write the tables to their files, and yield the progress after each batch; at the end the files are
    there.

    Missing directories are created, existing files replaced. A write that fails or is closed early leaves no
    file. Raises OSError.
    """
    with ExitStack() as stack:
        opened = {path: stack.enter_context(_complete_or_absent(path)) for path in dict.fromkeys(files.values())}
        sinks = {path: stack.enter_context(_sink(workload, form, file)) for path, file in opened.items()}
        yield from _pump(workload, {name: sinks[path] for name, path in files.items()})


def write_stream(
    workload: Workload, form: Format, stream: BinaryIO, tables: Sequence[str]
) -> Generator[Progress, None, None]:
    """Write the tables as text, and yield the progress after each batch. Raises WorkloadInvalid, OSError."""
    if not form.is_text:
        raise WorkloadInvalid(
            f"{form} cannot be written to standard output", action="give --output a path, or a text format"
        )
    if len(tables) > 1 and form is Format.JSON:
        raise _one_table_only(workload, f"one {form} stream", tables)
    sink = _text_sink(form, stream)
    yield from _pump(workload, dict.fromkeys(tables, sink))


def _pump(workload: Workload, sinks: dict[str, Sink]) -> Iterator[Progress]:
    rows = points = 0
    for name, batch in workload.batches(tables=list(sinks)):
        sinks[name](name, batch)
        rows += batch.num_rows
        points += point_count(batch, workload.tags)
        yield Progress(rows, points)


def point_count(table: pa.Table, tags: Sequence[str]) -> int:
    """Field values of a user table that are not null."""
    fields = [name for name in table.column_names if name not in tags and name != TIME_COLUMN]
    nulls = sum(table[name].null_count for name in fields)
    return int(table.num_rows * len(fields) - nulls)


def _one_table_only(workload: Workload, what: str, tables: Sequence[str]) -> WorkloadInvalid:
    message = f"{what} cannot hold the {len(tables)} tables of {workload.kind}"
    return WorkloadInvalid(message, action=f"give --output a directory, or choose one with --tables {tables[0]}")


@contextmanager
def _complete_or_absent(path: Path) -> Iterator[BinaryIO]:
    """A file that gets its name when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + PARTIAL_SUFFIX)
    try:
        with partial.open("wb") as file:
            yield file
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def _sink(workload: Workload, form: Format, file: BinaryIO) -> Iterator[Sink]:
    if form.is_text:
        yield _text_sink(form, file)
        return
    writer: _ArrowWriter = (_ParquetWriter if form is Format.PARQUET else _ArrowWriter)(file, workload.tags)
    try:
        yield lambda _, batch: writer.write(batch)
    finally:
        writer.close()


def _text_sink(form: Format, stream: BinaryIO) -> Sink:
    def write(name: str, batch: pa.Table) -> None:
        stream.write(line_protocol_bytes(name, batch) if form is Format.INFLUX else json_lines_bytes(batch))

    return write


class _ArrowWriter:
    """An Arrow IPC file, opened with the schema of its first batch."""

    def __init__(self, file: BinaryIO, tags: Sequence[str]) -> None:
        self._file = file
        self._tags = list(tags)
        self._writer: pa.ipc.RecordBatchFileWriter | pq.ParquetWriter | None = None

    def write(self, batch: pa.Table) -> None:
        if self._writer is None:
            self._writer = self._open(batch.schema)
        self._writer.write_table(batch)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _open(self, schema: pa.Schema) -> pa.ipc.RecordBatchFileWriter | pq.ParquetWriter:
        return pa.ipc.new_file(self._file, schema, options=pa.ipc.IpcWriteOptions(compression="lz4"))


class _ParquetWriter(_ArrowWriter):
    """A Parquet file with one row group a batch."""

    def _open(self, schema: pa.Schema) -> pa.ipc.RecordBatchFileWriter | pq.ParquetWriter:
        # Times at equal intervals have equal deltas, which this encoding packs to almost nothing.
        encodings = {TIME_COLUMN: "DELTA_BINARY_PACKED"}
        return pq.ParquetWriter(
            self._file, schema, compression="zstd", use_dictionary=self._tags, column_encoding=encodings
        )
