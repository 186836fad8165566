"""Sealed segments by Spark's own Parquet reader, each row once: the row of the highest rank.

Files that share no time with another one of their slice and bucket are read as they are. Only the others are sorted,
to find the newest of the rows with equal tags and time.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sql

from headrace.consumers.store.segment_files import path_component
from headrace.pipeline.segment_files import Footer, FoundFile, found_file, live_files, newest_copies, overlapping
from headrace.pipeline.source_options import OptionInvalid, near
from headrace.schemas.errors import HeadraceError
from headrace.schemas.tables import TIME_COLUMN

FOOTER_THREADS = 8
SEGMENTS = "segments"
_RANK = "__headrace_rank"
_WILDCARD = re.compile(r"[\\{}\[\]*?]")
_SPARK_TYPES = {"double": "double", "int64": "bigint", "bool": "boolean", "string": "string", "large_string": "string"}


class SegmentsMissing(HeadraceError):
    """A path with no segments of the table."""


class SegmentUnreadable(HeadraceError):
    """A segment that is damaged, or that Spark's Parquet reader cannot read."""


def read_segments(spark: SparkSession, path: str, table: str) -> DataFrame:
    """See `headrace.spark.read_segments`. Raises SegmentsMissing, SegmentUnreadable, OptionInvalid."""
    files = find_segments(path, table)
    with ThreadPoolExecutor(FOOTER_THREADS) as pool:
        footers = dict(zip(files, pool.map(read_footer, files), strict=True))
    newest = max(footers.values(), key=lambda footer: footer.schema_version)
    shared = overlapping(footers)
    parts = []
    for some in (shared, footers.keys() - shared):
        if some:
            frame = _read(spark, {each: footers[each] for each in some}, newest, ranked=some is shared)
            parts.append(_newest_rows(frame, newest.tags) if some is shared else frame)
    return reduce(DataFrame.unionByName, parts)


def find_segments(path: str, table: str) -> list[FoundFile]:
    """The files of a table below a node's data directory, or below one that has those of several nodes.

    Raises SegmentsMissing, OptionInvalid.
    """
    database, dot, name = table.partition(".")
    if not (database and dot and name):
        raise OptionInvalid(f"table is {table!r}", action='give it as "database.table", like plant.pumps')
    root = Path(path)
    roots = [root] if root.name == SEGMENTS else [*root.glob(SEGMENTS), *root.glob(f"*/{SEGMENTS}")]
    if not any(each.is_dir() for each in roots):
        raise SegmentsMissing(
            f"{path} has no segments",
            action="name a node's data directory, or the directory that has those of all nodes",
        )
    copies: dict[str, dict[str, list[FoundFile]]] = defaultdict(dict)
    for each in roots:
        for folder in each.glob(f"*/{path_component(database)}/{path_component(name)}"):
            found = (found_file(str(file)) for file in folder.glob("*/*.parquet"))
            if files := [file for file in found if file is not None]:
                copies[folder.parent.parent.name][str(folder)] = files
    if not copies:
        tables = sorted({".".join(each.parts[-2:]) for one in roots for each in one.glob("*/*/*") if each.is_dir()})
        hint = near(table, tables) if tables else "run `headrace seal`, so that rows are in files"
        raise SegmentsMissing(f"{path} has no segments of {table}", action=hint)
    return live_files(newest_copies(copies))


def read_footer(file: FoundFile) -> Footer:
    """The footer of a segment. Raises SegmentUnreadable."""
    try:
        with pq.ParquetFile(file.path) as opened:
            schema, metadata = opened.schema_arrow, opened.metadata
            return _footer(file, schema, metadata)
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        raise SegmentUnreadable(
            f"{file.path} cannot be read: {error}",
            action="a file that is missing was merged meanwhile: read again; for a damaged one run `headrace verify`",
        ) from error


def _footer(file: FoundFile, schema: pa.Schema, metadata: Any) -> Footer:
    place = schema.names.index(TIME_COLUMN)
    if schema.field(place).type.unit == "ns":
        raise SegmentUnreadable(
            f"{file.path} has times in nanoseconds, for which Spark has no type",
            action='read the table with spark.read.format("headrace") and time="long"',
        )
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    columns = (group.column(index) for group in groups for index in range(metadata.num_columns))
    if any("BYTE_STREAM_SPLIT" in column.encodings for column in columns):
        raise SegmentUnreadable(
            f"{file.path} was written by Headrace 0.1.0, in an encoding that Spark refuses",
            action="wait until it is merged, or read the table with spark.read.format('headrace')",
        )
    # The raw numbers, since the stored times are without a zone.
    times = [group.column(place).statistics for group in groups]
    fields = tuple((each.name, _SPARK_TYPES[str(each.type)]) for each in list(schema)[place + 1 :])
    version = int(metadata.metadata[b"headrace.schema_version"])
    return Footer(
        min(each.min_raw for each in times),
        max(each.max_raw for each in times),
        tuple(schema.names[:place]),
        fields,
        version,
    )


def _read(spark: SparkSession, files: dict[FoundFile, Footer], newest: Footer, *, ranked: bool) -> DataFrame:
    """The rows of files in the columns of the newest schema: with its types, null where a file has no such column."""
    by_columns: dict[tuple[Any, Any], list[str]] = defaultdict(list)
    for file, footer in files.items():
        by_columns[footer.tags, footer.fields].append(file.path)
    frames = [
        _selected(_parquet(spark, sorted(paths)), tags, dict(fields), newest, ranked=ranked)
        for (tags, fields), paths in sorted(by_columns.items())
    ]
    return reduce(DataFrame.unionByName, frames)


def _parquet(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    # The directories are no partitions, and a filter of one reader would skip names with an underscore.
    return spark.read.option("recursiveFileLookup", "true").parquet(*map(spark_path, paths))


def spark_path(path: str) -> str:
    """A file of this machine as Spark takes it: a URI that is not encoded, in which a backslash makes wildcards plain."""
    return "file:" + _WILDCARD.sub(r"\\\g<0>", str(Path(path).absolute()))


def _selected(
    frame: DataFrame, tags: Iterable[str], fields: dict[str, str], newest: Footer, *, ranked: bool
) -> DataFrame:
    def column(name: str, kind: str, *, present: bool, same: bool) -> Any:
        if present and same:
            return sql.col(quoted(name))
        return (sql.col(quoted(name)) if present else sql.lit(None)).cast(kind).alias(name)

    held = set(tags)
    columns = [column(tag, "string", present=tag in held, same=True) for tag in newest.tags]
    columns.append(sql.col(TIME_COLUMN))
    columns += [
        column(name, kind, present=name in fields, same=fields.get(name) == kind) for name, kind in newest.fields
    ]
    return frame.select(*columns, sql.col("_metadata.file_name").alias(_RANK)) if ranked else frame.select(*columns)


def quoted(name: str) -> str:
    """A column's name as Spark's SQL has it, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"


def _newest_rows(frame: DataFrame, tags: Sequence[str]) -> DataFrame:
    """Of the rows of equal tags and time the one of the highest rank, which is in the file of the later name."""
    key = [sql.col(quoted(name)) for name in (*tags, TIME_COLUMN)]
    number = sql.row_number().over(Window.partitionBy(*key).orderBy(sql.col(_RANK).desc()))
    placed = "__headrace_place"
    return frame.withColumn(placed, number).where(sql.col(placed) == 1).drop(placed, _RANK)
