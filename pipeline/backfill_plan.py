"""Which files a backfill writes: those of its patterns, without those that an earlier run has written.

Every file is checked by its header or footer before the first row of any is written.
"""

from __future__ import annotations

import glob
import gzip
import os
import time
import zlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from headrace.connectors.formats.arrow_tables import is_field_type
from headrace.connectors.formats.csv_lines import header_of
from headrace.connectors.formats.interface import FormatError, FormatOptions
from headrace.connectors.formats.lines import lines_of_buffer
from headrace.pipeline.backfill_state import BackfillState, FileState, Known
from headrace.pipeline.partition_folders import tags_of_folders, undecided_folders
from headrace.pipeline.source_options import Target, near
from headrace.schemas.errors import HeadraceError
from headrace.schemas.tables import TimeResolution

BackfillFormat = Literal["parquet", "csv"]
FORMATS: tuple[BackfillFormat, ...] = ("parquet", "csv")
HEADER_BYTES_MAX = 1 << 20
"""Where the first line of a CSV ends at the latest."""
NAMED_MAX = 3
"""Files that an error names."""
CHUNK_BYTES = 32 << 20
CHUNK_FILES = 64
"""Small files share a task, which costs a tenth of a second."""
PROGRESS_BYTES = 8
"""Of each file, in the file of this machine by which tasks tell how far they are."""
FolderTags = tuple[tuple[str, str], ...]
"""The tags that the names of folders give to every row of a file."""
_GZIP_MAGIC, _PARQUET_MAGIC = b"\x1f\x8b", b"PAR1"


class FilesMissing(HeadraceError):
    """A pattern without a file."""

    exit_code = 2


class FileRefused(HeadraceError):
    """A file that cannot be written as it is. The message names it."""

    exit_code = 3


class FileChanged(HeadraceError):
    """A file is another one than when it was written, in whole or in part."""

    exit_code = 3


