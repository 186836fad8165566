"""The ingest task of a Python worker: reads raw messages, parses them, matches table schemas, routes rows and
returns Kafka records.

A task is an offset range of one topic partition and keeps the order of its rows: of two values for one series and
time the later one wins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from headrace.connectors.formats.interface import LINE_COLUMN, MESSAGE_COLUMN, REJECTED_MESSAGES, ParseResult
from headrace.connectors.formats.parser import parse_messages
from headrace.connectors.formats.time_rules import TimeRules
from headrace.consumers.membership.slot_table import SlotTable
from headrace.pipeline.cluster_access import ClusterAccess, task_access
from headrace.pipeline.ingest_progress import REASONS_MAX, Counts
from headrace.pipeline.job import IngestJob
from headrace.pipeline.offset_ranges import offset_range_reader
from headrace.pipeline.raw_offsets import OffsetRange
from headrace.pipeline.rebatch import FlushedRows, RowAccumulator, rebatch
from headrace.pipeline.schema_match import (
    Columns,
    check_table_name,
    columns_of,
    matches,
    oldest_match,
    rejected_columns,
)
from headrace.pipeline.sink_records import counted_records, dead_letters, forward_record
from headrace.pipeline.worker_process import begin_task
from headrace.producers.router import PAYLOAD_BYTES_MAX, RowTooLarge, encode_writes, route
from headrace.schemas.message_rules import check_body
from headrace.schemas.messages import Message, ProducerPosition, Write, body_digest, encode_message
from headrace.schemas.tables import SchemaError, TableSchema, TypeClash

SEQUENCE_BITS = 40
REASON_SHOWN_MAX = 200
ROW_BYTES_MAX = PAYLOAD_BYTES_MAX - 65_536

RecordBatches = Iterator[pa.RecordBatch]


def read_records(
    job: IngestJob, query: str, batch: int, offset_range: OffsetRange, slot_table: bytes | None
) -> RecordBatches:
    """What one task of a micro-batch returns, in `COUNTED_SCHEMA`.

    `query` and `batch` name the micro-batch of a streaming query: producer and batch of the messages. All its tasks
    route rows by one slot table; None is the newest.
    """
    begin_task()
    with task_access(job) as access:
        access.begin_task(None if slot_table is None else SlotTable.from_bytes(slot_table))
        yield from ingest_partition(rebatch(offset_range_reader(job).read(offset_range)), job, access, query, batch)


def ingest_partition(
    batches: RecordBatches, job: IngestJob, access: ClusterAccess, query: str, batch: int
) -> RecordBatches:
    """The Kafka records of one topic partition's raw messages: forward messages and dead letters, counted."""
    # Spark renumbers its tasks at every attempt; only Kafka's number of the partition is stable.
    tasks: list[IngestTask] = []

    def records() -> RecordBatches:
        for raw in batches:
            if raw.num_rows and not tasks:
                partition = raw["partition"][0].as_py()
                tasks.append(IngestTask(job, access, ProducerPosition(query, batch, partition << SEQUENCE_BITS)))
            if raw.num_rows:
                yield from tasks[0].add(raw)
        if tasks:
            yield from tasks[0].finish()

    return counted_records(records(), lambda: tasks[0].counts if tasks else Counts())


