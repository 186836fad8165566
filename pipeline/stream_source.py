"""`spark.readStream.format("headrace")`: the rows of a table as they are written, from the forward logs.

One task reads one log, or with `minPartitions` a part of it. Each message gives its rows once, also if its producer has
repeated it. Rows that came into the cluster as files (edge sync) are in no log: `spark.read` has them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from headrace.connectors.deadline import Deadline
from headrace.connectors.log.kafka import KafkaLog
from headrace.connectors.log.port import LogTruncated, LogUnavailable, Record
from headrace.consumers.membership.routing import open_routing
from headrace.consumers.store.batch_columns import tag_texts
from headrace.pipeline.log_follower import LogFollower, LogTrimmed, decoded
from headrace.pipeline.log_ranges import task_ranges
from headrace.pipeline.source_columns import GROUP_COLUMN, OFFSET_COLUMN, as_planned
from headrace.pipeline.source_options import StreamOptions
from headrace.pipeline.worker_process import begin_task
from headrace.schemas.messages import Write
from headrace.schemas.payload import PayloadInvalid, decode_rows

CONNECT_TIMEOUT_S = 30.0
READ_TIMEOUT_S = 60.0
POLL_RECORDS = 100


class LogRange(InputPartition):
    """One task: the records of a log with begin <= offset < end, without those that do not count."""

    def __init__(self, topic: str, begin: int, end: int, dropped: tuple[int, ...]) -> None:
        super().__init__(topic)
        self.begin = begin
        self.end = end
        self.dropped = dropped


class TableStreamReader(DataSourceStreamReader):
    """Follows one table. Spark pickles it to its workers, where only `read` is called."""

    def __init__(self, options: StreamOptions, schema: pa.Schema, tags: Sequence[str]) -> None:
        self._options = options
        self._schema = schema
        self._tags = tuple(tags)
        self._follower: LogFollower | None = None
        self._initial: dict[str, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_follower": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a query without a finished batch starts."""
        offsets = self._opened().beginning()
        self._opened().start(offsets)
        self._initial = offsets
        return offsets

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802
        """How far the next batch goes. Raises LogTrimmed, RowsDeleted."""
        follower = self._opened()
        if not follower.started:
            # Spark has planned no batch yet, and will use the beginning it was given.
            follower.start(follower.beginning())
        return follower.advance()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a batch. After a restart the first call says where the checkpoint is. Raises LogTrimmed."""
        follower = self._opened()
        if not follower.started:
            follower.start(start)
        elif self._options.from_latest and start == self._initial and _is_behind(end, start):
            # Of a first batch that was not finished Spark asks again where it begins, and the logs have grown since.
            # It was empty; what lies between is of the next one, and of it alone are repeats known.
            follower.start(start := end)
        follower.cover(end)
        # The log of a group that is new is read from its first record on.
        ranges = {
            topic: (int(start.get(topic, {"offset": 0})["offset"]), int(position["offset"]))
            for topic, position in end.items()
        }
        return [
            LogRange(topic, *piece, follower.dropped(topic, *piece))
            for topic, piece in task_ranges(ranges, self._options.tasks_min)
        ]

    def commit(self, end: dict[str, Any]) -> None:
        """See DataSourceStreamReader."""
        self._opened().forget(end)

    def stop(self) -> None:
        """See DataSourceStreamReader."""
        follower, self._follower = self._follower, None
        if follower is not None:
            follower.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task; runs in a worker. Raises LogTrimmed, LogUnavailable, TimeTooFine."""
        begin_task()
        assert isinstance(partition, LogRange), partition
        dropped = frozenset(partition.dropped)
        target = self._options.target
        with contextlib.closing(KafkaLog(target.bootstrap, dict(target.kafka))) as log:
            for record in _records(log, partition):
                if record.offset not in dropped and (rows := self._rows(record)) is not None:
                    yield from as_planned([rows], self._schema, target.name)

    def _rows(self, record: Record) -> pa.RecordBatch | None:
        """The rows of the table in a record, None where it has none; with the columns that Spark may want."""
        message = decoded(record)
        body = message.body if message is not None else None
        target = self._options.target
        if not isinstance(body, Write) or (body.database, body.table) != (target.database, target.table):
            return None
        try:
            rows = decode_rows(body.rows)
        except PayloadInvalid:
            # No build could have written it, and replicas ignore it.
            return None
        series, wanted = rows.column(0), set(self._schema.names)
        tags = [tag for tag in self._tags if tag in wanted]
        columns: dict[str, pa.Array] = dict(tag_texts(series.dictionary, tags, series.indices))
        columns |= dict(zip(rows.schema.names[1:], rows.columns[1:], strict=True))
        if self._options.metadata:
            group = target.topics.group_of(record.topic)
            columns[GROUP_COLUMN] = pa.repeat(pa.scalar(group[0] if group else ""), rows.num_rows)
            columns[OFFSET_COLUMN] = pa.repeat(pa.scalar(record.offset, pa.int64()), rows.num_rows)
        return pa.RecordBatch.from_pydict(columns)

    def _opened(self) -> LogFollower:
        if self._follower is None:
            target = self._options.target
            with contextlib.ExitStack() as undo:
                log = KafkaLog(target.bootstrap, dict(target.kafka))
                undo.callback(log.close)
                routing = open_routing(log, target.topics, Deadline(CONNECT_TIMEOUT_S))
                self._follower = LogFollower(log, routing, self._options)
                undo.pop_all()
        return self._follower


def _is_behind(offsets: dict[str, Any], others: dict[str, Any]) -> bool:
    return any(int(each["offset"]) < int(others.get(topic, each)["offset"]) for topic, each in offsets.items())


def _records(log: KafkaLog, wanted: LogRange) -> Iterator[Record]:
    topic = wanted.value
    with contextlib.closing(log.reader({topic: wanted.begin})) as reader:
        deadline = Deadline(READ_TIMEOUT_S)
        while reader.position(topic) < wanted.end:
            try:
                records = reader.poll(POLL_RECORDS, 0.2)
            except LogTruncated as error:
                raise LogTrimmed(
                    f"log {topic} lost records from offset {wanted.begin} on while they were read",
                    action="restart the query: it says what is left to do",
                ) from error
            for record in records:
                if record.offset < wanted.end:
                    yield record
            if records:
                deadline = Deadline(READ_TIMEOUT_S)
            elif deadline.passed():
                raise LogUnavailable(f"log {topic} delivers nothing", action="check the broker", retriable=True)