@dataclass(frozen=True, slots=True)
class BackfillJob:
    """What is written where, and how it is read. Plain values, which Spark pickles to its workers."""

    target: Target
    format: BackfillFormat
    options: FormatOptions = field(default_factory=FormatOptions)
    resolution: TimeResolution = TimeResolution.US
    any_time: bool = False
    ordered: bool = False
    """Whether rows of a file win against those of all files before it, by name."""
    ignores_folders: bool = False
    """Whether columns that only the names of folders have, and that are no tags, are left out."""
    drops: int = 0
    """How often the table was dropped: what was written before is no repeat of what is written now."""

    def producer(self, path: str, content: str, folder_tags: FolderTags = ()) -> str:
        """The producer of a file with this digest of its content: the same for every repeat of it."""
        # In order, a file may have the content of one before, and must win against what came between.
        place = f"-{_digest(path.encode(errors='surrogateescape'))}" if self.ordered else ""
        # Of two partitions the same content is not the same rows.
        tags = f"-{_digest(repr(folder_tags).encode())}" if folder_tags else ""
        return f"file-{self.digest}-{content}{place}{tags}"

    def options_of(self, file: PlannedFile) -> FormatOptions:
        """How a file is read: with the tags of its folders in every row. A folder without a value leaves `--tag` its."""
        named, given = dict(file.folder_tags), {name: value for name, value in file.folder_tags if value}
        return replace(
            self.options,
            tags=tuple(tag for tag in self.options.tags if tag not in named),
            static_tags=tuple((dict(self.options.static_tags) | given).items()),
        )

    def absent_tags(self, file: PlannedFile) -> tuple[str, ...]:
        """The tags that no row of a file has, because its folders name them without a value."""
        static = dict(self.options.static_tags)
        return tuple(name for name, value in file.folder_tags if not value and name not in static)

    @property
    def digest(self) -> str:
        """Equal for jobs that make equal rows of equal files."""
        target, options = self.target, self.options
        rules = (options.tags, options.static_tags, options.time_column, options.time_unit, options.time_format)
        parts = (target.cluster, target.name, self.format, rules, options.delimiter, self.any_time)
        return _digest(repr((*parts, self.drops) if self.drops else parts).encode())


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file that is to be written; `number` counts from 0 in the plan, `batch` is that of its producer."""

    number: int
    path: str
    state: FileState
    batch: int = 1
    folder_tags: FolderTags = ()


@dataclass(frozen=True, slots=True)
class BackfillPlan:
    """The files to write, in order of name, and how many were written before."""

    files: tuple[PlannedFile, ...]
    written_before: int = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(each.state.size for each in self.files)

    def chunks(self) -> list[tuple[PlannedFile, ...]]:
        """The files in the order of the plan, in parts of about CHUNK_BYTES."""
        found: list[tuple[PlannedFile, ...]] = []
        held: list[PlannedFile] = []
        for each in self.files:
            held.append(each)
            if len(held) >= CHUNK_FILES or sum(one.state.size for one in held) >= CHUNK_BYTES:
                found.append(tuple(held))
                held = []
        return [*found, tuple(held)] if held else found


def find_files(patterns: Iterable[str]) -> list[str]:
    """The absolute paths of all files of the patterns, sorted, each once. Raises FilesMissing."""
    found: set[str] = set()
    for pattern in patterns:
        if os.path.isdir(pattern):
            raise FilesMissing(f"{pattern} is a directory", action=f"name its files, such as '{pattern}/*.parquet'")
        # A name with brackets is itself before it is a pattern.
        paths = [pattern] if os.path.isfile(pattern) else glob.glob(pattern, recursive=True)
        files = [os.path.abspath(path) for path in paths if os.path.isfile(path)]
        if not files:
            raise FilesMissing(
                f"no file matches {pattern}", action="check the path; ** matches any folders, as in 'data/**/*.csv'"
            )
        found.update(files)
    return sorted(found)


def plan_files(
    job: BackfillJob,
    paths: Sequence[str],
    state: BackfillState,
    table_tags: Collection[str] = (),
    *,
    again: bool = False,
    changed: bool = False,
    now_ms: int | None = None,
) -> BackfillPlan:
    """The files that are to be written. `again`: also those that were; `changed`: also those that differ now.

    `table_tags` are those that the table has, and `now_ms` is the time since 1970 (None = by the clock). Raises
    FileRefused, and FileChanged unless `changed`.
    """
    # Other runs may have written a file again, with a state of their own: the time is above all their numbers.
    least = (time.time_ns() // 1_000_000 if now_ms is None else now_ms) if again else 1
    planned: list[PlannedFile] = []
    differing: list[str] = []
    for path in paths:
        now, batch = file_state(path), least
        known = state.known(path)
        if known is not None:
            same = _is_same(path, now, known)
            if same and known.done and not again:
                continue
            if not same:
                differing.append(path)
            # A batch that was begun and not finished is repeated: replicas drop what they have of it.
            batch = known.batch if same and not again else max(known.batch + 1, least)
        planned.append(PlannedFile(len(planned), path, now, batch))
    if differing and not changed:
        raise FileChanged(
            f"{_named(differing)} changed since a backfill wrote {'it' if len(differing) == 1 else 'them'}",
            action="give --changed to write what is there now; rows that are there no longer stay in the table",
        )
    checked = [replace(each, folder_tags=check_file(each.path, job, table_tags)) for each in planned]
    return BackfillPlan(tuple(checked), len(paths) - len(checked))


def file_state(path: str) -> FileState:
    """Size and time of change of a file. Raises FileRefused."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise FileRefused(f"{path}: {error.strerror}", action="check the file and start again") from error
    return FileState(found.st_size, found.st_mtime_ns)


