"""The rows of one Spark task into the forward logs, every message delivered before the task ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from headrace.connectors.formats.time_rules import check_resolution
from headrace.pipeline.schema_match import check_table_name, columns_of, matches, oldest_match
from headrace.pipeline.source_options import WriteOptions
from headrace.producers.acks import Quorum, check_quorum
from headrace.producers.cluster import Cluster
from headrace.producers.repeated_rows import TimeSample, check_distinct, refuse_repeats
from headrace.producers.router import MESSAGE_ROWS_MAX, encode_writes, route
from headrace.producers.routes import RouteKeeper
from headrace.producers.sender import FLUSH_TIMEOUT_S, Positions, Sender
from headrace.producers.writer import normal_rows
from headrace.schemas.errors import HeadraceError
from headrace.schemas.group_changes import GroupKey
from headrace.schemas.receipts import WrittenRecords
from headrace.schemas.tables import TIME_COLUMN, TableSchema

COMPRESSION = "zstd"
BLOCK_BYTES_MAX = 48 * 1024 * 1024
"""A block is held twice while it is encoded, by each worker of an executor."""


class TimeMissing(HeadraceError):
    """Rows without a time."""


@dataclass(slots=True)
class TaskWritten:
    """What one task wrote: rows, their times if they are of a new table without tags, and by group the topic's id and the
    records.
    """

    rows: int = 0
    times: TimeSample = field(default_factory=TimeSample)
    topic_ids: dict[GroupKey, str] = field(default_factory=dict)
    records: dict[GroupKey, WrittenRecords] = field(default_factory=dict)

    def add(self, records: Iterable[tuple[GroupKey, WrittenRecords]]) -> None:
        """Add records of groups."""
        for group, more in records:
            have = self.records.get(group, WrittenRecords())
            self.records[group] = WrittenRecords(
                max(have.offset, more.offset), tuple(dict.fromkeys((*have.receipts, *more.receipts)))
            )


class SinkTask:
    """Writes the Arrow batches of one task. Equal rows in equal batches give equal messages at equal positions."""

    def __init__(
        self, cluster: Cluster, options: WriteOptions, positions: Positions, *, of_stream: bool = False
    ) -> None:
        """`of_stream`: its batch has one after it, with the same producer."""
        self._cluster = cluster
        self._of_stream = of_stream
        self._options = options
        # Before the first row, and not when the batch is complete.
        check_quorum(options.quorum, cluster.slot_table.replication)
        # The tasks wait for the log alone. Members are waited for once a batch, by the driver.
        quorum = Quorum(cluster.log, cluster.topics, cluster.routing, cluster.watch, min(options.quorum, 1), 0)
        self._sender = Sender(cluster.appender, cluster.topic_of, receipts=options.quorum > 1, positions=positions)
        self._routes = RouteKeeper(cluster, self._sender, quorum, COMPRESSION)
        self._written = TaskWritten()

    def write(self, batches: Iterable[pa.RecordBatch]) -> TaskWritten:
        """Write all rows, and wait for the log.

        Raises TimeMissing, RowsRepeat, FormatError, SchemaError, TypeClash, RowTooLarge; WriteFailed and WriteUnknown.
        """
        groups = len(self._cluster.slot_table.headers)
        return self.write_tables(blocks(batches, groups * MESSAGE_ROWS_MAX))

    def write_tables(self, tables: Iterable[pa.Table]) -> TaskWritten:
        """As `write`; each table is held twice while it is encoded, and becomes messages of its own."""
        self._routes.begin(FLUSH_TIMEOUT_S, keeps=self._of_stream)
        for table in tables:
            self._write_block(table)
        self._settle()
        return self._written

    def _write_block(self, block: pa.Table) -> None:
        target, tables = self._options.target, self._cluster.tables
        missing = block.column(TIME_COLUMN).null_count
        if missing:
            raise TimeMissing(f"{missing} rows for {target.name} have no time", action="drop them, or give them one")
        known = tables.catalogue.newest(target.database, target.table).tags
        rows = normal_rows(block, target.table, {*self._options.tags, *(set(known) & set(block.column_names))})
        # As of the plan: another task, or the attempt before, may have made the table since.
        if self._options.makes_table:
            check_distinct(rows, target.name, 'name the tags: option tags="a,b"')
            self._written.times.add(np.asarray(rows.column(TIME_COLUMN)))
            refuse_repeats(self._written.times, target.name)
        schema, database = self._schema(rows), tables.ensure_database(target.database)
        check_resolution(rows, target.name, schema.resolution)
        table = self._routes.route(FLUSH_TIMEOUT_S).table
        messages = self._sender.encode(
            [
                (GroupKey(part.group, table.birth(part.group)), write, write.row_count)
                for part in route(table, database, schema, rows)
                for write in encode_writes(schema, table.version, part.rows, COMPRESSION)
            ]
        )
        for group in {each.group for each in messages} - self._written.topic_ids.keys():
            # Before the first row: a topic made again later has another id, and offsets that mean other records.
            self._written.topic_ids[group] = (
                self._cluster.log.describe(self._cluster.topic_of(group)).topic_id if self._options.quorum > 1 else ""
            )
        self._sender.append(messages)
        self._written.rows += rows.num_rows
        if self._options.quorum > 1:
            # The receipts of a block are known once it is delivered.
            self._settle()

    def _schema(self, rows: pa.Table) -> TableSchema:
        """The oldest version of the table that holds the columns: a batch that runs again finds the same one."""
        target, tables, columns = self._options.target, self._cluster.tables, columns_of(rows)
        newest = tables.catalogue.newest(target.database, target.table)
        if newest.version == 0 or not matches(newest, columns):
            tables.refresh()
            check_table_name(tables.catalogue, target.database, target.table)
            tables.ensure_database(target.database)
            if tables.catalogue.newest(target.database, target.table).version == 0:
                # Before a table is made that no row fits.
                check_resolution(rows, target.name, self._options.resolution)
            tables.ensure(
                target.database, target.table, columns.tags, dict(columns.fields), resolution=self._options.resolution
            )
        found = oldest_match(tables.catalogue.tables[(target.database, target.table)], columns)
        assert found is not None, "the newest version holds the columns"
        return found

    def _settle(self) -> None:
        self._routes.settle(FLUSH_TIMEOUT_S)
        self._sender.check()
        self._written.add(self._sender.written().items())


def blocks(batches: Iterable[pa.RecordBatch], rows_max: int) -> Iterator[pa.Table]:
    """The rows in order, in tables that end with the batch that reaches `rows_max` or BLOCK_BYTES_MAX."""
    held: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        held.append(batch)
        rows += batch.num_rows
        size_bytes += batch.nbytes
        if rows >= rows_max or size_bytes >= BLOCK_BYTES_MAX:
            yield pa.Table.from_batches(held)
            held, rows, size_bytes = [], 0, 0
    if held:
        yield pa.Table.from_batches(held)
