"""Rows of one table, between two times, from the topics into a new directory of Parquet files.

The logs are applied by the node's own code to a store beside the directory, which gets these rows alone and is removed
at the end. So deletes and later values count, whatever is sealed. The files are for readers such as DuckDB and Spark,
and no node starts on them.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.connectors.files import create_directories, fsync_directory, fsync_file
from headrace.connectors.log.kafka import KafkaLog
from headrace.connectors.log.port import Log
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.schema_log import SchemaLog
from headrace.consumers.node.node import Node
from headrace.consumers.node.offline_replay import (
    PARTIAL_SUFFIX,
    DirectoryNotEmpty,
    ReplayResult,
    as_created,
    replayed_node,
    with_node,
)
from headrace.consumers.node.settings import ServerSettings
from headrace.consumers.node.unfinished_directory import unfinished_directory
from headrace.consumers.replication.row_selection import RowSelection
from headrace.consumers.store import Store, TableUnknown
from headrace.consumers.store.segment_files import path_component
from headrace.schemas.near_names import near_tables
from headrace.schemas.tables import TIME_COLUMN, TableSchema, TimeResolution

FILES_SUFFIX = ".files"
COMPRESSION = "zstd"


def replay_selection(
    settings: ServerSettings,
    selection: RowSelection,
    *,
    on_progress: Callable[[int, int], None],
    log: Log | None = None,
) -> ReplayResult:
    """Write the selected rows of the groups of a node, which may run, to its `data_dir`, which must be new.

    The files are `{database}/{table}/{slice}-{group}.parquet`. Raises DirectoryNotEmpty, TableUnknown, and what a
    replay raises.
    """
    directory, started = settings.node.data_directory, time.monotonic()
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        what = "is a file" if not directory.is_dir() else "is not empty"
        raise DirectoryNotEmpty(f"{directory} {what}", action="name a new directory for the rows of a table")
    _check_table(settings, selection, log)
    settings = as_created(settings, log, may_run=True)
    partial, files = (directory.with_name(directory.name + suffix) for suffix in (PARTIAL_SUFFIX, FILES_SUFFIX))
    rebuilt = replayed_node(with_node(settings, data_dir=str(partial)), on_progress, log, selection)
    with unfinished_directory(partial), unfinished_directory(files), rebuilt as (node, fetched):
        written = [_write_group(node, store, files, selection) for store in _stores(node)]
        result = ReplayResult(
            records=sum(group.version for group in node.groups.values()),
            rows=sum(rows for rows, _ in written),
            segments=sum(count for _, count in written),
            bytes=node.log_consumer.bytes_consumed,
            seconds=time.monotonic() - started,
            loaded_files=fetched,
        )
    shutil.rmtree(partial, ignore_errors=True)
    create_directories(files)
    if directory.exists():
        directory.rmdir()
    files.rename(directory)
    fsync_directory(directory.parent)
    return result


def _check_table(settings: ServerSettings, selection: RowSelection, log: Log | None) -> None:
    kafka = log or KafkaLog(settings.cluster.bootstrap, settings.kafka)
    try:
        tables = SchemaLog(kafka, Topics(settings.cluster.name))
        tables.refresh()
        known, name = sorted(tables.catalogue.tables), (selection.database, selection.table)
        tables.close()
    finally:
        if log is None:
            kafka.close()
    if name not in known:
        near = near_tables(name, known) or [".".join(each) for each in known]
        action = f"did you mean {' or '.join(near)}?" if near else "the cluster has no table"
        raise TableUnknown(f"there is no table {'.'.join(name)}", action=action)


def _stores(node: Node) -> list[Store]:
    """The stores of the groups that have the table, in order of their names."""
    return [group.store for _, group in sorted(node.groups.items())]


def _write_group(node: Node, store: Store, directory: Path, selection: RowSelection) -> tuple[int, int]:
    """(rows, files) of one group, a file for each slice with rows."""
    database, table = selection.database, selection.table
    known = store.database(database, table)
    if known is None:
        return 0, 0
    schema = node.schema_log.catalogue.newest(database, table)
    folder = create_directories(directory / path_component(database) / path_component(table))
    total = files = 0
    for number in _slices(store, selection, known.slice_ns):
        rows = _rows_of_slice(store, schema, selection, number * known.slice_ns, (number + 1) * known.slice_ns)
        if rows.num_rows:
            path = folder / f"{number}-{path_component(store.group)}.parquet"
            pq.write_table(rows, path, compression=COMPRESSION, store_schema=False)
            fsync_file(path)
            total, files = total + rows.num_rows, files + 1
    fsync_directory(folder)
    return total, files


def _slices(store: Store, selection: RowSelection, slice_ns: int) -> list[int]:
    start_ns, end_ns = selection.start_ns, selection.end_ns
    with store.scan(selection.database, selection.table, columns=(), start_ns=start_ns, end_ns=end_ns) as scan:
        # A file's directory is named `{slice}-{bucket}`.
        found = {int(path.parent.name.rpartition("-")[0]) for path in scan.files}
        return sorted(found | set(np.unique(scan.table.column(TIME_COLUMN).to_numpy() // slice_ns).tolist()))


def _rows_of_slice(store: Store, schema: TableSchema, selection: RowSelection, start_ns: int, end_ns: int) -> pa.Table:
    """The rows of one slice in the columns of the newest schema, sorted by tags and time."""
    first = start_ns if selection.start_ns is None else max(start_ns, selection.start_ns)
    last = end_ns if selection.end_ns is None else min(end_ns, selection.end_ns)
    with store.scan(selection.database, selection.table, start_ns=first, end_ns=last) as scan:
        parts = [_in_form(part, schema, first, last) for part in (scan.table, *_tables(scan.files))]
    rows = pa.concat_tables(parts)
    return rows.sort_by([(name, "ascending") for name in (*schema.tags, TIME_COLUMN)])


def _tables(files: list[Path]) -> Iterator[pa.Table]:
    for path in files:
        yield pq.read_table(path, partitioning=None)


def _in_form(rows: pa.Table, schema: TableSchema, start_ns: int, end_ns: int) -> pa.Table:
    """Rows between two times in the columns and types of a schema; what they lack is null."""
    times = rows.column(TIME_COLUMN).cast(pa.timestamp("ns")) if _is_moment(rows) else rows.column(TIME_COLUMN)
    numbers = times.cast(pa.int64()).to_numpy()
    unit = "ns" if schema.resolution is TimeResolution.NS else "us"
    kinds = {tag: pa.string() for tag in schema.tags}
    kinds |= {name: kind.arrow for name, kind in schema.fields}
    present = set(rows.column_names)
    columns = {
        name: rows.column(name).cast(kind) if name in present else pa.nulls(rows.num_rows, kind)
        for name, kind in kinds.items()
    }
    tags = {tag: columns.pop(tag) for tag in schema.tags}
    found = pa.table({**tags, TIME_COLUMN: times.cast(pa.timestamp("ns")).cast(pa.timestamp(unit)), **columns})
    return found.filter(pa.array((numbers >= start_ns) & (numbers < end_ns)))


def _is_moment(rows: pa.Table) -> bool:
    return bool(pa.types.is_timestamp(rows.schema.field(TIME_COLUMN).type))