def check_file(path: str, job: BackfillJob, table_tags: Collection[str] = ()) -> FolderTags:
    """The tags that its folders give to a file. Raises FileRefused if its columns are not those of the job."""
    try:
        if job.format == "parquet":
            return _check_parquet(path, job, table_tags)
        return _check_columns(path, _csv_columns(path, job.options), job, table_tags)
    except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
        reason = (getattr(error, "strerror", "") or str(error)).splitlines()[0]
        raise FileRefused(
            f"{path} cannot be read as {job.format}: {reason}", action="check the file, or leave it out of the pattern"
        ) from error
    except FormatError as error:
        raise FileRefused(f"{path}: {error.message}", action=error.action) from error


def _is_same(path: str, now: FileState, known: Known) -> bool:
    if now == known.state:
        return True
    # A copy has another time and the same content.
    return bool(known.digest) and now.size == known.state.size and file_digest(path) == known.digest


def file_digest(path: str) -> str:
    """A digest of the content of a file."""
    hasher = xxhash.xxh3_128()
    with open(path, "rb") as stream:
        while data := stream.read(4 << 20):
            hasher.update(data)
    return hasher.hexdigest()


def _check_parquet(path: str, job: BackfillJob, table_tags: Collection[str]) -> FolderTags:
    with pq.ParquetFile(path) as file:
        schema, metadata = file.schema_arrow, file.metadata
    folder_tags = _check_columns(path, schema.names, job, table_tags)
    for column in schema:
        if column.name not in (job.options.time_column, *job.options.tags) and not is_field_type(column.type):
            raise FileRefused(
                f"{path}: column {column.name!r} has type {column.type}, which no field has",
                action="convert it to numbers, booleans or text, or leave the column out",
            )
    index = schema.names.index(job.options.time_column)
    if pa.types.is_nested(schema.field(index).type) or any(pa.types.is_nested(each.type) for each in schema):
        return folder_tags
    groups = (metadata.row_group(number).column(index).statistics for number in range(metadata.num_row_groups))
    missing = sum(each.null_count or 0 for each in groups if each is not None)
    if missing:
        raise FileRefused(
            f"{path}: {missing:,} rows have no time in column {job.options.time_column!r}",
            action="drop these rows, or give them a time",
        )
    return folder_tags


def _csv_columns(path: str, options: FormatOptions) -> Sequence[str]:
    with open(path, "rb") as stream:
        packed = stream.read(2) == _GZIP_MAGIC
    with gzip.open(path) if packed else open(path, "rb") as stream:
        first = stream.read(HEADER_BYTES_MAX)
    if first.startswith(_PARQUET_MAGIC):
        raise FileRefused(f"{path} is a Parquet file", action="give --format parquet")
    # Without the names of tags: the error about a missing one names near ones.
    header, _ = header_of(lines_of_buffer(memoryview(first)), replace(options, tags=()))
    if header is None:
        raise FileRefused(f"{path} is empty", action="leave it out of the pattern")
    return header.names


def _check_columns(path: str, columns: Sequence[str], job: BackfillJob, table_tags: Collection[str]) -> FolderTags:
    options = job.options
    folder_tags = tags_of_folders(path, columns, {*options.tags, *table_tags} - {options.time_column})
    given = dict(folder_tags)
    for role, name in (("time", options.time_column), *(("tag", tag) for tag in options.tags)):
        if name not in columns and name not in given:
            raise FileRefused(f"{path} has no column {name!r} for the {role}", action=near(name, columns))
    undecided = undecided_folders(path, columns, {*given, *dict(options.static_tags)})
    if undecided and not job.ignores_folders:
        names = ",".join(undecided)
        raise FileRefused(
            f"{path}: its folders name the column {undecided[0]!r}, which the file does not have",
            action=f"give --tags {names} if rows of different folders are different series; "
            "or --ignore-folders if it follows from the other columns",
        )
    return folder_tags


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=8).hexdigest()


def _named(paths: Sequence[str]) -> str:
    more = len(paths) - NAMED_MAX
    return ", ".join(paths[:NAMED_MAX]) + (f" and {more:,} more" if more > 0 else "")