class IngestTask:
    """One offset range of a topic partition: its accumulated rows and its next sequence number. Not
    thread-safe.

    The sequence number of a message is the partition and a hash of all messages before it in the task.
    """

    # Why a hash and not a count: an attempt may give another first message but the same second one. With a
    # count replicas would apply the first and drop the second as a repeat, and the older of two values would
    # win. With the hash everything after a difference differs too, and is applied again in order.

    def __init__(self, job: IngestJob, access: ClusterAccess, position: ProducerPosition) -> None:
        self._job = job
        self._access = access
        self._position = position
        self._database = access.database(job.database)
        self._accumulator = RowAccumulator(len(access.slot_table.headers))
        self._schemas: dict[tuple[str, Columns], TableSchema] = {}
        self._rejections: dict[tuple[str, Columns], str] = {}
        self._chain = b""
        self.partition = position.sequence >> SEQUENCE_BITS
        self.counts = Counts()

    def add(self, raw: pa.RecordBatch) -> RecordBatches:
        """Parse raw messages, at least one; returns the records of what is full."""
        assert raw["partition"][-1].as_py() == self.partition, (
            "a task reads one partition, the order of two is undefined"
        )
        newest_ms = pc.max(_times_ms(raw)).as_py()
        self.counts += Counts(messages=raw.num_rows, bytes=_value_bytes(raw), newest_ms=newest_ms)
        parsed = self._parse(raw)
        rejected = [parsed.rejected]
        if not self._all_match(raw, parsed):
            # Line numbers are two more columns of every table, so only a batch with something to reject is
            # parsed again with them.
            parsed = self._parse(raw, keep_lines=True)
            rejected = [parsed.rejected]
            for table, rows in parsed.tables.items():
                parsed.tables[table], rejected_lines = self._split_rejected(table, rows)
                rejected.append(rejected_lines)
        for table, rows in parsed.tables.items():
            schema = self._schema(table, columns_of(rows)) if rows.num_rows else None
            if schema is not None:
                for flushed in self._accumulator.add(schema, rows):
                    yield from self._messages(flushed)
        yield from self._dead_letters(raw, pa.concat_tables(rejected))

    def finish(self) -> RecordBatches:
        """The records of the remaining rows."""
        for flushed in self._accumulator.finish():
            yield from self._messages(flushed)

    def _parse(self, raw: pa.RecordBatch, *, keep_lines: bool = False) -> ParseResult:
        """The rows of raw messages; parsed again when the tables have changed, because declared types decide
        how to parse.
        """
        declared = self._access.declared_columns(self._job.database)
        while True:
            options = replace(self._job.options, declared=declared.fields, declared_tags=declared.tags)
            parsed = parse_messages(self._job.format, raw["value"], _times_ms(raw), options, keep_lines=keep_lines)
            if all(self._is_known(table, columns_of(rows)) for table, rows in parsed.tables.items()):
                return parsed
            self._access.tables.refresh()
            fresh = self._access.declared_columns(self._job.database)
            if fresh == declared:
                return parsed
            declared = fresh

    def _is_known(self, table: str, columns: Columns) -> bool:
        newest = self._access.tables.catalogue.newest(self._job.database, table)
        return (table, columns) in self._schemas or matches(newest, columns)

    def _all_match(self, raw: pa.RecordBatch, parsed: ParseResult) -> bool:
        """Whether every row can be written as it is."""
        # A message below the limit holds no row above it: only larger messages are searched for such rows.
        if (pc.max(pc.binary_length(raw["value"])).as_py() or 0) > ROW_BYTES_MAX:
            return False
        # Times first: a table of which every row is refused is not made.
        return all(
            not self._time_rules(table).refusals(rows) and self._schema(table, columns_of(rows)) is not None
            for table, rows in parsed.tables.items()
        )

    def _time_rules(self, table: str) -> TimeRules:
        known = self._access.tables.catalogue.newest(self._job.database, table)
        resolution = known.resolution if known.version else self._job.resolution
        return TimeRules(table, resolution, self._job.any_time, self._job.options.ns_per_unit)

    def _schema(self, table: str, columns: Columns) -> TableSchema | None:
        """The oldest version of the table that holds these columns, created if missing; None when impossible."""
        known = self._schemas.get((table, columns))
        if known is not None:
            return known
        tables = self._access.tables
        if not matches(tables.catalogue.newest(self._job.database, table), columns):
            try:
                check_table_name(tables.catalogue, self._job.database, table)
                tables.ensure(
                    self._job.database, table, columns.tags, dict(columns.fields), resolution=self._job.resolution
                )
            except (TypeClash, SchemaError) as error:
                self._rejections[(table, columns)] = str(error)
                return None
        schema = oldest_match(tables.catalogue.tables[(self._job.database, table)], columns)
        assert schema is not None, "the newest version holds the columns"
        self._schemas[(table, columns)] = schema
        return schema

    def _split_rejected(self, table: str, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
        """(rows that can be written, lines that cannot).

        `rows` have line numbers; for batches with a clash or a large row only.
        """
        rows, rejected_lines = _without_oversized(rows)
        rejected = [rejected_lines]
        for mask, reason in (refusals := self._time_rules(table).refusals(rows)):
            rejected.append(as_rejected(rows.filter(pa.array(mask)), reason))
        if refusals:
            rows = rows.filter(pa.array(~np.logical_or.reduce([mask for mask, _ in refusals])))
        while rows.num_rows and self._schema(table, columns_of(rows)) is None:
            columns = columns_of(rows)
            rejected_by_column = rejected_columns(
                self._access.tables.catalogue.newest(self._job.database, table), columns
            )
            # No column is at fault: the table's name is refused.
            if not rejected_by_column:
                rejected.append(as_rejected(rows, self._rejections[(table, columns)]))
                rows = rows.slice(0, 0)
            good = np.ones(rows.num_rows, np.bool_)
            # Arrow looks each name up in all of them, and copies the table for each column that it drops.
            by_name = dict(zip(rows.column_names, rows.columns, strict=True))
            places = rows.select([MESSAGE_COLUMN, LINE_COLUMN])
            for name, reason in rejected_by_column.items():
                carried = good & by_name[name].is_valid().to_numpy()
                if carried.any():
                    rejected.append(as_rejected(places.filter(pa.array(carried)), reason))
                    good &= ~carried
            left = [index for index, name in enumerate(rows.column_names) if name not in rejected_by_column]
            rows = rows.select(left).filter(pa.array(good))
        origin = [name for name in (MESSAGE_COLUMN, LINE_COLUMN) if name in rows.column_names]
        return rows.drop_columns(origin), pa.concat_tables(rejected)

    def _messages(self, flushed: FlushedRows) -> RecordBatches:
        slot_table = self._access.slot_table
        for part in route(slot_table, self._database, flushed.schema, flushed.rows):
            topic = self._access.forward_topic(part.group)
            points = sum(len(column) - column.null_count for column in part.rows.columns[2:])
            self.counts += Counts(rows=part.rows.num_rows, points=points)
            for write in self._writes(flushed.schema, slot_table.version, part.rows):
                check_body(write)
                yield forward_record(topic, encode_message(Message(self._next_position(write), write)))

    def _writes(self, schema: TableSchema, version: int, rows: pa.RecordBatch) -> Iterable[Write]:
        try:
            return list(encode_writes(schema, version, rows, self._job.compression))
        except RowTooLarge:
            # A row of thousands of columns beside text near ROW_BYTES_MAX: the query would end with it at each start.
            return encode_writes(schema, version, rows)

    def _next_position(self, write: Write) -> ProducerPosition:
        """The position of the next message, which is `write`."""
        # The hash takes the bits below the partition: the sequences of two partitions never meet.
        hash_bits = int.from_bytes(self._chain, "big") >> (64 - SEQUENCE_BITS)
        self._chain = xxhash.xxh3_64_digest(self._chain + body_digest(write))
        return replace(self._position, sequence=self._position.sequence | hash_bits)

    def _dead_letters(self, raw: pa.RecordBatch, rejected: pa.Table) -> RecordBatches:
        if rejected.num_rows:
            self.counts += Counts(rejected=rejected.num_rows, reasons=_counted(rejected["reason"]))
            yield dead_letters(
                self._job.topic, raw, rejected.sort_by([("message", "ascending"), ("line", "ascending")])
            )


def _counted(reasons: pa.ChunkedArray) -> dict[str, int]:
    """How many lines have each of the first reasons."""
    counted = pc.value_counts(reasons).slice(0, REASONS_MAX)
    return {str(each["values"])[:REASON_SHOWN_MAX]: each["counts"] for each in counted.to_pylist()}


def as_rejected(rows: pa.Table, reason: str) -> pa.Table:
    """The lines of rows that have line numbers, all rejected for one reason."""
    columns = [rows[MESSAGE_COLUMN], rows[LINE_COLUMN], pa.repeat(pa.scalar(reason), rows.num_rows)]
    return pa.table(columns, schema=REJECTED_MESSAGES)


def _without_oversized(rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """(rows that fit a forward message, the lines that do not)."""
    # Only strings are summed: the numbers of a row are 32 KiB at most, for a table has at most 4,096 columns.
    sizes = pa.repeat(pa.scalar(0, pa.int64()), rows.num_rows)
    for column in rows.columns:
        if pa.types.is_string(column.type) or pa.types.is_dictionary(column.type):
            sizes = pc.add(sizes, pc.fill_null(_text_lengths(column).cast(pa.int64()), 0))
    small_enough = pc.less_equal(sizes, ROW_BYTES_MAX)
    reason = f"the row's strings take more than the {ROW_BYTES_MAX} bytes that a message holds"
    return rows.filter(small_enough), as_rejected(rows.filter(pc.invert(small_enough)), reason)


def _text_lengths(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_string(column.type):
        return pc.binary_length(column)
    chunks = (pc.binary_length(chunk.dictionary).take(chunk.indices) for chunk in column.chunks)
    return pa.chunked_array(chunks, pa.int32())


def _times_ms(raw: pa.RecordBatch) -> pa.Array:
    return raw["timestamp"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64())


def _value_bytes(raw: pa.RecordBatch) -> int:
    return pc.sum(pc.binary_length(raw["value"])).as_py() or 0
