"""What a Python worker does with the raw messages of one task: read, parse, fit to the tables, cut by data group, and hand back Kafka records.

Runs inside `mapInArrow`. Rows keep their order within the task, and a task is a stretch of one topic partition, so of two values for one series
and time the later one stays the later one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from pyspark import Accumulator

from connectors.formats.parse import parse_messages
from connectors.formats.parsed import LINE_COLUMN, MESSAGE_COLUMN, REJECTED_MESSAGES, Parsed
from consumers.membership.cut import PAYLOAD_BYTES_MAX, cut, encode_writes
from pipeline.access import ClusterAccess, cluster_access
from pipeline.counts import Counts, TaskCounts
from pipeline.fitting import Columns, check_table_name, columns_of, fits, oldest_fitting, refused_columns
from pipeline.gathering import gather
from pipeline.importers import forget_archives
from pipeline.job import IngestJob
from pipeline.pending import Flushed, PendingRows
from pipeline.records import dead_letters, forward_record
from pipeline.stretch import Stretch, stretch_reader
from schemas.messages import Message, ProducerPosition, Write, body_digest, encode_message
from schemas.tables import SchemaError, TableSchema, TypeClash

SEQUENCE_BITS = 40
ROW_BYTES_MAX = PAYLOAD_BYTES_MAX - 65_536

RecordBatches = Iterator[pa.RecordBatch]


def batch_function(
    job: IngestJob, tally: Accumulator[TaskCounts], query: str, batch: int, stretches: Sequence[Stretch]
) -> Callable[[RecordBatches], RecordBatches]:
    """The function for `mapInArrow`: the numbers of stretches in, `RECORD_SCHEMA` out. What it closes over are plain values.

    `query` and `batch` name the micro-batch of a streaming query: producer and batch of the messages.
    """

    def forward(numbers: RecordBatches) -> RecordBatches:
        forget_archives()
        access = cluster_access(job)
        access.begin_task()
        reader = stretch_reader(job)
        for batch_of_numbers in numbers:
            for number in batch_of_numbers.column(0).to_pylist():
                yield from ingest(gather(reader.read(stretches[number])), job, access, query, batch, tally.add)

    return forward


def ingest(
    batches: RecordBatches,
    job: IngestJob,
    access: ClusterAccess,
    query: str,
    batch: int,
    report: Callable[[TaskCounts], None],
) -> RecordBatches:
    """The Kafka records that come of one topic partition's raw messages: forward messages and dead letters.

    Reports its counts when all is handed out.
    """
    task = None
    for raw in batches:
        if raw.num_rows:
            # Spark numbers its tasks anew at every attempt; only Kafka's number of the partition stays.
            partition = raw["partition"][0].as_py()
            task = task or IngestTask(job, access, ProducerPosition(query, batch, partition << SEQUENCE_BITS))
            yield from task.take(raw)
    if task is not None:
        yield from task.finish()
        report(TaskCounts({(batch, task.partition): task.counts}))


class IngestTask:
    """One stretch of a topic partition: rows that wait, and the next sequence number. Not thread-safe.

    The sequence number of a message is the partition and a hash of all messages before it in the task. Were it a mere count, a task that is run
    again and gives another first message but the same second one would see the first applied and the second dropped as a repeat, with the
    older of two values on top. So whatever follows a difference differs too, and is applied again in its order.
    """

    def __init__(self, job: IngestJob, access: ClusterAccess, position: ProducerPosition) -> None:
        self._job = job
        self._access = access
        self._position = position
        self._database = access.database(job.database)
        self._pending = PendingRows(len(access.slot_table.headers))
        self._schemas: dict[tuple[str, Columns], TableSchema] = {}
        self._refusals: dict[tuple[str, Columns], str] = {}
        self._chain = b""
        self.partition = position.sequence >> SEQUENCE_BITS
        self.counts = Counts()

    def take(self, raw: pa.RecordBatch) -> RecordBatches:
        """Parse raw messages, at least one; what is full leaves at once."""
        assert raw["partition"][-1].as_py() == self.partition, "a task that reads two partitions has no order to keep"
        self.counts += Counts(bytes=_value_bytes(raw), newest_ms=pc.max(_times_ms(raw)).as_py())
        parsed = self._parse(raw)
        rejected = [parsed.rejected]
        if not self._all_fit(raw, parsed):
            parsed = self._parse(raw, keep_lines=True)
            rejected = [parsed.rejected]
            for table, rows in parsed.tables.items():
                parsed.tables[table], refused = self._keep_what_fits(table, rows)
                rejected.append(refused)
        for table, rows in parsed.tables.items():
            schema = self._schema(table, columns_of(rows)) if rows.num_rows else None
            if schema is not None:
                for flushed in self._pending.add(schema, rows):
                    yield from self._messages(flushed)
        yield from self._dead_letters(raw, pa.concat_tables(rejected))

    def finish(self) -> RecordBatches:
        """The rows that still wait."""
        for flushed in self._pending.finish():
            yield from self._messages(flushed)

    def _parse(self, raw: pa.RecordBatch, *, keep_lines: bool = False) -> Parsed:
        """The readings of raw messages; read again when the tables turn out to have changed, for a declared type decides how to read."""
        declared = self._access.declared(self._job.database)
        while True:
            options = replace(self._job.options, declared=declared.fields, declared_tags=declared.tags)
            parsed = parse_messages(self._job.format, raw["value"], _times_ms(raw), options, keep_lines=keep_lines)
            if all(self._known(table, columns_of(rows)) for table, rows in parsed.tables.items()):
                return parsed
            self._access.tables.refresh()
            fresh = self._access.declared(self._job.database)
            if fresh == declared:
                return parsed
            declared = fresh

    def _known(self, table: str, columns: Columns) -> bool:
        newest = self._access.tables.catalogue.newest(self._job.database, table)
        return (table, columns) in self._schemas or fits(newest, columns)

    def _all_fit(self, raw: pa.RecordBatch, parsed: Parsed) -> bool:
        """Whether every row can be written as it is."""
        if (pc.max(pc.binary_length(raw["value"])).as_py() or 0) > ROW_BYTES_MAX:
            return False
        return all(self._schema(table, columns_of(rows)) is not None for table, rows in parsed.tables.items())

    def _schema(self, table: str, columns: Columns) -> TableSchema | None:
        """The oldest version of the table that holds these columns, made now if need be; None when there cannot be one."""
        known = self._schemas.get((table, columns))
        if known is not None:
            return known
        tables = self._access.tables
        if not fits(tables.catalogue.newest(self._job.database, table), columns):
            try:
                check_table_name(tables.catalogue, self._job.database, table)
                tables.ensure(self._job.database, table, columns.tags, dict(columns.fields))
            except (TypeClash, SchemaError) as error:
                self._refusals[(table, columns)] = str(error)
                return None
        schema = oldest_fitting(tables.catalogue.tables[(self._job.database, table)], columns)
        assert schema is not None, "the newest version holds the columns"
        self._schemas[(table, columns)] = schema
        return schema

    def _keep_what_fits(self, table: str, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
        """(rows that can be written, lines that cannot). `rows` name their lines; only batches with a clash or a giant come here."""
        rows, refused = _without_giants(rows)
        rejected = [refused]
        while rows.num_rows and self._schema(table, columns_of(rows)) is None:
            columns = columns_of(rows)
            refused_by_column = refused_columns(
                self._access.tables.catalogue.newest(self._job.database, table), columns
            )
            if not refused_by_column:
                rejected.append(as_rejected(rows, self._refusals[(table, columns)]))
                rows = rows.slice(0, 0)
            for name, reason in refused_by_column.items():
                carried = pc.is_valid(rows[name])
                rejected.append(as_rejected(rows.filter(carried), reason))
                rows = rows.filter(pc.invert(carried)).drop_columns([name])
        origin = [name for name in (MESSAGE_COLUMN, LINE_COLUMN) if name in rows.column_names]
        return rows.drop_columns(origin), pa.concat_tables(rejected)

    def _messages(self, flushed: Flushed) -> RecordBatches:
        slot_table = self._access.slot_table
        for part in cut(slot_table, self._database, flushed.schema, flushed.rows):
            topic = self._access.forward_topic(part.group)
            points = sum(len(column) - column.null_count for column in part.rows.columns[2:])
            self.counts += Counts(part.rows.num_rows, points)
            for write in encode_writes(flushed.schema, slot_table.version, part.rows, self._job.compression):
                yield forward_record(topic, encode_message(Message(self._next(write), write)))

    def _next(self, write: Write) -> ProducerPosition:
        """The position of the next message, which is `write`."""
        place = int.from_bytes(self._chain, "big") >> (64 - SEQUENCE_BITS)
        self._chain = xxhash.xxh3_64_digest(self._chain + body_digest(write))
        return replace(self._position, sequence=self._position.sequence | place)

    def _dead_letters(self, raw: pa.RecordBatch, rejected: pa.Table) -> RecordBatches:
        if rejected.num_rows:
            self.counts += Counts(rejected=rejected.num_rows)
            yield dead_letters(
                self._job.topic, raw, rejected.sort_by([("message", "ascending"), ("line", "ascending")])
            )


def as_rejected(rows: pa.Table, reason: str) -> pa.Table:
    """The lines of rows that name their lines, all refused for one reason."""
    columns = [rows[MESSAGE_COLUMN], rows[LINE_COLUMN], pa.repeat(pa.scalar(reason), rows.num_rows)]
    return pa.table(columns, schema=REJECTED_MESSAGES)


def _without_giants(rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """(rows that fit a forward message, the lines that do not): only strings make a row large."""
    sizes = pa.repeat(pa.scalar(0, pa.int64()), rows.num_rows)
    for column in rows.columns:
        if pa.types.is_string(column.type) or pa.types.is_dictionary(column.type):
            sizes = pc.add(sizes, pc.fill_null(_text_lengths(column).cast(pa.int64()), 0))
    fitting = pc.less_equal(sizes, ROW_BYTES_MAX)
    reason = f"the row's strings take more than the {ROW_BYTES_MAX} bytes that a message holds"
    return rows.filter(fitting), as_rejected(rows.filter(pc.invert(fitting)), reason)


def _text_lengths(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_string(column.type):
        return pc.binary_length(column)
    chunks = (pc.binary_length(chunk.dictionary).take(chunk.indices) for chunk in column.chunks)
    return pa.chunked_array(chunks, pa.int32())


def _times_ms(raw: pa.RecordBatch) -> pa.Array:
    return raw["timestamp"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64())


def _value_bytes(raw: pa.RecordBatch) -> int:
    return pc.sum(pc.binary_length(raw["value"])).as_py() or 0
